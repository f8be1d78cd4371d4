"""Errors read like help, and survive the trip from a Spark worker."""

from __future__ import annotations

import pickle

import pytest

from icestream import errors
from icestream.errors import ConfigError, IcestreamError, PlanError, first_line


def every_kind() -> list[type[IcestreamError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, IcestreamError) and kind is not ConfigError
    ]


def test_error_shows_where_what_and_what_to_do() -> None:
    error = PlanError("no source is called 'kafak'", where="a.yaml:5:16", todo="Did you mean?\nNo.")

    assert str(error) == "a.yaml:5:16: no source is called 'kafak'\n  Did you mean?\n  No."


def test_error_without_a_location_is_only_the_message() -> None:
    assert str(PlanError("it does not fit")) == "it does not fit"


def test_location_is_added_once() -> None:
    error = PlanError("it does not fit").at("pipeline 'a'").at("elsewhere")

    assert str(error) == "pipeline 'a': it does not fit"


@pytest.mark.parametrize("kind", every_kind())
def test_every_error_survives_pickling(kind: type[IcestreamError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what", where="where", todo="todo")))  # noqa: S301

    assert type(copy) is kind
    assert str(copy) == "where: what\n  todo"


def test_config_error_keeps_its_problems_through_pickling() -> None:
    error = ConfigError([PlanError("one", where="a.yaml:1:1"), PlanError("two")])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert str(copy) == "a.yaml:1:1: one\ntwo"
    assert [problem.what for problem in copy.problems] == ["one", "two"]


@pytest.mark.parametrize("kind", every_kind())
def test_error_tree_in_the_docstring_names_every_class(kind: type[IcestreamError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


def test_first_line_of_an_error_is_never_blank() -> None:
    worker = ValueError("\n  An exception was thrown from the Python worker:\nTraceback ...")
    assert first_line(worker) == "An exception was thrown from the Python worker:"
    assert first_line(ValueError(" \n")) == first_line(ValueError()) == "ValueError"
