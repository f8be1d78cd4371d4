"""Every type, read back equal by Spark, PyIceberg and DuckDB, and found by filters on it."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append, by_duckdb

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("single", pa.float32()),
        ("ratio", pa.float64()),
        ("price", pa.decimal128(38, 10)),
        ("cents", pa.decimal128(7, 2)),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", tz="UTC")),
        ("order id", pa.int64()),
        ("place", pa.struct([("lat", pa.float64()), ("tags", pa.list_(pa.string()))])),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int32())]))),
        ("by", pa.map_(pa.string(), pa.int64())),
    ]
)
FIRST: dict[str, Any] = {
    "id": -(2**63),
    "small": -(2**31),
    "single": -1.5,
    "ratio": -1e300,
    "price": Decimal("-9999999999999999999999999999.9999999999"),
    "cents": Decimal("-0.01"),
    "flag": False,
    "text": "Å ünïcode \U0001f9ca and a long tail past sixteen characters",
    "raw": b"\xff\xff\xff" * 10,
    "day": date(1, 1, 1),
    "at": datetime(1900, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - a column without a zone
    "zoned": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
    "order id": 1,
    "place": {"lat": 59.9, "tags": ["a", None]},
    "items": [{"sku": "x", "qty": 1}, {"sku": None, "qty": None}],
    "by": [("k", 1), ("l", None)],
}
SECOND: dict[str, Any] = {
    "id": 2**63 - 1,
    "small": 2**31 - 1,
    "single": 1.5,
    "ratio": 1e300,
    "price": Decimal("0.0000000001"),
    "cents": Decimal("99999.99"),
    "flag": True,
    "text": "",
    "raw": b"",
    "day": date(9999, 12, 31),
    "at": datetime(2100, 1, 1),  # noqa: DTZ001 - a column without a zone
    "zoned": datetime(2100, 1, 1, tzinfo=timezone.utc),
    "order id": 2,
    "place": {"lat": None, "tags": []},
    "items": [],
    "by": [],
}
NOTHING: dict[str, Any] = {**dict.fromkeys(SCHEMA.names), "order id": 3}
# Filters that find the first row alone: a bound that is off by anything loses it.
FILTERS = {
    "id": "id <= -9223372036854775807",
    "small": "small = -2147483648",
    "single": "single <= -1.5",
    "ratio": "ratio < -1e299",
    "price": "price < -9999999999999999999999999999.9999999998",
    "cents": "cents = -0.01",
    "flag": "flag = false",
    "text": "text > 'Å ünïcode'",
    "raw": "raw > X'FFFF'",
    "day": "day <= date '0001-01-01'",
    "at": "at <= timestamp_ntz '1900-01-01 00:00:00.000001'",
    "zoned": "zoned < timestamp '1970-01-01 00:00:00Z'",
    "order id": "`order id` = 1",
    "place": "place.lat > 59",
    "items": "get(items, 0).sku = 'x'",
    "by": "`by`['k'] = 1",
}


def by_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["order id"]))


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_survives_a_round_trip_and_is_found_by_filters(lake: Lake, version: int) -> None:
    expected = [FIRST, SECOND, NOTHING]
    for epoch, row in enumerate(expected):
        sink = lake.sink("t", format_version=version)
        append(lake, sink, pa.Table.from_pylist([row], schema=SCHEMA), epoch)

    assert by_order(lake.rows("t")) in (
        expected,
        # PyIceberg 0.12 reads a list of structs that is null as an empty one; Spark below does not.
        [FIRST, SECOND, {**NOTHING, "items": []}],
    )
    by_spark = by_order([row.asDict(recursive=True) for row in lake.sql("SELECT * FROM lake.db.t")])
    in_spark = [
        {**row, "by": None if row["by"] is None else dict(row["by"]), "raw": as_array(row["raw"])}
        for row in expected
    ]
    for found in by_spark:
        found["zoned"] = found["zoned"] and found["zoned"].astimezone(timezone.utc)
    assert by_spark == in_spark
    for column, condition in FILTERS.items():
        rows = lake.sql(f"SELECT `order id` FROM lake.db.t WHERE {condition}")  # noqa: S608
        assert [row[0] for row in rows] == [1], column
    assert by_duckdb(
        lake,
        "t",
        'SELECT id, price, "text", "raw", "day", "at", place.lat, items[1].sku, "by"[\'k\'] '
        "FROM rows WHERE order_x20id = 1",
    ) == [
        (
            *(FIRST[name] for name in ("id", "price", "text", "raw", "day", "at")),
            59.9,
            "x",
            1,
        )
    ]
    assert lake.catalog.client().load_table(("db", "t")).format_version == version


def as_array(value: bytes | None) -> bytearray | None:
    return None if value is None else bytearray(value)


def test_nanoseconds_are_kept_by_format_3_and_truncated_by_format_2(lake: Lake) -> None:
    rows = pa.table({"n": [1], "at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))})
    append(lake, lake.sink("v2", format_version=2), rows)
    append(lake, lake.sink("v3", format_version=3), rows)

    read = {
        name: lake.catalog.client().load_table(("db", name)).scan().to_arrow()["at"].cast("int64")
        for name in ("v2", "v3")
    }
    assert read["v2"].to_pylist() == [1_700_000_000_123_456]
    assert read["v3"].to_pylist() == [1_700_000_000_123_456_789]
