"""Runs pieces of work in Spark's Python tasks, and brings back what each came to."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

Piece = TypeVar("Piece")
Outcome = TypeVar("Outcome")


def run_pieces(
    spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], Outcome]
) -> list[Outcome]:
    """Run `work` on each piece in a task of its own; outcomes in the order of the pieces.

    An error of ours keeps its class: it travels as an outcome, which an exception through Spark
    would not.
    """
    if not pieces:
        return []
    count = len(pieces)
    numbers = spark.range(0, count, 1, count)
    rows = numbers.mapInArrow(_Task(pieces, work), "outcome binary").collect()
    found: dict[int, Any] = dict(pickle.loads(row.outcome) for row in rows)  # noqa: S301 - ours
    for outcome in found.values():
        if isinstance(outcome, IcestreamError):
            raise outcome
    return [found[index] for index in range(count)]


class _Task(Generic[Piece, Outcome]):
    def __init__(self, pieces: Sequence[Piece], work: Callable[[Piece], Outcome]) -> None:
        self._pieces = list(pieces)
        self._work = work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome: Outcome | IcestreamError
                try:
                    outcome = self._work(self._pieces[number])
                except IcestreamError as exc:
                    outcome = exc
                packed = pickle.dumps((number, outcome), protocol=pickle.HIGHEST_PROTOCOL)
                yield pa.RecordBatch.from_arrays([pa.array([packed], pa.binary())], ["outcome"])
