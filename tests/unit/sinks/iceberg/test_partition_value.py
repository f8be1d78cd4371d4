"""Partition values, against the Iceberg specification."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
)
from tests.fixtures.table_folder import TableFolder, batch, rows_of

from icestream.sinks.iceberg.partition_terms import parse_partition_term
from icestream.sinks.iceberg.partitioning import apply_transform, field_path

if TYPE_CHECKING:
    from pathlib import Path

UTC = timezone.utc


def moment(*parts: int) -> datetime:
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - a column without a zone


@pytest.fixture
def place(tmp_path: Path) -> TableFolder:
    return TableFolder(tmp_path / "table")


SAMPLES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [34, -1, None]),
    "text": (pa.string(), ["iceberg", "äöü/?=& %", "", None]),
    "raw": (pa.binary(), [b"\0\xff", b"abc", None]),
    "day": (pa.date32(), [date(2024, 2, 29), date(1969, 12, 31), date(1, 1, 1), None]),
    "at": (
        pa.timestamp("us"),
        [moment(2024, 2, 29, 23, 59, 59), moment(1969, 12, 31, 23, 0, 0, 1), None],
    ),
    "zoned": (
        pa.timestamp("us", tz="UTC"),
        [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None],
    ),
    "price": (pa.decimal128(9, 2), [Decimal("-10.65"), Decimal("0.01"), None]),
    "whole": (pa.int32(), [-7, 7, None]),
    "ratio": (pa.float64(), [-1.5, 0.0, None]),
    "flag": (pa.bool_(), [True, False, None]),
}
# Expected by the Iceberg specification, in the order of the samples; None is the null partition.
EXPECTED: dict[str, list[Any]] = {
    "identity(long)": [34, -1, None],
    "bucket(16, long)": [3, 8, None],
    "truncate(10, long)": [30, -10, None],
    "identity(text)": ["iceberg", "äöü/?=& %", "", None],
    "truncate(2, text)": ["ic", "äö", "", None],
    "bucket(16, text)": [9, 1, 0, None],
    "truncate(1, raw)": ["00", "61", None],
    "identity(raw)": ["00ff", "616263", None],
    "years(day)": [54, -1, -1969, None],
    "months(day)": [649, -1, -23628, None],
    "days(day)": ["2024-02-29", "1969-12-31", "0001-01-01", None],
    "identity(day)": ["2024-02-29", "1969-12-31", "0001-01-01", None],
    "years(at)": [54, -1, None],
    "months(at)": [649, -1, None],
    "days(at)": ["2024-02-29", "1969-12-31", None],
    "hours(at)": [474791, -1, None],
    "identity(at)": ["2024-02-29T23:59:59", "1969-12-31T23:00:00.000001", None],
    "days(zoned)": ["1969-12-31", None],
    "hours(zoned)": [-1, None],
    "identity(zoned)": ["1969-12-31T23:59:59.999999+00:00", None],
    "identity(price)": ["-10.65", "0.01", None],
    "truncate(10, price)": ["-10.70", "0.00", None],
    "truncate(5, whole)": [-10, 5, None],
    "identity(ratio)": [-1.5, 0.0, None],
    "identity(flag)": [True, False, None],
    "void(text)": [None, None, None, None],
}


@pytest.mark.parametrize("term", EXPECTED)
def test_partition_values_follow_the_specification(place: TableFolder, term: str) -> None:
    column = parse_partition_term(term).column
    kind, samples = SAMPLES[column]
    columns = pa.schema([("n", pa.int64()), (column, kind)])
    rows = [{"n": n, column: value} for n, value in enumerate(samples)]
    files = place.writer(columns, term).write([batch(columns, *rows)])

    found: dict[int, Any] = {}
    for file in files:
        for row in rows_of(file):
            assert row[column] == samples[row["n"]]
            found[row["n"]] = file.metadata["partition"].get("1000")
    assert [found[n] for n in range(len(samples))] == EXPECTED[term]
    assert len(files) == len(set(EXPECTED[term]))


@pytest.mark.parametrize(
    ("kind", "value", "term", "partition"),
    [
        (pa.date32(), 3_000_000, "days(v)", "+10183-09-21"),
        (pa.date32(), 3_000_000, "v", "+10183-09-21"),
        (pa.date32(), -1_000_000, "v", "-0768-02-04"),
        (pa.timestamp("us"), 2**60, "days(v)", "+38504-08-17"),
        (pa.timestamp("us"), 2**60, "v", "+38504-08-17T21:30:06.846976"),
        (pa.timestamp("us", tz="UTC"), 0, "v", "1970-01-01T00:00:00+00:00"),
        (pa.timestamp("ns"), 1, "v", "1970-01-01T00:00:00.000000001"),
        (pa.time64("us"), 1, "v", "00:00:00.000001"),
        (pa.string(), "x" * 3_000, "v", "x" * 3_000),
        (pa.string(), "\ud7ff" * 100, "v", "\ud7ff" * 100),
        (pa.binary(), b"\xff" * 3_000, "v", "ff" * 3_000),
    ],
)
def test_any_value_can_be_a_partition(
    place: TableFolder, kind: pa.DataType, value: Any, term: str, partition: str
) -> None:
    columns = pa.schema([("v", kind)])
    rows = pa.record_batch([pa.array([value], kind)], schema=columns)
    [file] = place.writer(columns, term).write([rows])

    assert file.metadata["partition"] == {"1000": partition}
    assert len(place.files()) == 1


def test_field_is_found_through_structs_by_its_id() -> None:
    inner = StructType(NestedField(5, "x", LongType()), NestedField(6, "y", StringType()))
    struct = StructType(
        NestedField(1, "id", LongType()),
        NestedField(2, "x", StructType(NestedField(4, "deep", inner))),
    )

    assert field_path(struct, 1) == [0]
    assert field_path(struct, 2) == [1]
    assert field_path(struct, 6) == [1, 0, 1]
    assert field_path(struct, 99) == []


def test_partition_by_a_member_of_a_struct_takes_null_structs_as_null(place: TableFolder) -> None:
    columns = pa.schema([("n", pa.int64()), ("at", pa.struct([("city", pa.string())]))])
    rows: list[dict[str, Any]] = [
        {"n": 0, "at": {"city": "Oslo"}},
        {"n": 1, "at": None},
        {"n": 2, "at": {"city": None}},
    ]
    files = place.writer(columns, "at.city").write([batch(columns, *rows)])

    found = {row["n"]: file.metadata["partition"] for file in files for row in rows_of(file)}
    assert found == {0: {"1000": "Oslo"}, 1: {}, 2: {}}


def test_several_transforms_make_one_partition_together(place: TableFolder) -> None:
    columns = pa.schema([("n", pa.int64()), ("day", pa.date32())])
    rows = [{"n": n, "day": date(2024, 1, 1 + n // 2)} for n in range(4)]
    files = place.writer(columns, "days(day)", "truncate(2, n)").write([batch(columns, *rows)])

    assert {
        (f.metadata["partition"]["1000"], f.metadata["partition"]["1001"]): f.rows for f in files
    } == {
        ("2024-01-01", 0): 2,
        ("2024-01-02", 2): 2,
    }


@pytest.mark.parametrize("kind", [TimestampNanoType(), TimestamptzNanoType()], ids=str)
@pytest.mark.parametrize(
    "transform",
    [
        YearTransform(),
        MonthTransform(),
        DayTransform(),
        HourTransform(),
        BucketTransform(1024),
        VoidTransform(),
    ],
    ids=str,
)
def test_nanoseconds_have_the_partition_that_the_specification_says(
    kind: TimestampNanoType | TimestamptzNanoType, transform: Any
) -> None:
    hour, day = 3_600_000_000_000, 86_400_000_000_000
    values = [-1, 0, 1, -hour, -hour - 1, -day, -day - 1, 1_700_000_000_123_456_789, None]
    values += [-(2**63), -(2**63) + 999, 2**63 - 1]
    column = pa.array(values, pa.timestamp("ns", None if kind == TimestampNanoType() else "UTC"))

    found = apply_transform(column, kind, transform)

    one_by_one = transform.transform(kind)
    expected = [None if value is None else one_by_one(value) for value in values]
    assert found.to_pylist() == expected
