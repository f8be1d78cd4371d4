"""Reports of Spark tasks to the driver: one from every task, or the job has failed.

PySpark's `collect()` returns an empty list, and raises nothing, when the JVM thread that serves the
result runs out of memory; an accumulator update that fails is only logged. Rows whose report is
missing would then never be committed although the batch counts as written. So every job that
gathers reports says how many there must be, and a missing or repeated one is an error.

Reports are for counts, file names and little else: what grows with the rows goes to a file once it
is more than a megabyte or so.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from icestream.errors import IcestreamError, LostReportsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    Task = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

Piece = TypeVar("Piece")
Outcome = TypeVar("Outcome")

REPORT_COLUMN = "report binary"
# The longest value in a report, such as an example of a bad record.
MAX_TEXT_LENGTH = 1_000
MAX_LISTED_TASKS = 10


def pack_report(number: int, content: object) -> pa.RecordBatch:
    """Return the report of one task, as the row that the task yields."""
    packed = pickle.dumps((number, content), protocol=pickle.HIGHEST_PROTOCOL)
    return pa.RecordBatch.from_arrays([pa.array([packed], pa.binary())], ["report"])


def run_tasks(spark: SparkSession | None, count: int, task: Task) -> list[Any]:
    """Run `task` for each number below `count`, in a Spark task of its own.

    Without Spark, they run one after the other in this process.

    Returns:
        What each reported, in the order of the numbers.

    Raises:
        LostReportsError: a report did not arrive, or arrived twice.
    """
    if not count:
        return []
    if spark is None:
        batch = pa.RecordBatch.from_arrays([pa.array(range(count), pa.int64())], ["id"])
        packed = [report for rows in task([batch]) for report in rows.column(0).to_pylist()]
    else:
        numbers = spark.range(0, count, 1, count)
        packed = [row[0] for row in collect_rows(numbers.mapInArrow(task, REPORT_COLUMN))]
    return order_reports(map(unpack_report, packed), range(count))


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


def gather_reports(reports: DataFrame) -> list[Any]:
    """Return the reports of a job whose number of tasks only Spark knows, in partition order.

    Spark aggregates them into a single row: an aggregate without groups has exactly one row, even
    without input, so a lost result cannot be mistaken for an empty one.

    Raises:
        LostReportsError: the result did not arrive.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    (row,) = collect_exactly(reports.agg(F.collect_list("report")), 1)
    unpacked = [unpack_report(report) for report in row[0]]
    return order_reports(unpacked, sorted({number for number, _ in unpacked}))


def collect_exactly(rows: DataFrame, count: int) -> list[Row]:
    """Collect a result whose number of rows is known.

    Raises:
        LostReportsError: another number of rows arrived.
    """
    collected = collect_rows(rows)
    if len(collected) != count:
        raise LostReportsError(
            f"{len(collected)} of the {count} rows of a Spark job's result reached the driver",
            todo=_TODO,
        )
    return collected


def collect_rows(rows: DataFrame) -> list[Row]:
    """Collect a result; `collect` itself does not say whether all of it arrived."""
    return rows.collect()


def unpack_report(report: bytes) -> tuple[int, Any]:
    """Return the number of the task, and what it reported."""
    # The bytes come from our own tasks, over Spark's own authenticated connection.
    content: tuple[int, Any] = pickle.loads(report)  # noqa: S301
    return content


def order_reports(reports: Iterable[tuple[int, Any]], tasks: Sequence[int]) -> list[Any]:
    """Return the reports in the order of `tasks`, each of which must have reported once.

    Raises:
        LostReportsError: a task did not, or a report comes from another task.
    """
    arrived: dict[int, list[Any]] = {}
    for number, content in reports:
        arrived.setdefault(number, []).append(content)
    missing = [number for number in tasks if number not in arrived]
    if missing:
        raise LostReportsError(
            f"the reports of {len(missing)} of {len(tasks)} tasks did not reach the driver: "
            f"{_format_numbers(missing)}",
            todo=_TODO,
        )
    expected = set(tasks)
    surplus = [n for n, contents in arrived.items() if len(contents) > 1 or n not in expected]
    if surplus:
        raise LostReportsError(
            f"unexpected or duplicate reports from {len(surplus)} tasks: "
            f"{_format_numbers(surplus)}",
            todo=_TODO,
        )
    return [arrived[number][0] for number in tasks]


def truncate_text(text: str) -> str:
    """Return a text for a report: whole, or its beginning and how long it was."""
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{text[:MAX_TEXT_LENGTH]}... ({len(text):,} characters)"


SAMPLE_LENGTH = 60


def begins_with(raw: bytes | None) -> str:
    """Return how a record begins, to be added to a message; empty if it has no bytes."""
    if not raw:
        return ""
    head = raw[:SAMPLE_LENGTH]
    try:
        text = repr(head.decode())
    except UnicodeDecodeError as exc:
        is_cut = len(raw) > SAMPLE_LENGTH and exc.start > SAMPLE_LENGTH - 4  # in a character
        text = repr(head[: exc.start].decode() if is_cut else head[: SAMPLE_LENGTH // 2])
    return f" (begins with {text})"


_TODO = (
    "Nothing was committed. A pipeline replays the batch; run any other command again. If this "
    "happens again, the driver is short of memory: raise `spark.driver.memory`, or set a smaller "
    "`max_batch_rows`."
)


def _format_numbers(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)[:MAX_LISTED_TASKS]))
    return f"{listed}, ..." if len(numbers) > MAX_LISTED_TASKS else listed
