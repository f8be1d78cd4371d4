"""Whatever PostgreSQL prints is read as the value that it represents."""

from __future__ import annotations

import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.sources.postgres_cdc.types import PgType, TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

BOOL, BYTEA, BIGINT, INTEGER, TEXT, DOUBLE = 16, 17, 20, 23, 25, 701
DATE, TIMESTAMP, TIMESTAMPTZ, UUID, MONEY, NUMERIC = 1082, 1114, 1184, 2950, 790, 1700
# Arrays of integers, texts, dates, doubles, timestamps with time zone, bytes.
ARRAYS = {INTEGER: 1007, TEXT: 1009, DATE: 1182, DOUBLE: 1022, TIMESTAMPTZ: 1185, BYTEA: 1001}
NUMERIC_12_2 = ((12 << 16) | 2) + 4
NUMERIC_38_10 = ((38 << 16) | 10) + 4


def print_timestamp(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(" ")
    # PostgreSQL omits trailing zeros of a fraction.
    text = text.rstrip("0") if "." in text else text
    return text + "+00" if value.tzinfo else text


def print_money(cents: Decimal) -> str:
    return f"{'-' if cents < 0 else ''}${abs(cents):,.2f}"


def print_double(value: float) -> str:
    names = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
    return names.get(value, repr(value))


def amounts(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


KINDS: dict[str, tuple[int, int, st.SearchStrategy[Any], Callable[[Any], str]]] = {
    "bool": (BOOL, -1, st.booleans(), lambda value: "t" if value else "f"),
    "bytea": (BYTEA, -1, st.binary(max_size=9), lambda value: f"\\x{value.hex()}"),
    "bigint": (BIGINT, -1, st.integers(-(2**63), 2**63 - 1), str),
    "integer": (INTEGER, -1, st.integers(-(2**31), 2**31 - 1), str),
    "double": (DOUBLE, -1, st.floats(allow_nan=False), print_double),
    "text": (TEXT, -1, st.text(st.characters(codec="utf-8", exclude_characters="\0")), str),
    "date": (DATE, -1, st.dates(), date.isoformat),
    "timestamp": (TIMESTAMP, -1, st.datetimes(), print_timestamp),
    "timestamptz": (
        TIMESTAMPTZ,
        -1,
        st.datetimes(timezones=st.just(timezone.utc)),
        print_timestamp,
    ),
    "uuid": (UUID, -1, st.uuids(), str),
    "money": (
        MONEY,
        -1,
        st.integers(-(2**63), 2**63 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        print_money,
    ),
    "numeric(12,2)": (NUMERIC, NUMERIC_12_2, amounts(12, 2), lambda value: f"{value:f}"),
    "numeric(38,10)": (NUMERIC, NUMERIC_38_10, amounts(38, 10), lambda value: f"{value:f}"),
}


def read(texts: list[str | None], oid: int, typmod: int = -1) -> tuple[list[Any], int]:
    types = TypeCatalog()
    # A slice, like a part of a larger column.
    given_texts = pa.array(["?", *texts, None], pa.string()).slice(1, len(texts))
    values, nulled = types.from_text(given_texts, oid, typmod)
    assert values.type == types.arrow_type(oid, typmod)
    values.validate(full=True)
    return values.to_pylist(), nulled


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_values_survive_a_round_trip(name: str, data: st.DataObject) -> None:
    oid, typmod, strategy, printed = KINDS[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=6))
    texts = [None if value is None else printed(value) for value in values]

    assert read(texts, oid, typmod) == (values, 0)


@pytest.mark.parametrize(
    ("name", "out_of_range"),
    [
        ("date", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "294276-12-31"]),
        ("timestamp", ["infinity", "-infinity", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00"]),
        ("timestamptz", ["infinity", "0001-12-31 23:00:00.5+00 BC", "10000-01-01 00:00:00+00"]),
        ("numeric(12,2)", ["NaN"]),
        ("money", ["1.234,56 EUR"]),
        ("bytea", ["abc", "", "\\000"]),
    ],
)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_values_that_the_type_cannot_hold_are_null_and_counted(
    name: str, out_of_range: list[str], data: st.DataObject
) -> None:
    oid, typmod, strategy, printed = KINDS[name]
    items = data.draw(st.lists(st.none() | strategy | st.sampled_from(out_of_range), max_size=6))
    texts = [item if item is None or item in out_of_range else printed(item) for item in items]

    values, nulled = read(texts, oid, typmod)

    assert values == [None if item in out_of_range else item for item in items]
    assert nulled == sum(item in out_of_range for item in items)


def print_array(values: list[str | None]) -> str:
    """Print as PostgreSQL's array_out does: quotes where they are needed."""
    return "{" + ",".join("NULL" if value is None else quoted(value) for value in values) + "}"


def quoted(value: str) -> str:
    bare = value and value.upper() != "NULL" and not set(value) & set('{}",\\ \t\n\r\v\f')
    if bare:
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.mark.parametrize("name", ["integer", "text", "date", "double", "timestamptz", "bytea"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_arrays_survive_a_round_trip(name: str, data: st.DataObject) -> None:
    oid, _, strategy, printed = KINDS[name]
    lists = data.draw(st.lists(st.none() | st.lists(st.none() | strategy, max_size=4), max_size=5))
    texts = [
        None
        if values is None
        else print_array([None if value is None else printed(value) for value in values])
        for values in lists
    ]

    assert read(texts, ARRAYS[oid]) == (lists, 0)


@settings(deadline=None, max_examples=50)
@given(lists=st.lists(st.lists(st.text('{}[]",\\ =:;NULnul\n'), max_size=4), max_size=4))
def test_texts_full_of_special_characters_survive_in_arrays(lists: list[list[str]]) -> None:
    assert read([print_array(list(values)) for values in lists], ARRAYS[TEXT]) == (lists, 0)


def test_array_with_other_bounds_keeps_its_elements_and_a_nested_array_is_null() -> None:
    texts = ["[0:1]={5,6}", "{{1,2},{3,4}}", "{}", "[-1:0][2:3]={{1,2},{3,4}}", None]

    assert read([*texts], ARRAYS[INTEGER]) == ([[5, 6], None, [], None, None], 2)


def test_element_that_the_type_cannot_hold_is_counted() -> None:
    assert read(["{infinity,2024-02-29}"], ARRAYS[DATE]) == ([[None, date(2024, 2, 29)]], 1)


def test_user_defined_types_resolve_to_their_base_types() -> None:
    types = TypeCatalog(
        [
            PgType(20001, "price", "d", "N", 0, NUMERIC, NUMERIC_12_2, ","),
            PgType(20002, "sale_price", "d", "N", 0, 20001, -1, ","),
            PgType(20003, "_sale_price", "b", "A", 20002, 0, -1, ","),
            PgType(20004, "mood", "e", "E", 0, 0, -1, ","),
            PgType(20005, "_mood", "b", "A", 20004, 0, -1, ","),
            PgType(603, "box", "b", "G", 600, 0, -1, ";"),
            PgType(1020, "_box", "b", "A", 603, 0, -1, ","),
            PgType(22, "int2vector", "b", "A", 21, 0, -1, ","),
        ]
    )

    assert types.arrow_type(20002) == pa.decimal128(12, 2)
    assert types.arrow_type(20003) == pa.list_(pa.decimal128(12, 2))
    assert types.arrow_type(20005) == pa.list_(pa.string())
    assert types.arrow_type(22) == pa.string()
    boxes, _ = types.from_text(pa.array(["{(1,1),(0,0);(2,2),(0,0)}"]), 1020)
    assert boxes.to_pylist() == [["(1,1),(0,0)", "(2,2),(0,0)"]]


def test_only_unknown_types_are_queried() -> None:
    types = TypeCatalog([PgType(20004, "mood", "e", "E", 0, 0, -1, ",")])

    assert types.unknown([NUMERIC, 1231, 25, 20004, 20009, 1020, 20009]) == [1020, 20009]


@pytest.mark.parametrize(
    ("typmod", "kind"),
    [
        (-1, pa.string()),
        (NUMERIC_12_2, pa.decimal128(12, 2)),
        (((38 << 16) | 0) + 4, pa.decimal128(38, 0)),
        (((39 << 16) | 2) + 4, pa.string()),
        (((3 << 16) | 5) + 4, pa.string()),
        # A negative scale has 11 bits.
        (((5 << 16) | (-2 & 0x7FF)) + 4, pa.string()),
    ],
)
def test_numeric_is_decimal_where_iceberg_can_hold_it(typmod: int, kind: pa.DataType) -> None:
    assert TypeCatalog().arrow_type(NUMERIC, typmod) == kind


def test_nil_uuid_is_a_uuid() -> None:
    nobody = "00000000-0000-0000-0000-000000000000"

    assert read([None, nobody, None], UUID) == ([None, uuid.UUID(int=0), None], 0)
