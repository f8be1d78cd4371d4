"""Columns that are too narrow for a value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from icestream.formats.inference import join_columns, wider_columns, widest
from icestream.formats.json import JsonDecoder

INT, LONG = pa.int32(), pa.int64()


def decoded(columns: pa.Schema, *records: Any) -> dict[str, pa.Field]:
    values = pa.array([json.dumps(record).encode() for record in records], pa.binary())
    return dict(JsonDecoder().decode(values, columns).wider)


@pytest.mark.parametrize(
    ("kind", "value", "wider"),
    [
        (INT, 1 << 31, LONG),
        (INT, -(1 << 31) - 1, LONG),
        (pa.decimal128(5, 2), 1234.5, pa.decimal128(6, 2)),
        (pa.decimal128(5, 2), -1234567, pa.decimal128(9, 2)),
        (
            pa.struct([("n", INT), ("s", pa.string())]),
            {"n": 1 << 40},
            pa.struct([("n", LONG), ("s", pa.string())]),
        ),
        (pa.list_(INT), [1, 1 << 40, None], pa.list_(LONG)),
        (pa.map_(pa.string(), INT), {"a": 1, "b": 1 << 40}, pa.map_(pa.string(), LONG)),
    ],
)
def test_value_that_is_too_wide_reports_the_type_it_needs(
    kind: pa.DataType, value: Any, wider: pa.DataType
) -> None:
    columns = pa.schema([("id", LONG), ("x", kind)])

    assert decoded(columns, {"id": 1, "x": value}) == {"x": pa.field("x", wider)}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INT, 1.5),
        (INT, "text"),
        (INT, 1 << 64),
        (LONG, 1.5),
        (LONG, 1 << 64),
        (pa.decimal128(5, 2), 1.125),
        (pa.decimal128(5, 2), 10**37),
        (pa.bool_(), 1),
        (pa.list_(INT), [1 << 40, "text"]),
        (pa.struct([("n", INT)]), {"n": [1]}),
    ],
)
def test_value_that_no_wider_type_takes_is_bad(kind: pa.DataType, value: Any) -> None:
    columns = pa.schema([("x", kind)])
    outcome = JsonDecoder().decode(
        pa.array([json.dumps({"x": value}).encode()], pa.binary()), columns
    )

    assert len(outcome.bad) == 1
    assert outcome.wider == {}


def test_values_that_fit_widen_nothing() -> None:
    columns = pa.schema([("n", INT), pa.field("id", LONG, nullable=False)])

    assert decoded(columns, {"n": 1, "id": 1}, {"n": None, "id": 2, "new": 1 << 40}) == {}


def test_missing_value_makes_a_column_optional() -> None:
    columns = pa.schema([pa.field("id", LONG, nullable=False), ("n", INT)])

    assert decoded(columns, {"n": 1}) == {"id": pa.field("id", LONG)}


def test_record_that_stays_bad_widens_nothing() -> None:
    columns = pa.schema([("n", INT), ("flag", pa.bool_())])

    assert decoded(columns, {"n": 1 << 40, "flag": "maybe"}) == {}


def test_block_reports_the_widest_type_of_its_records() -> None:
    columns = pa.schema([("d", pa.decimal128(3, 0)), ("n", INT)])

    assert decoded(columns, {"d": 12345}, {"d": 1234567, "n": 1}, {"n": 1 << 40}) == {
        "d": pa.field("d", pa.decimal128(7, 0)),
        "n": pa.field("n", LONG),
    }


def test_wider_declared_type_is_reported_at_every_depth() -> None:
    columns = pa.schema(
        [
            ("n", INT),
            ("f", pa.float32()),
            ("text", pa.string()),
            ("s", pa.struct([("n", INT), ("m", INT)])),
            ("wide", LONG),
        ]
    )
    declared = {
        "n": LONG,
        "f": pa.float64(),
        "text": LONG,
        "s": pa.struct([("m", LONG), ("new", LONG)]),
        "wide": INT,
        "new": LONG,
    }

    assert wider_columns(columns, declared) == {
        "n": pa.field("n", LONG),
        "f": pa.field("f", pa.float64()),
        "s": pa.field("s", pa.struct([("n", INT), ("m", LONG)])),
    }


def test_types_that_cannot_widen_to_each_other_have_no_widest() -> None:
    assert widest(LONG, pa.float64()) is None
    assert widest(pa.decimal128(9, 2), pa.decimal128(9, 3)) is None
    assert widest(pa.struct([("a", INT)]), pa.struct([("a", pa.string())])) is None
    assert widest(pa.map_(INT, INT), pa.map_(LONG, INT)) is None


def test_wider_columns_of_tasks_are_joined() -> None:
    one = {"n": pa.field("n", LONG, nullable=False)}
    other = {"n": pa.field("n", INT), "m": pa.field("m", LONG)}

    assert join_columns(one, other) == {"n": pa.field("n", LONG), "m": pa.field("m", LONG)}
