"""Runs work in Spark's Python tasks and collects the outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from icestream.contracts.reports import pack_report, run_tasks
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

Piece = TypeVar("Piece")
Outcome = TypeVar("Outcome")


def run_in_tasks(
    spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], Outcome]
) -> list[Outcome]:
    """Run `work` on each piece in a task of its own; outcomes in the order of the pieces.

    An error of ours keeps its class: it travels as an outcome, which an exception through Spark
    would not.

    Raises:
        LostReportsError: the outcome of a piece did not reach the driver.
    """
    outcomes: list[Any] = run_tasks(spark, len(pieces), _Task(pieces, work))
    for outcome in outcomes:
        if isinstance(outcome, IcestreamError):
            raise outcome
    return outcomes


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
                yield pack_report(number, outcome)
