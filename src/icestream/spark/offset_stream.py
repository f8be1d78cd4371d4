"""Passes the offsets that the driver admitted to Structured Streaming.

A Python data source runs in its own process, where an error becomes a line of text and the batching
rule could not be observed or tested. So the driver decides where the next batch ends and writes
that offset to a file, and this source only reads the file. Spark logs the offset before the batch
begins and replays it after a crash.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

TRIGGER = "100 milliseconds"


class OffsetStreamSource(DataSource):
    """The Spark side of every source. Its options `start` and `next` are files with offsets."""

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


class QueryStarter:
    """Starts the streaming query of a pipeline's offsets, which loads in the background.

    Args:
        spark: the session.
        name: of the pipeline.
        start: the file with the offset that the pipeline starts from.
        following: the file with the end offset of the next batch.
        checkpoint: Spark's folder.
    """

    def __init__(
        self, spark: SparkSession, name: str, *, start: Path, following: Path, checkpoint: Path
    ) -> None:
        self._spark = spark
        self._name = name
        self._files = {"start": str(start), "next": str(following)}
        self._checkpoint = checkpoint
        self._stream: DataFrame | None = None
        # Spark starts Python processes for this; the table and the source are read meanwhile.
        self._loading = threading.Thread(target=self._load, daemon=True)
        self._loading.start()

    def _load(self) -> None:
        try:
            self._stream = self._offset_stream()
        except Exception:  # starting the query fails too, and reports it
            logger.debug("loading the stream of %s", self._name, exc_info=True)

    def _offset_stream(self) -> DataFrame:
        self._spark.dataSource.register(OffsetStreamSource)
        name = OffsetStreamSource.name()
        return self._spark.readStream.format(name).options(**self._files).load()

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Start the query; its first batch follows later."""
        self._loading.join()
        self._stream = self._stream or self._offset_stream()
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._name)
        return (
            self._stream.writeStream.queryName(self._name)
            .foreachBatch(on_batch)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=TRIGGER)
            .start()
        )


def _read(path: Path) -> dict[str, Any]:
    offset: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return offset
