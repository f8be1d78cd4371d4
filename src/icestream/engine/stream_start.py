"""Starts the streaming query of a pipeline: Spark takes seconds for it, which others can use."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from icestream.engine.state import PipelineState

logger = logging.getLogger(__name__)

TRIGGER = "100 milliseconds"


class StreamStart:
    """The stream of a pipeline's positions, which is loaded from now on.

    Args:
        spark: the session.
        state: where the positions are.
        name: the pipeline's.
    """

    def __init__(self, spark: SparkSession, state: PipelineState, name: str) -> None:
        self._spark = spark
        self._state = state
        self._name = name
        self._stream: DataFrame | None = None
        # Spark starts processes of its own for this; meanwhile we look at table and source.
        self._loading = threading.Thread(target=self._load, daemon=True)
        self._loading.start()

    def _load(self) -> None:
        try:
            self._stream = self._offset_stream()
        except Exception:  # the start of the query meets it again, where it can be told
            logger.debug("loading the stream of %s", self._name, exc_info=True)

    def _offset_stream(self) -> DataFrame:
        from icestream.spark.offset_stream import load_stream

        return load_stream(self._spark, self._state.start_file, self._state.next_file)

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Start the query; its first batch comes a while later."""
        self._loading.join()
        self._stream = self._stream or self._offset_stream()
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._name)
        return (
            self._stream.writeStream.queryName(self._name)
            .foreachBatch(on_batch)
            .option("checkpointLocation", str(self._state.checkpoint))
            .trigger(processingTime=TRIGGER)
            .start()
        )
