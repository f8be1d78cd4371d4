"""Every way to partition a table, read back by others with their own pruning."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("country", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.struct([("zone", pa.string())])),
    ]
)


def rows() -> pa.Table:
    timestamps = [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
        datetime(2024, 2, 29, 23, 0, tzinfo=timezone.utc),
        datetime(2024, 3, 1, 0, 30, tzinfo=timezone.utc),
        None,
    ]
    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "ts": timestamps[n % 4],
                "day": None if n % 4 == 3 else date(1969 + n % 4, 12, 31),
                "country": [None, "NO", "a/b c=d%&ü", ""][n % 4],
                "price": None if n % 4 == 0 else -n,
                "at": None if n % 4 == 1 else {"zone": f"z{n % 2}"},
            }
            for n in range(40)
        ],
        schema=SCHEMA,
    )


def spec_of(lake: Lake, table: str) -> list[tuple[str, str]]:
    spec = lake.catalog.client().load_table(("db", table)).spec()
    return [(field.name, str(field.transform)) for field in spec.fields]


def read_with_pruning(lake: Lake, table: str) -> None:
    """Filters on partition columns find exactly the rows, in Spark and in PyIceberg."""
    assert sorted(row["id"] for row in lake.rows(table)) == list(range(40))
    for spark_filter, py_filter, expected in [
        ("ts < timestamp '1970-01-01'", "ts < '1970-01-01T00:00:00+00:00'", range(0, 40, 4)),
        ("ts >= timestamp '2024-03-01'", "ts >= '2024-03-01T00:00:00+00:00'", range(2, 40, 4)),
        ("ts IS NULL", "ts is null", range(3, 40, 4)),
        ("day = date '1969-12-31'", "day = '1969-12-31'", range(0, 40, 4)),
        ("country IS NULL", "country is null", range(0, 40, 4)),
        ("country = ''", "country = ''", range(3, 40, 4)),
        ("country = 'a/b c=d%&ü'", "country = 'a/b c=d%&ü'", range(2, 40, 4)),
        ("id = 17", "id = 17", [17]),
        ("price = -21", "price = -21.00", [21]),
    ]:
        found = lake.sql(f"SELECT id FROM lake.db.{table} WHERE {spark_filter}")  # noqa: S608
        assert sorted(row.id for row in found) == list(expected), spark_filter
        scan = lake.catalog.client().load_table(("db", table)).scan(row_filter=py_filter)
        assert sorted(scan.to_arrow()["id"].to_pylist()) == list(expected), py_filter


@pytest.mark.parametrize(
    ("options", "spec", "partitions"),
    [
        ({"partitioning": "none"}, [], 1),
        (
            {"partitioning": "identity", "partition_fields": ["country", "day"]},
            [("country", "identity"), ("day", "identity")],
            4,
        ),
        (
            {"partitioning": "bucket", "partition_fields": ["id", "country"], "num_buckets": 4},
            [("id_bucket", "bucket[4]"), ("country_bucket", "bucket[4]")],
            None,
        ),
        (
            {"partitioning": "time", "partition_fields": ["ts"], "time_granularity": "year"},
            [("ts_year", "year")],
            3,
        ),
        (
            {"partitioning": "time", "partition_fields": ["ts"], "time_granularity": "month"},
            [("ts_month", "month")],
            4,
        ),
        (
            {"partitioning": "time", "partition_fields": ["ts", "day"]},
            [("ts_day", "day"), ("day_day", "day")],
            4,
        ),
        (
            {"partitioning": "time", "partition_fields": ["ts"], "time_granularity": "hour"},
            [("ts_hour", "hour")],
            4,
        ),
        (
            {"partitioning": ["days(ts)", "bucket(2, id)", "truncate(1, country)", "at.zone"]},
            [
                ("ts_day", "day"),
                ("id_bucket", "bucket[2]"),
                ("country_trunc", "truncate[1]"),
                ("at_zone", "identity"),
            ],
            None,
        ),
        (
            {"partitioning": ["truncate(10, price)", "months(day)"], "format_version": 2},
            [("price_trunc", "truncate[10]"), ("day_month", "month")],
            None,
        ),
    ],
    ids=["none", "identity", "bucket", "year", "month", "day", "hour", "list", "list-v2"],
)
def test_partitions_are_pruned_by_every_reader(
    lake: Lake,
    options: dict[str, Any],
    spec: list[tuple[str, str]],
    partitions: int | None,
) -> None:
    commit = append(lake, lake.sink("t", **options), rows())

    assert spec_of(lake, "t") == spec
    if partitions is not None:
        assert commit.files == partitions
    assert len(lake.sql("SELECT * FROM lake.db.t.files")) == commit.files
    read_with_pruning(lake, "t")


def test_pruning_reads_only_the_files_of_the_partition(lake: Lake) -> None:
    sink = lake.sink("t", partitioning=["days(ts)"])
    append(lake, sink, rows())
    table = lake.catalog.client().load_table(("db", "t"))

    early = list(table.scan(row_filter="ts < '1970-01-01T00:00:00+00:00'").plan_files())
    assert [task.file.record_count for task in early] == [10]
    partitions = lake.sql("SELECT partition.ts_day AS day, record_count FROM lake.db.t.partitions")
    assert {row.day: row.record_count for row in partitions} == {
        date(1969, 12, 31): 10,
        date(2024, 2, 29): 10,
        date(2024, 3, 1): 10,
        None: 10,
    }


def test_existing_spec_of_a_table_is_used(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql(
        "CREATE TABLE lake.db.t (id bigint, ts timestamp, country string) USING iceberg "
        "PARTITIONED BY (country, bucket(4, id))"
    )
    some = rows().select(["id", "ts", "country"])
    append(lake, lake.sink("t", partitioning="table_default"), some, 0)
    append(lake, lake.sink("t"), some, 1)
    append(lake, lake.sink("t", partitioning=["bucket(4, id)", "identity(country)"]), some, 2)

    assert len(lake.rows("t")) == 120
    assert len(lake.sql("SELECT * FROM lake.db.t WHERE country = 'NO'")) == 30
    assert len(lake.catalog.client().load_table(("db", "t")).specs()) == 1


@pytest.mark.parametrize(
    ("term", "partitions"),
    [("hours(ts)", [-2, -1, 0]), ("days(ts)", [date(1969, 12, 31), date(1970, 1, 1)])],
)
def test_nanoseconds_are_partitioned_by_hour_and_day(
    lake: Lake, term: str, partitions: list[Any]
) -> None:
    nanos = [-3_600_000_000_001, -1, 0, 1_999]
    given = pa.table({"ts": pa.array(nanos, pa.timestamp("ns", "UTC"))})
    append(lake, lake.sink("t", partitioning=[term], format_version=3), given)

    table = lake.catalog.client().load_table(("db", "t"))
    found = {task.file.partition[0] for task in table.scan().plan_files()}
    days = {date(1970, 1, 1) + timedelta(days=value) for value in found}
    assert sorted(days if term == "days(ts)" else found) == partitions
