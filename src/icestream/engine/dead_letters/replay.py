"""Replays dead letters through their pipeline: those that now pass are written exactly once.

Two tables change, and no commit spans both. So a replay saves a list of the letters that it
replays, commits their rows with a mark that names the list, and removes the letters. A later replay
that finds a mark whose list still exists first finishes the removal, which is idempotent.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from icestream.arrow import GROUP_BYTES, split_by_bytes
from icestream.contracts.decoder import Records
from icestream.contracts.offset import BatchMark, replay_name
from icestream.contracts.source import Source, Split
from icestream.engine.batch.batch import write_files
from icestream.engine.batch.columns import StreamColumns
from icestream.engine.batch.tasks import INDEX_BITS
from icestream.engine.crash_points import crash_point
from icestream.engine.dead_letters.buffer import CONTEXT
from icestream.engine.state import PipelineState
from icestream.formats.json import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.offset import Offset
    from icestream.plan.plan import PipelinePlan


LETTERS_A_COMMIT = 50_000


class ReplayableLetters(Protocol):
    """A dead-letter table, from which letters are read and removed."""

    def read(self) -> Iterator[pa.RecordBatch]: ...

    def save_replay(self, token: str, letters: pa.Table) -> str: ...

    def saved_replay(self, path: str) -> pa.Table | None: ...

    def forget_replay(self, path: str) -> None: ...

    def remove(self, letters: pa.Table) -> None: ...


@dataclass
class ReplayResult:
    """The result of a replay.

    Attributes:
        letters: number of letters read.
        replayed: letters that passed and were removed.
        rows: rows written from them.
        still_bad: number of letters that stay, by the current reason.
        untraced: number of letters that stay because they are not one record of the source.
        finished: letters that an earlier replay had written but not removed.
    """

    letters: int = 0
    replayed: int = 0
    rows: int = 0
    still_bad: Counter[str] = field(default_factory=Counter)
    untraced: int = 0
    finished: int = 0


class Replay:
    """A replay of one pipeline's dead letters. The pipeline may run at the same time.

    Args:
        spark: the session.
        plan: the pipeline, as the file describes it now.
        state_root: the folder of `state.path`.
        letter_table: the pipeline's letters.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: PipelinePlan,
        state_root: Path,
        letter_table: ReplayableLetters,
    ) -> None:
        self.outcome = ReplayResult()
        self._spark = spark
        self._letter_table = letter_table
        # A separate mark next to the pipeline's.
        self._name = replay_name(plan.name)
        self._cache = PipelineState(state_root, plan.name).folder / "dlq"
        source = DeadLetterSource(plan.source)
        self._plan = replace(plan, source=source, on_error="drop", dead_letter=None)
        self._columns = StreamColumns(self._plan, _UnchangedState(state_root, plan.name))

    def open(self) -> None:
        """Connect to the table, and finish what an earlier replay left unfinished."""
        sink = self._plan.sink
        sink.open(self._spark, self._name, self._cache)
        for mark in sink.marks():
            self._finish(mark)

    def _finish(self, mark: BatchMark) -> None:
        path = mark.end.get("letters")
        letters = self._letter_table.saved_replay(path) if path is not None else None
        if path is None or letters is None:
            return
        if not self._plan.sink.holds(mark):
            # One of many tables has the mark; others may lack their rows.
            self._write_missing(letters, mark)
        elif self._plan.sink.lost_rows():
            # The table was rolled back since then: keep the letters, to be replayed again.
            self._letter_table.forget_replay(path)
            return
        self._letter_table.remove(letters)
        self._letter_table.forget_replay(path)
        self.outcome.finished += letters.num_rows

    def _write_missing(self, replayed: pa.Table, mark: BatchMark) -> None:
        """Write the rows of a replay to the tables that lack them; at least one holds its rows."""
        parts = [
            pa.Table.from_batches([batch]).join(
                replayed, replayed.column_names, join_type="left semi"
            )
            for batch in self._letter_table.read()
        ]
        letters = [part for part in parts if part.num_rows]
        if letters:
            splits = self._splits(pa.concat_tables(letters))
            outcome = write_files(
                self._spark, self._plan, self._columns, splits, mark, reports_bad_rows=True
            )
            self._plan.sink.commit(outcome.files, mark)

    def run(self, letters: Iterable[pa.RecordBatch]) -> None:
        """Write the letters that now pass; the others stay."""
        for chunk in _chunks(letters):
            traced = chunk.filter(chunk["position"].is_valid())
            self.outcome.letters += chunk.num_rows
            self.outcome.untraced += chunk.num_rows - traced.num_rows
            if traced.num_rows:
                self._replay(traced)

    def _replay(self, letters: pa.Table) -> None:
        token = uuid.uuid4().hex
        mark = BatchMark(self._name, token, 0, self._plan.source.identity(), {}, {})
        splits = self._splits(letters)
        size = splits[0].rows
        crash_point("before-write")
        outcome = write_files(
            self._spark, self._plan, self._columns, splits, mark, reports_bad_rows=True
        )
        bad = {
            (number >> INDEX_BITS) * size + (number & ((1 << INDEX_BITS) - 1)): reason
            for number, reason in outcome.bad_rows.items()
        }
        self.outcome.still_bad.update(bad.values())
        good = letters.filter(pa.array([index not in bad for index in range(letters.num_rows)]))
        if not good.num_rows:
            return
        path = self._letter_table.save_replay(token, good)
        crash_point("before-commit")
        rows = sum(file.rows for file in outcome.files)
        if outcome.files:
            mark = replace(mark, end={"letters": path}, rows=rows)
            self._plan.sink.commit(outcome.files, mark)
            self._plan.sink.publish(mark)
        crash_point("after-commit")
        self._letter_table.remove(good)
        self._letter_table.forget_replay(path)
        self.outcome.replayed += good.num_rows
        self.outcome.rows += rows

    def _splits(self, letters: pa.Table) -> tuple[Split, ...]:
        slots = self._spark.sparkContext.defaultParallelism
        size = -(-letters.num_rows // slots)
        return tuple(
            Split(part.combine_chunks(), part.num_rows)
            for start in range(0, letters.num_rows, size)
            if (part := letters.slice(start, size)).num_rows
        )


class DeadLetterSource(Source[Any]):
    """Dead letters as records of the source that they came from."""

    def __init__(self, origin: Source[Any]) -> None:
        super().__init__(origin.options)
        self._origin = origin

    def identity(self) -> str:
        return f"dead letters of {self._origin.identity()}"

    def initial(self) -> Offset:
        return {}

    def latest(self, current: Offset) -> Offset:
        return current

    def rows_between(self, start: Offset, end: Offset) -> int:  # noqa: ARG002 - the contract's
        return 0

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:  # noqa: ARG002
        return end

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:  # noqa: ARG002
        return []

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        letters: pa.Table = split.what
        for batch in letters.to_batches():
            start = 0
            for context, run in groupby(_contexts(batch)):
                part = batch.slice(start, len(list(run)))
                start += part.num_rows
                positions = part["position"].to_pylist()
                values = part["raw"].cast(pa.binary())
                yield Records(values, self._extra(part), _nth(positions), context)

    def decoder(self) -> Decoder | None:
        # A source of rows has its dead letters as JSON.
        return self._origin.decoder() or JsonDecoder()

    def schema(self) -> pa.Schema | None:
        return self._origin.schema()

    def declared_schema(self) -> pa.Schema | None:
        return self._origin.declared_schema()

    def declares(self) -> bool:
        # Only the pipeline itself decides the table's columns.
        return False

    def extra_columns(self) -> pa.Schema | None:
        return self._origin.extra_columns()

    def _extra(self, letters: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = self._origin.extra_columns()
        if columns is None:
            return {}
        texts = [None] * letters.num_rows
        if "extra" in letters.schema.names:
            texts = letters["extra"].to_pylist()
        values = pa.array([(text or "{}").encode() for text in texts], pa.binary())
        optional = pa.schema([column.with_nullable(True) for column in columns])
        rows = JsonDecoder(ignores_new=True).decode(values, optional).rows
        return {name: rows.column(name) for name in rows.schema.names}


def _contexts(letters: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the context of each letter; see `Records.context`."""
    if "extra" not in letters.schema.names:
        return [{}] * letters.num_rows
    return [json.loads(text or "{}").get(CONTEXT, {}) for text in letters["extra"].to_pylist()]


def _nth(positions: list[str]) -> Callable[[int], str]:
    return lambda index: str(positions[index])


@dataclass(frozen=True)
class _UnchangedState(PipelineState):
    """The pipeline's saved state, read-only: the pipeline may be running."""

    def remember_schema(self, columns: dict[str, Any]) -> None:
        """Keep the saved schema."""


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield letters in tables of bounded length and size."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in (part for whole in batches for part in split_by_bytes(whole)):
        waiting.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= LETTERS_A_COMMIT or size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, count, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
