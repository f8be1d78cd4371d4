"""Options that the chosen mode ignores are refused, not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.api.pipeline import validate_pipeline
from icestream.config import parse
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan import build
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "option",
    [
        "key_fields: [id]",
        "sequence_field: ts",
        "op_field: op",
        "delete_mode: soft",
        "tombstone_days: 3",
    ],
)
def test_option_of_upsert_is_refused_in_another_mode(tmp_path: Path, option: str) -> None:
    text = f"sinks: {{lake: {{connector: iceberg, config: {{namespace: a, table: b, {option}}}}}}}"
    with pytest.raises(ConfigError) as caught:
        build(parse(text, tmp_path / "a.yaml"))
    name = option.partition(":")[0]
    assert str(caught.value).partition(": ")[2] == (
        f"commit_mode 'append' ignores {name!r}\n  Use `commit_mode: upsert`, or remove it."
    )


def test_script_is_validated_like_a_file() -> None:
    options = IcebergOptions(namespace=("a",), table="b", on_error="dead_letter")
    with pytest.raises(PlanError) as caught:
        validate_pipeline("events", options)
    assert str(caught.value) == (
        "pipeline 'events', options of the sink: on_error 'dead_letter' needs a table for the bad "
        "rows, and none is named\n  Add e.g. `dead_letter: a.bad_rows`."
    )


def test_script_may_not_name_what_is_not_available() -> None:
    with pytest.raises(UnavailableError, match="'readers' is not available in this version"):
        validate_pipeline("events", IcebergOptions(namespace=("a",), table="b", readers=("trino",)))


def test_dollar_is_literal_in_a_script() -> None:
    properties = {"comment": "costs ${PRICE}"}
    validate_pipeline(
        "events", IcebergOptions(namespace=("a",), table="b", table_properties=properties)
    )


@pytest.mark.parametrize("name", ["", "../x", "a/dlq", "1st"])
def test_odd_name_of_a_pipeline_is_refused(name: str) -> None:
    with pytest.raises(PlanError) as caught:
        validate_pipeline(name, IcebergOptions(namespace=("a",), table="b"))
    assert str(caught.value) == (
        f"{name!r} is not a valid pipeline name\n"
        "  Start with a letter, followed by letters, digits, '_' and '-'."
    )
