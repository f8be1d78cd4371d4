"""Filters find every row, and a DELETE deletes exactly the rows of its filter."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
from tests.fixtures.sink_batches import append

import icestream.sinks.iceberg.writer as writer_module

if TYPE_CHECKING:
    import pytest
    from tests.fixtures.spark import Lake


def append_row_groups(lake: Lake, monkeypatch: pytest.MonkeyPatch, *groups: pa.Table) -> None:
    """Append one data file with a row group for each table."""
    monkeypatch.setattr(writer_module, "ROW_GROUP_BYTES", 1)
    append(lake, lake.sink("t"), pa.concat_tables(groups))
    [files] = lake.sql("SELECT count(*) FROM lake.db.t.files")
    assert files[0] == 1


def test_text_beyond_the_limit_of_parquet_statistics_hides_no_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrow keeps no minimum and maximum of the second row group: one value is too long.
    append_row_groups(
        lake,
        monkeypatch,
        pa.table({"s": ["p-01", "p-02"]}),
        pa.table({"s": ["p-13", "p-14", "p-99" * 1_500]}),
    )

    by_spark = lake.sql("SELECT count(*) FROM lake.db.t WHERE s >= 'p-13'")
    assert by_spark[0][0] == 3
    scan = lake.catalog.client().load_table(("db", "t")).scan("s >= 'p-13'")
    assert scan.to_arrow().num_rows == 3
    lake.sql("DELETE FROM lake.db.t WHERE s >= 'p-13'")
    assert [row["s"] for row in lake.rows("t")] == ["p-01", "p-02"]


def test_text_before_the_surrogates_is_found(lake: Lake) -> None:
    texts = ["a" * 15 + last + "b" for last in ("\ud7ff", "\ue000", "\uffff", "\U0010ffff")]
    texts.append("\U0010ffff" * 17)
    sink = lake.sink("t")
    for epoch, text in enumerate(texts):  # each the greatest text of its file
        append(lake, sink, pa.table({"s": [text]}), epoch)

    for text in texts:
        found = lake.spark.table(f"{lake.name}.db.t").where(f"s = '{text}'").collect()
        assert [row.s for row in found] == [text]


def test_uuid_of_any_sign_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # Java orders UUIDs as two signed numbers, Parquet as unsigned bytes.
    ids = [
        uuid.UUID(f"{high}000000-0000-4000-{low}000-000000000000")
        for high in ("00", "7f", "80", "ff")
        for low in ("0", "7", "8", "f")
    ]
    column = pa.array([one.bytes for one in ids], pa.binary(16))
    rows = pa.table({"id": pa.ExtensionArray.from_storage(pa.uuid(), column)})
    append_row_groups(lake, monkeypatch, rows)

    for one in ids:
        found = lake.sql(f"SELECT id FROM lake.db.t WHERE id = '{one}'")  # noqa: S608
        assert [row.id for row in found] == [str(one)]
        smaller = lake.sql(f"SELECT count(*) FROM lake.db.t WHERE id < '{one}'")  # noqa: S608
        assert smaller[0][0] == ids.index(one), one


def test_delete_by_a_number_leaves_nan(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # Iceberg drops a whole file if the filter covers its bounds, and bounds leave NaN out.
    append_row_groups(lake, monkeypatch, pa.table({"d": [1.0, math.nan, 3.0]}))

    lake.sql("DELETE FROM lake.db.t WHERE d < 5")

    [row] = lake.rows("t")
    assert math.isnan(row["d"])


def test_any_partition_is_read(lake: Lake) -> None:
    days = pa.array([3_000_000, -1_000_000, 0], pa.date32())
    rows = pa.table({"day": days, "name": ["a" * 3_000, "b", None], "n": [1, 2, 3]})
    append(lake, lake.sink("t", partitioning=["days(day)", "name"]), rows)

    found = lake.sql("SELECT n FROM lake.db.t WHERE day <> date '1970-01-01' ORDER BY n")
    assert [row.n for row in found] == [1, 2]
    assert sorted(lake.sql("SELECT n FROM lake.db.t WHERE length(name) = 3000")) == [(1,)]
