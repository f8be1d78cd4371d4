"""The base of the conformance suites: tests that are named by the fact they prove."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Test = TypeVar("Test", bound="Callable[..., None]")


def fact(name: str) -> Callable[[Test], Test]:
    """Name the fact that a test proves, for `not_held`."""

    def mark(test: Test) -> Test:
        test.__dict__["fact"] = name
        return test

    return mark


class ConformanceSuite:
    """Proves that a plugin keeps its contract.

    `not_held` maps facts that do not hold for the plugin to the reason. Their tests must fail, so
    that the list stays correct.
    """

    not_held: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def facts(cls) -> list[str]:
        """Return the names of the facts that the suite proves."""
        return sorted({test.fact for test in cls._tests().values()})

    @classmethod
    def _tests(cls) -> dict[str, Any]:
        return {name: test for name in dir(cls) if hasattr(test := getattr(cls, name), "fact")}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        tests, known = cls._tests(), cls.facts()
        for name in cls.not_held.keys() - set(known):
            raise TypeError(f"{cls.__name__}.not_held: no fact is called {name!r}; known: {known}")
        for name, test in tests.items():
            if test.fact in cls.not_held:
                setattr(cls, name, _expected_to_fail(test, cls.not_held[test.fact]))


def _expected_to_fail(test: Any, reason: str) -> Any:
    # A copy, so that the mark does not reach sibling classes.
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__)
    copy.__dict__.update({**test.__dict__, "pytestmark": list(test.__dict__.get("pytestmark", []))})
    copy.__annotations__ = test.__annotations__
    return pytest.mark.xfail(reason=reason, strict=True)(copy)
