"""Partitions that change with the file: old files stay, new ones follow."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append, mark, written

from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("country", pa.string()),
    ]
)


def rows(first: int = 0) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "ts": datetime(2024, 1, 1 + n % 3, n % 24, tzinfo=timezone.utc),
                "country": ["NO", "SE"][n % 2],
            }
            for n in range(first, first + 12)
        ],
        schema=SCHEMA,
    )


def fields(lake: Lake) -> list[tuple[str, str, int]]:
    spec = lake.catalog.client().load_table(("db", "t")).spec()
    return [(field.name, str(field.transform), field.field_id) for field in spec.fields]


def specs(lake: Lake) -> int:
    return len(lake.catalog.client().load_table(("db", "t")).specs())


@pytest.mark.parametrize("version", [2, 3])
def test_changed_partitioning_changes_the_table_and_old_data_stays_readable(
    lake: Lake, version: int
) -> None:
    """Through six layouts, on both formats; each spec has its files, and all are pruned."""
    layouts: list[tuple[object, list[tuple[str, str, int]]]] = [
        (["days(ts)"], [("ts_day", "day", 1000)]),
        (
            ["hours(ts)", "bucket(4, id)"],
            [("ts_hour", "hour", 1001), ("id_bucket", "bucket[4]", 1002)],
        ),
        (["bucket(8, id)"], [("id_bucket_8", "bucket[8]", 1003)]),
        ("none", []),
        (["country"], [("country", "identity", 1004)]),
        # A field that the table had before comes back with its name and id.
        (["bucket(4, id)"], [("id_bucket", "bucket[4]", 1002)]),
    ]
    for epoch, (partitioning, expected) in enumerate(layouts):
        sink = lake.sink("t", partitioning=partitioning, format_version=version)
        append(lake, sink, rows(12 * epoch), epoch)
        assert fields(lake) == expected, partitioning

    assert specs(lake) == 6
    assert sorted(row["id"] for row in lake.rows("t")) == list(range(72))
    for condition, found in [("id = 17", 1), ("country = 'NO'", 36), ("id % 12 = 3", 6)]:
        assert len(lake.sql(f"SELECT * FROM lake.db.t WHERE {condition}")) == found  # noqa: S608
    day = "ts < timestamp '2024-01-02 00:00:00Z'"
    assert len(lake.sql(f"SELECT * FROM lake.db.t WHERE {day}")) == 24  # noqa: S608
    by_spec = lake.sql("SELECT spec_id, sum(record_count) AS n FROM lake.db.t.files GROUP BY 1")
    assert {row.spec_id: row.n for row in by_spec} == dict.fromkeys(range(6), 12)
    assert len(lake.sql("SELECT partition.id_bucket FROM lake.db.t.partitions")) > 5


def test_shorthand_partitioning_changes_the_spec(lake: Lake) -> None:
    append(lake, lake.sink("t"), rows())
    time = {"partitioning": "time", "partition_fields": ["ts"], "time_granularity": "month"}
    append(lake, lake.sink("t", **time), rows(12), 1)
    bucket = {"partitioning": "bucket", "partition_fields": ["id", "country"], "num_buckets": 2}
    append(lake, lake.sink("t", **bucket), rows(24), 2)

    assert [(name, transform) for name, transform, _ in fields(lake)] == [
        ("id_bucket", "bucket[2]"),
        ("country_bucket", "bucket[2]"),
    ]
    assert sorted(row["id"] for row in lake.rows("t")) == list(range(36))


@pytest.mark.parametrize("options", [{}, {"partitioning": "table_default"}])
def test_file_without_partition_fields_keeps_the_spec(lake: Lake, options: dict[str, str]) -> None:
    append(lake, lake.sink("t", partitioning=["days(ts)"]), rows())
    append(lake, lake.sink("t", **options), rows(12), 1)

    assert fields(lake) == [("ts_day", "day", 1000)]
    assert specs(lake) == 1


def test_new_partition_field_may_be_of_a_new_column(lake: Lake) -> None:
    append(lake, lake.sink("t"), rows())
    more = rows(12).append_column("kind", pa.array(["a", "b"] * 6))
    append(lake, lake.sink("t", partitioning=["kind"]), more, 1)

    assert [name for name, _, _ in fields(lake)] == ["kind"]
    assert len(lake.sql("SELECT * FROM lake.db.t WHERE kind = 'a'")) == 6


def test_column_named_like_a_partition_field_is_distinguished(lake: Lake) -> None:
    named = rows().append_column("ts_day", pa.array(["x"] * 12))
    append(lake, lake.sink("t"), named)
    append(lake, lake.sink("t", partitioning=["days(ts)"]), named, 1)

    assert fields(lake) == [("ts_day_2", "day", 1000)]
    assert len(lake.sql("SELECT * FROM lake.db.t WHERE ts_day = 'x'")) == 24


def test_incompatible_term_is_refused_and_nothing_is_written(lake: Lake) -> None:
    append(lake, lake.sink("t"), rows())
    for partitioning, what in [
        (
            ["days(country)"],
            "partitioning: column 'country' is a string, which 'day' can't transform",
        ),
        (["gone"], "partitioning: the rows have no column 'gone'"),
    ]:
        with pytest.raises(SchemaMismatchError) as caught:
            append(lake, lake.sink("t", partitioning=partitioning), rows(12), 1)
        assert caught.value.what == what
        assert caught.value.where == f"pipeline 'events', table {lake.name}.db.t"
    assert len(lake.rows("t")) == 12


def test_files_of_the_old_spec_may_be_committed_after_the_change(lake: Lake) -> None:
    """Someone changes the partitions between writing and committing, and again later."""
    sink = lake.sink("t", partitioning=["days(ts)"])
    append(lake, sink, rows())
    files = written(sink, rows(12))
    lake.sql("ALTER TABLE lake.db.t REPLACE PARTITION FIELD ts_day WITH country")
    sink.commit(files, mark(1, rows=12))
    later = written(sink, rows(24))
    assert {file.metadata["spec-id"] for file in later} == {1}, "the next batch follows them"
    sink.commit(later, mark(2, rows=12))

    assert sorted(row["id"] for row in lake.rows("t")) == list(range(36))
    assert len(lake.sql("SELECT * FROM lake.db.t WHERE country = 'NO'")) == 18


def test_new_column_named_like_a_partition_field_is_refused(lake: Lake) -> None:
    """Iceberg can't hold both; under another name the column is welcome."""
    append(lake, lake.sink("t", partitioning=["days(ts)"]), rows())
    append(lake, lake.sink("t", partitioning="none"), rows(12), 1)
    named = rows(24).append_column("ts_day", pa.array(["x"] * 12))
    with pytest.raises(SchemaMismatchError) as caught:
        append(lake, lake.sink("t"), named, 2)

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.t: column 'ts_day' can't be added: a partition "
        "field of the table has that name\n"
        "  Convert the stream with a `cast` transform, or alter the table."
    )
    append(lake, lake.sink("t"), named.rename_columns([*SCHEMA.names, "the_day"]), 2)
    assert len(lake.rows("t")) == 36


def test_new_table_distinguishes_columns_and_partition_fields(lake: Lake) -> None:
    named = rows().append_column("ts_day", pa.array(["x"] * 12))
    append(lake, lake.sink("t", partitioning=["days(ts)", "country"]), named)

    assert [name for name, _, _ in fields(lake)] == ["ts_day_2", "country"]
    assert len(lake.sql("SELECT * FROM lake.db.t WHERE ts_day = 'x'")) == 12
