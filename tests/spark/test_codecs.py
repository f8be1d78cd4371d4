"""Every codec, read back by Spark, PyIceberg and DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.sink_batches import append, by_duckdb

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake


@pytest.mark.parametrize(
    ("codec", "level", "in_file", "in_table"),
    [
        ("none", None, "UNCOMPRESSED", "uncompressed"),
        ("snappy", None, "SNAPPY", "snappy"),
        ("gzip", None, "GZIP", "gzip"),
        ("gzip", 9, "GZIP", "gzip"),
        ("lz4", None, "LZ4", "lz4_raw"),
        ("zstd", None, "ZSTD", "zstd"),
        ("zstd", 19, "ZSTD", "zstd"),
    ],
)
def test_codec_is_used_and_readable_by_every_engine(
    lake: Lake, codec: str, level: int | None, in_file: str, in_table: str
) -> None:
    rows = pa.table({"id": range(5_000), "text": [f"text {n % 100}" * 10 for n in range(5_000)]})
    append(lake, lake.sink("t", compression=codec, compression_level=level), rows)

    table = lake.catalog.client().load_table(("db", "t"))
    [task] = table.scan().plan_files()
    metadata = pq.ParquetFile(task.file.file_path.removeprefix("file://")).metadata
    assert metadata.row_group(0).column(1).compression == in_file
    assert table.properties["write.parquet.compression-codec"] == in_table
    total = sum(range(5_000))
    assert sum(row["id"] for row in lake.rows("t")) == total
    query = "SELECT count(DISTINCT text), sum(id) FROM "
    assert [tuple(row) for row in lake.sql(query + "lake.db.t")] == [(100, total)]
    assert by_duckdb(lake, "t", query + "rows") == [(100, total)]
    # Whoever else writes to the table, by its properties, can do so.
    lake.sql("INSERT INTO lake.db.t VALUES (-1, 'by Spark')")
    assert len(lake.rows("t")) == 5_001
