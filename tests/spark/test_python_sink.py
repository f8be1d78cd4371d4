"""Rows that a program writes to a sink itself, whatever they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest

from icestream import IcebergOptions, IcebergSink, Settings
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_rows_of_every_kind_are_in_one_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / ".icestream")
    sink = IcebergSink(IcebergOptions(namespace=("shop",), table="prices"), settings)
    sink.write([{"id": 1, "name": "a"}, {"id": 2}])
    sink.write(pa.table({"id": [3], "name": ["c"]}))
    sink.write(pa.record_batch({"id": [4], "name": ["d"]}))
    sink.write(pd.DataFrame({"id": [5], "name": ["e"]}))
    sink.write(spark.createDataFrame([(6, "f")], "id long, name string"))

    snapshot_id = sink.flush()

    table = sink.catalog.find_table(("shop", "prices"))
    assert table is not None
    assert [snapshot.snapshot_id for snapshot in table.snapshots()] == [snapshot_id]
    rows = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [
        *((1, "a"), (2, None), (3, "c"), (4, "d"), (5, "e"), (6, "f")),
    ]


def test_streaming_rows_are_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / ".icestream")
    sink = IcebergSink(IcebergOptions(namespace=("shop",), table="prices"), settings)

    with pytest.raises(PlanError) as caught:
        sink.write(spark.readStream.format("rate").load())

    assert str(caught.value) == (
        "IcebergSink.write: cannot write a streaming DataFrame\n"
        "  Call `write` in `foreachBatch`, or build a Pipeline, which writes each row once."
    )
