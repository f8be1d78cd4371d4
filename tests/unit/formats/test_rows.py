"""Formats that parse one record at a time: what `RowDecoder` makes of the parsed fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.formats.lookup import read_schema
from icestream.formats.rows import RowDecoder

if TYPE_CHECKING:
    from icestream.contracts.decoder import Decoded


class AnyDecoder(RowDecoder):
    """Parses JSON with Python, which keeps the type of each value."""

    def parse(self, value: bytes) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(value)
        return parsed


class TextDecoder(AnyDecoder):
    """Leaves text as it is."""

    infers_types = False


def decode(schema: str, *records: dict[str, Any] | bytes | None) -> Decoded:
    values = [json.dumps(one).encode() if isinstance(one, dict) else one for one in records]
    columns = read_schema(schema).columns
    return AnyDecoder().decode(pa.array(values, pa.binary()), columns)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("bigint", "7", "7"),
        ("bigint", "007", "7"),
        ("bigint", 7, "7"),
        ("bigint", "", "None"),
        ("string", "", ""),
        ("string", 7, "7"),
        ("double", "1.5", "1.5"),
        ("decimal(5,2)", "1.50", "1.50"),
        ("boolean", "1", "True"),
        ("date", "2026-11-16", "2026-11-16"),
        ("array<bigint>", [1, None], "[1, None]"),
    ],
)
def test_text_is_converted_as_in_csv_and_all_else_as_in_json(
    kind: str, value: Any, expected: str
) -> None:
    decoded = decode(f"a {kind}", {"a": value})

    assert decoded.bad == ()
    assert str(decoded.rows.column(0)[0].as_py()) == expected


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("bigint", "x", "column 'a': 'x' is not a bigint"),
        ("bigint", 1.5, "column 'a': 1.5 is not a bigint"),
        ("int", 1 << 40, "column 'a': 1099511627776 is not an int"),
        ("array<bigint>", "[1]", "column 'a': '[1]' is not an array"),
        ("string", "\ud800", "column 'a': \"'\\\\ud800'\" is not a string"),
        ("binary", "\ud800", "column 'a': a lone surrogate is not text"),
        ("bigint NOT NULL", None, "column 'a': no value, and it is required"),
        ("bigint NOT NULL", "", "column 'a': no value, and it is required"),
    ],
)
def test_value_that_does_not_fit_is_bad_and_its_neighbours_are_not(
    kind: str, value: Any, reason: str
) -> None:
    good = {"a": [] if "array" in kind else "1"}

    decoded = decode(f"a {kind}", good, {"a": value}, good)

    assert decoded.bad == ((1, reason),)
    assert pa.array([0, 2]).equals(decoded.kept)


def test_reason_is_the_error_of_parse_on_one_line() -> None:
    decoded = decode("a bigint", b"{", None, b"[" * 100_000)

    assert [reason for _, reason in decoded.bad] == [
        "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "no value",
        "nested thousands of levels deep",
    ]


def test_new_fields_and_wider_columns_are_reported() -> None:
    decoded = decode("a int", {"a": 1 << 40}, {"a": 1, "b": "x", "c": 1.5})

    assert decoded.new_fields == {"b": pa.string(), "c": pa.float64()}
    assert decoded.wider == {"a": pa.field("a", pa.int64())}


def test_rows_without_columns_are_counted() -> None:
    columns = pa.schema([])

    decoded = AnyDecoder().decode(pa.array([b'{"a": 1}', b'{"a": 2}']), columns)

    assert decoded.rows.num_rows == 2


def test_absent_field_is_distinguished_from_null() -> None:
    values = pa.array([b'{"a": null}', b"{}"])
    rows = AnyDecoder().decode(values, pa.schema([("a", pa.string())])).rows

    assert AnyDecoder().absent_fields(values, rows)["a"].tolist() == [False, True]


def test_text_is_inferred_as_in_json_unless_the_format_forbids_it() -> None:
    record = {"day": "2026-11-16", "digits": "7", "number": 7, "nested": {"days": ["2026-11-16"]}}
    sample = [json.dumps(record).encode()]
    inferred = AnyDecoder().infer(sample)
    plain = TextDecoder().infer(sample)

    assert inferred.field("day").type == pa.date32()
    assert inferred.field("digits").type == pa.string()
    assert plain.field("day").type == pa.string()
    assert plain.field("number").type == pa.int64()
    assert plain.field("nested").type == pa.struct([("days", pa.list_(pa.string()))])
    decoded = TextDecoder().decode(pa.array(sample, pa.binary()), pa.schema([]))
    assert decoded.new_fields["day"] == pa.string()


def test_record_without_a_value_is_bad() -> None:
    assert decode("a bigint", None).bad == ((0, "no value"),)
