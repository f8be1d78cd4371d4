"""Lists and removes dead letters for the CLI; the table is a second sink built in plan/planner.py.

Tasks write the letters (see buffer.py), and engine/batch/commit.py commits them like other rows.
Reading needs no JVM; removing letters uses Spark.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.catalog import quote_for_spark
from icestream.errors import CommitError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.tables.lookup import NamedTable


KEY = ("position", "epoch", "failed_at")
COLUMNS = ("raw", "reason", "position", "pipeline", "epoch", "failed_at", "extra")


@dataclass(frozen=True)
class ReasonCount:
    """The number of a pipeline's letters with one reason, and the time of the newest."""

    pipeline: str
    reason: str
    count: int
    newest: datetime


@dataclass(frozen=True)
class DeadLetterList:
    """The contents of a dead-letter table.

    Attributes:
        total: how many letters there are.
        reasons: how many by pipeline and reason, the most frequent first.
        newest: the newest letters, with the columns of the table.
    """

    total: int
    reasons: list[ReasonCount]
    newest: list[dict[str, Any]]


def list_dead_letters(
    named: NamedTable, *, pipeline: str | None = None, limit: int = 20
) -> DeadLetterList:
    """Count the letters of a table by reason, and return the newest ones.

    Args:
        named: the dead-letter table.
        pipeline: only letters of this pipeline.
        limit: the maximum number of letters to return.
    """
    import pyarrow.compute as pc

    keys = _scan(named, ("pipeline", "reason", "failed_at"), pipeline).to_arrow()
    counted = keys.group_by(["pipeline", "reason"]).aggregate(
        [([], "count_all"), ("failed_at", "max")]
    )
    reasons = [
        ReasonCount(row["pipeline"], row["reason"], row["count_all"], row["failed_at_max"])
        for row in counted.to_pylist()
    ]
    reasons.sort(key=lambda one: (-one.count, one.pipeline, one.reason))
    if not keys.num_rows:
        return DeadLetterList(0, [], [])
    # Read the records only from files that may hold the newest letters.
    newest_first = pc.array_sort_indices(keys["failed_at"], order="descending")
    oldest = keys["failed_at"][newest_first[min(limit, keys.num_rows) - 1].as_py()].as_py()
    rows = _scan(named, COLUMNS, pipeline, since=oldest).to_arrow().to_pylist()
    rows.sort(key=lambda row: (row["failed_at"], row["epoch"], row["position"] or ""), reverse=True)
    return DeadLetterList(keys.num_rows, reasons, rows[:limit])


def _scan(
    named: NamedTable,
    columns: tuple[str, ...],
    pipeline: str | None,
    since: datetime | None = None,
) -> Any:
    from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, Reference
    from pyiceberg.expressions import GreaterThanOrEqual as AtLeast
    from pyiceberg.expressions.literals import literal

    row_filter: BooleanExpression = AlwaysTrue()
    if pipeline is not None:
        row_filter = EqualTo(term=Reference("pipeline"), value=literal(pipeline))
    if since is not None:
        row_filter = And(
            row_filter, AtLeast(term=Reference("failed_at"), value=literal(since.isoformat()))
        )
    existing = {field.name for field in named.table.schema().fields}
    # A table that an older version created lacks newer columns.
    fields = tuple(name for name in columns if name in existing)
    return named.table.scan(row_filter=row_filter, selected_fields=fields)


class PipelineDeadLetters:
    """The dead letters of one pipeline in their table, for a replay.

    Args:
        find: loads the current dead-letter table.
        pipeline: the pipeline's name.
        spark: the session that removes letters.
    """

    def __init__(self, find: Callable[[], NamedTable], pipeline: str, spark: SparkSession) -> None:
        self._find = find
        self._found = find()
        self._pipeline = pipeline
        self._spark = spark

    @property
    def name(self) -> str:
        return self._found.name

    def read(
        self, *, reason: str | None = None, since: datetime | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the letters that the table holds now.

        Args:
            reason: only letters whose reason contains this text, ignoring case.
            since: only letters that failed at this time or later.
        """
        import pyarrow.compute as pc

        self._found = self._find()
        reader = _scan(self._found, COLUMNS, self._pipeline, since).to_arrow_batch_reader()
        for batch in reader:
            if reason is not None:
                has_it = pc.match_substring(batch.column("reason"), reason, ignore_case=True)
                batch = batch.filter(has_it)  # noqa: PLW2901 - the same letters, fewer of them
            if batch.num_rows:
                yield batch

    def save_replay(self, token: str, letters: pa.Table) -> str:
        """Save which letters a replay removes, before it commits; return the path."""
        import pyarrow as pa

        path = f"{self._found.table.location()}/replays/{token}.arrow"
        keys = letters.select(list(KEY))
        with (
            self._found.table.io.new_output(path).create() as file,
            pa.ipc.new_file(file, keys.schema) as writer,
        ):
            writer.write_table(keys)
        return path

    def saved_replay(self, path: str) -> pa.Table | None:
        """Return the letters of `save_replay`; None once their replay is finished."""
        import pyarrow as pa

        source = self._found.table.io.new_input(path)
        if not source.exists():
            return None
        with source.open() as file:
            return pa.ipc.open_file(pa.py_buffer(file.read())).read_all()

    def forget_replay(self, path: str) -> None:
        """Remove the file of `save_replay`, unless another replay has done so."""
        with suppress(FileNotFoundError):
            self._found.table.io.delete(path)

    def remove(self, letters: pa.Table) -> None:
        """Remove letters from the table, if they are still there.

        Raises:
            CommitError: the commit failed.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        view = "icestream_replayed_letters"
        table = quote_for_spark(self._found.catalog, *self._found.identifier)
        same = " AND ".join(f"held.{name} = gone.{name}" for name in KEY)
        keys = letters.select(list(KEY))
        try:
            self._spark.createDataFrame(keys).distinct().createOrReplaceTempView(view)
            self._spark.sql(f"REFRESH TABLE {table}")
            self._spark.sql(
                f"MERGE INTO {table} held USING {view} gone "
                f"ON held.pipeline = '{self._pipeline}' AND {same} WHEN MATCHED THEN DELETE"
            )
        except (Py4JError, PySparkException) as exc:
            raise CommitError(
                "the replayed rows are committed, but their dead letters could not be removed: "
                f"{first_line(exc)}",
                where=f"table {self.name}",
                todo="Run `icestream dlq replay` again: it removes them and writes nothing twice.",
            ) from exc
