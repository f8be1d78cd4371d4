"""What runs inside Spark's Python tasks: read, decode, write, and report to the driver.

Tasks are handed to `mapInArrow`. Each split ends in one report, which crosses the JVM as bytes; an
error of ours travels inside it and keeps its class, which an exception through Spark would not.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.records import BadRecord, Records
from icestream.decode.inference import merge_fields
from icestream.decode.widening import join_columns
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.contracts.source import Source, Split

BAD_EXAMPLES = 20
REPORT = pa.schema([("report", pa.binary())])
DEAD_LETTERS = pa.schema(
    [
        pa.field("raw", pa.binary(), metadata={"doc": "The record as the source gave it."}),
        pa.field("reason", pa.string(), metadata={"doc": "Why it could not be written."}),
        pa.field("position", pa.string(), metadata={"doc": "Where in the source it stands."}),
        pa.field("pipeline", pa.string(), metadata={"doc": "The pipeline that read it."}),
        pa.field("epoch", pa.int64(), metadata={"doc": "The batch that it was read in."}),
        pa.field("failed_at", pa.timestamp("us", tz="UTC"), metadata={"doc": "When."}),
    ]
)


@dataclass
class Report:
    """What became of one split."""

    split: int
    rows: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    dead_files: list[WrittenFile] = field(default_factory=list)
    bad: int = 0
    examples: list[BadRecord] = field(default_factory=list)
    new_fields: dict[str, pa.DataType] = field(default_factory=dict)
    wider: dict[str, pa.Field] = field(default_factory=dict)
    error: IcestreamError | None = None


@dataclass(frozen=True)
class DeadLetters:
    """Where a task puts records that can't be decoded."""

    writer: TaskWriter
    pipeline: str
    epoch: int

    def write(self, bad: list[BadRecord]) -> list[WrittenFile]:
        now = datetime.now(tz=timezone.utc)
        batch = pa.RecordBatch.from_pylist(
            [
                {
                    "raw": record.raw,
                    "reason": record.reason,
                    "position": record.position,
                    "pipeline": self.pipeline,
                    "epoch": self.epoch,
                    "failed_at": now,
                }
                for record in bad
            ],
            schema=DEAD_LETTERS,
        )
        return self.writer.write([batch])


class _Stop(Exception):  # noqa: N818 - not an error: what was read so far decides the batch
    """Nothing that follows in this split can change what the driver will do."""


@dataclass(frozen=True)
class Reading:
    """Reads splits into Arrow batches of exactly `columns`.

    Attributes:
        columns: the columns of a row, those that the source adds included.
        evolving: whether fields that `columns` lacks are of interest.
        widening: whether columns may become wider, rather than a record be bad.
        stop_at_bad: whether one bad record decides the batch.
    """

    source: Source[Any]
    decoder: Decoder | None
    splits: tuple[Split, ...]
    columns: pa.Schema
    evolving: bool
    stop_at_bad: bool
    dead_letters: DeadLetters | None = None
    widening: bool = False

    def rows(self, report: Report) -> Iterator[pa.RecordBatch]:
        """Yield the good rows of a split, and note everything else in its report."""
        bad: list[BadRecord] = []
        extra = self.source.extra_columns()
        names = set(extra.names) if extra is not None else set()
        decoded = pa.schema([column for column in self.columns if column.name not in names])
        for block in self.source.read(self.splits[report.split]):
            if isinstance(block, Records):
                batch = self._decode(block, decoded, report, bad)
            else:
                batch = block
            report.rows += batch.num_rows
            yield batch
        report.examples = bad[:BAD_EXAMPLES]
        if self.dead_letters is not None and bad:
            report.dead_files = self.dead_letters.write(bad)

    def _decode(
        self, records: Records, columns: pa.Schema, report: Report, bad: list[BadRecord]
    ) -> pa.RecordBatch:
        assert self.decoder is not None  # noqa: S101 - a source of records has a decoder
        outcome = self.decoder.decode(records.values, columns)
        if outcome.wider and self.widening:  # the batch is read anew; what is bad then is bad
            report.wider = join_columns(report.wider, outcome.wider)
            raise _Stop
        for index, reason in outcome.bad:
            report.bad += 1
            if self.dead_letters is not None or len(bad) < BAD_EXAMPLES:
                raw = records.values[index].as_py()
                bad.append(BadRecord(raw, reason, records.position(index)))
        if outcome.new_fields and self.evolving:
            report.new_fields = merge_fields(report.new_fields, outcome.new_fields)
        if (report.bad and self.stop_at_bad) or report.new_fields:
            report.examples = bad[:BAD_EXAMPLES]
            raise _Stop
        return self._with_extra(outcome.rows, outcome.kept, records)

    def _with_extra(
        self, rows: pa.RecordBatch, kept: pa.Array | None, records: Records
    ) -> pa.RecordBatch:
        if not records.extra:
            return rows
        arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, column in records.extra.items():
            arrays[name] = column if kept is None else column.take(kept)
        wanted = [column for column in self.columns if column.name in arrays]
        return pa.RecordBatch.from_arrays(
            [arrays[column.name].cast(column.type) for column in wanted],
            schema=pa.schema(wanted),
        )


@dataclass(frozen=True)
class ReadAndWrite:
    """The whole path in one task: the rows never enter the JVM."""

    reading: Reading
    writer: TaskWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split in _split_numbers(batches):
            report = Report(split)
            with _reported(report):
                report.files = self.writer.write(self.reading.rows(report))
            yield _as_batch(report)


@dataclass(frozen=True)
class ReadOnly:
    """Reads and decodes; the rows go on through Spark. Reports leave through an accumulator."""

    reading: Reading
    note: Callable[[Report], None]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split in _split_numbers(batches):
            report = Report(split)
            with _reported(report):
                for batch in self.reading.rows(report):
                    yield _conformed(batch, self.reading.columns)
            self.note(report)


@dataclass(frozen=True)
class WriteOnly:
    """Writes what Spark hands it."""

    writer: TaskWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = Report(-1)
        with _reported(report):
            report.files = self.writer.write(_counted(batches, report))
        yield _as_batch(report)


@dataclass(frozen=True)
class WarmUp:
    """Loads what a worker needs for its first batch; unpickling the sources loads their modules."""

    sources: list[Source[Any]]
    modules: list[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for module in self.modules:
            import_module(module)
        yield from batches


class _reported:  # noqa: N801 - reads as a statement
    """Puts an error of ours into the report, where it keeps its class."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, IcestreamError):
            self._report.error = error
            return True
        return isinstance(error, _Stop)


def read_reports(rows: Iterable[Any]) -> list[Report]:
    """Return the reports that the tasks of a job yielded."""
    # The bytes come from our own tasks, over Spark's own authenticated connection.
    return [pickle.loads(row[0]) for row in rows]  # noqa: S301


def _split_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _as_batch(report: Report) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([pickle.dumps(report)], pa.binary())], schema=REPORT
    )


def _counted(batches: Iterable[pa.RecordBatch], report: Report) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        report.rows += batch.num_rows
        yield batch


def _conformed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Give Spark every column that it was promised, in order."""
    arrays = []
    for column in columns:
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, column.type))
        else:
            arrays.append(batch.column(index).cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
