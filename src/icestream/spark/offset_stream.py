"""Passes the offsets that the driver admitted to Structured Streaming.

A Python data source runs in a process of its own, where an error becomes a line of text and the
batching rule could not be seen or tested. So the driver decides where the next batch ends, writes
it to a file, and this source does no more than read that file. Spark logs the offset before
the batch begins and replays it after a crash.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class OffsetStreamSource(DataSource):
    """The Spark side of every icestream source. Options `start` and `next`: files with offsets."""

    @classmethod
    def name(cls) -> str:
        return "icestream"

    def schema(self) -> str:
        return "split int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return OffsetStreamReader(Path(self.options["start"]), Path(self.options["next"]))


class OffsetStreamReader(DataSourceStreamReader):
    """Reads offsets; the rows themselves are read inside `foreachBatch`."""

    def __init__(self, start: Path, following: Path) -> None:
        self._start = start
        self._next = following

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _read(self._start)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _read(self._next)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002
        return iter(())


def load_stream(spark: SparkSession, start: Path, following: Path) -> DataFrame:
    """Return the stream of a pipeline's offsets. Spark starts its own processes for this."""
    spark.dataSource.register(OffsetStreamSource)
    files = {"start": str(start), "next": str(following)}
    return spark.readStream.format(OffsetStreamSource.name()).options(**files).load()


def _read(path: Path) -> dict[str, Any]:
    offset: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return offset
