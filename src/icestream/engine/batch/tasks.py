"""The tasks of a batch: read splits, decode records, write files, and report bad records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.arrow import conform, conform_source_rows, refused_column_error
from icestream.contracts.changes import UNCHANGED_COLUMNS, unchanged_columns
from icestream.contracts.decoder import BadRecord, Decoded, Records, split_by_size
from icestream.contracts.reports import SAMPLE_LENGTH, pack_report, truncate_text
from icestream.contracts.transform import ROW
from icestream.engine.dead_letters.buffer import DeadLetterBuffer, extra_as_json
from icestream.errors import IcestreamError
from icestream.formats.exact_numbers import cast_exactly
from icestream.formats.inference import (
    join_columns,
    merge_fields,
    new_columns,
    unknown_fields,
    wider_columns,
    widest_field,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.contracts.source import Source, Split
    from icestream.engine.batch.change_tasks import StagedSchema
    from icestream.engine.batch.columns import RefusedField
    from icestream.engine.dead_letters.buffer import DeadLetterWriter
    from icestream.engine.dead_letters.row_validation import RowValidation


BAD_EXAMPLES = 20
INDEX_BITS = 40


def row_number(split: int, index: int) -> int:
    """Return the number of a record: its split, and its index in it."""
    return (split << INDEX_BITS) + index


def record_bad(
    records: Records,
    faults: Iterable[tuple[int, str]],
    report: Report,
    bad: DeadLetterBuffer | None,
    first: int | None = None,
) -> None:
    """Count bad records; keep some as examples, and all of them as dead letters.

    The report says where an example is, why it is bad, and how it begins. Its bytes may be large,
    so only the dead letter holds them.

    Args:
        records: the records, good and bad.
        faults: index and reason of each bad record.
        report: the report of their split.
        bad: the buffer for dead letters; None to keep none.
        first: the number of the first record, if the report lists every bad one.
    """
    for index, reason in faults:
        report.bad += 1
        if first is not None:
            report.bad_rows[first + index] = truncate_text(reason)
        if len(report.examples) < BAD_EXAMPLES:
            where = truncate_text(records.position(index))
            raw = records.values[index].as_py()
            sample = None if raw is None else raw[: SAMPLE_LENGTH + 1]
            report.examples.append(BadRecord(sample, truncate_text(reason), where))
        if bad is not None:
            raw = records.values[index].as_py()
            extra = extra_as_json(records, index)
            bad.add(BadRecord(raw, reason, records.position(index), extra))


def with_refused(columns: pa.Schema, refused: Sequence[RefusedField]) -> pa.Schema:
    """Return the columns to decode with, so that `without_refused` sees refused fields' values."""
    if not refused:
        return columns
    fields: dict[str, pa.DataType] = {}
    for refusal in refused:
        fields = merge_fields(fields, {refusal.column.name: refusal.column.type})
    grown = unknown_fields(columns, fields)
    current = [column.with_type(grown.pop(column.name, column.type)) for column in columns]
    return pa.schema([*current, *grown.items()])


def without_refused(
    outcome: Decoded, columns: pa.Schema, refused: Sequence[RefusedField]
) -> Decoded:
    """Return the outcome with records that have a value for a refused field moved to the bad.

    Args:
        outcome: the outcome of decoding with the columns that `with_refused` returned.
        columns: the columns without refused fields.
        refused: the fields.
    """
    if not refused:
        return outcome
    rows = outcome.rows
    reasons = pa.nulls(rows.num_rows, pa.string())
    for refusal in refused:
        if not has_member(rows.schema.field(refusal.column.name).type, refusal.members):
            continue  # someone has changed the column's type
        has_value = _has_value(rows.column(refusal.column.name), refusal.members)
        reasons = pc.if_else(pc.and_(has_value, reasons.is_null()), refusal.reason, reasons)
    numbers = pa.array(range(rows.num_rows), pa.int64()) if outcome.kept is None else outcome.kept
    is_bad = reasons.is_valid()
    faults = zip(numbers.filter(is_bad).to_pylist(), reasons.drop_null().to_pylist(), strict=True)
    good = rows.filter(reasons.is_null())
    visible = [cast_exactly(good.column(column.name), column.type) for column in columns]
    names = {refusal.column.name for refusal in refused if not refusal.members}
    wider = {
        column.name: widest_field(column, outcome.wider[column.name]) or column
        for column in columns
        if column.name in outcome.wider
    }
    return Decoded(
        rows=pa.RecordBatch.from_arrays(visible, schema=columns),
        kept=numbers.filter(reasons.is_null()),
        bad=tuple(sorted((*outcome.bad, *faults))),
        new_fields={name: kind for name, kind in outcome.new_fields.items() if name not in names},
        # Leave out columns in which only a refused member became wider.
        wider={name: column for name, column in wider.items() if column != columns.field(name)},
    )


def _has_value(array: pa.Array, members: tuple[str, ...]) -> pa.Array:
    """Return a mask of the values that have a member set; see `RefusedField.members`."""
    if not members:
        return array.is_valid()
    if pa.types.is_list(array.type):
        inner = _has_value(array.flatten(), members[1:])
        parents = pc.list_parent_indices(array).filter(inner)
        return pc.is_in(pa.array(range(len(array)), pa.int64()), value_set=parents)
    return pc.and_(array.is_valid(), _has_value(array.field(members[0]), members[1:]))


def has_member(kind: pa.DataType, members: tuple[str, ...]) -> bool:
    """Return whether a type has a member; see `RefusedField.members`."""
    if not members:
        return True
    if pa.types.is_list(kind):
        return has_member(kind.value_type, members[1:])
    index = kind.get_field_index(members[0]) if pa.types.is_struct(kind) else -1
    return index >= 0 and has_member(kind.field(index).type, members[1:])


@dataclass
class Report:
    """The result of one task.

    Attributes:
        split: number of the split, or of the partition if the rows come from Spark.
        rows: how many rows were read and are good so far.
        records: how many records were read, good and bad.
        bad: how many records can't be decoded or cast.
        examples: some of them, with the beginning of their bytes.
        unmet: how many rows fail each expectation, by its name.
        unmet_rows: how many rows fail at least one expectation.
        unmet_examples: a failing row as JSON, for each expectation that fails the batch.
        bad_rows: number and reason of each bad row, if requested.
        ignored: how many tombstones are ignored, by topic.
        staged: the schemas of blocks of changes that go through Spark SQL.
    """

    split: int
    rows: int = 0
    records: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    dead_files: list[WrittenFile] = field(default_factory=list)
    bad: int = 0
    examples: list[BadRecord] = field(default_factory=list)
    new_fields: dict[str, pa.DataType] = field(default_factory=dict)
    wider: dict[str, pa.Field] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    unmet_rows: int = 0
    unmet_examples: dict[str, str] = field(default_factory=dict)
    bad_rows: dict[int, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    staged: list[StagedSchema] = field(default_factory=list)
    error: IcestreamError | None = None


class StopReading(Exception):  # noqa: N818 - not an error: the report so far decides the batch
    """Raised when the rest of the split can't change what the driver will do."""


@dataclass(frozen=True)
class Reading:
    """Reads splits into Arrow batches of exactly `columns`.

    Attributes:
        columns: the columns of a row, including those that the source adds.
        refused: fields that make a record bad.
        evolving: whether to report fields that `columns` lacks.
        widening: whether to report wider types instead of treating the record as bad.
        stop_at_bad: whether one bad record fails the batch.
        dead_letters: the writer for records that can't be decoded; None to drop them.
        numbered: whether each row carries the number of its record.
        reports_bad_rows: whether the report lists every bad record.
        records_absent_fields: whether each row lists, in `UNCHANGED_COLUMNS`, the columns that
            its record has no field for.
    """

    source: Source[Any]
    decoder: Decoder | None
    splits: tuple[Split, ...]
    columns: pa.Schema
    evolving: bool
    stop_at_bad: bool
    dead_letters: DeadLetterWriter | None = None
    numbered: bool = False
    reports_bad_rows: bool = False
    widening: bool = False
    refused: tuple[RefusedField, ...] = ()
    records_absent_fields: bool = False

    def written_schema(self) -> pa.Schema:
        """Return the columns of the rows that the sink receives."""
        if not self.records_absent_fields:
            return self.columns
        return self.columns.append(pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string())))

    def decoded_schema(self) -> pa.Schema:
        """Return the columns of a record, without those that the source adds."""
        extra = self.source.extra_columns()
        names = set(extra.names) if extra is not None else set()
        return pa.schema([column for column in self.columns if column.name not in names])

    def new_columns(self, fields: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the columns to add for the new fields of a report.

        Records are decoded with refused fields among the columns, so these are not new.
        """
        if not fields:
            return {}
        return new_columns(with_refused(self.decoded_schema(), self.refused), fields)

    def output_schema(self) -> pa.Schema:
        """Return the columns of the rows, including the record number."""
        return (
            self.written_schema().append(pa.field(ROW, pa.int64()))
            if self.numbered
            else self.written_schema()
        )

    def blocks(self, split: int) -> Iterator[Records | pa.RecordBatch]:
        """Yield the contents of a split, in blocks of bounded size."""
        for block in self.source.read(self.splits[split]):
            yield from split_by_size(block)

    def rows(self, report: Report) -> Iterator[pa.RecordBatch]:
        """Yield the good rows of a split, and record everything else in its report."""
        bad = None
        if self.dead_letters is not None:
            bad = DeadLetterBuffer(self.dead_letters, report.dead_files)
        decoded = self.decoded_schema()
        number = row_number(report.split, 0)
        for block in self.blocks(report.split):
            first = number + report.records
            if isinstance(block, Records):
                batch = self._decode(block, decoded, report, bad, first)
                report.records += len(block.values)
            else:
                batch = self._fitted(block, report, first)
                report.records += block.num_rows
            if batch is not None:
                report.rows += batch.num_rows
                yield batch
        if self._reads_again(report):
            raise StopReading
        if bad is not None:
            bad.flush()

    def _decode(
        self,
        records: Records,
        columns: pa.Schema,
        report: Report,
        bad: DeadLetterBuffer | None,
        first: int,
    ) -> pa.RecordBatch | None:
        assert self.decoder is not None  # noqa: S101 - a source of records has a decoder
        decoder = self.decoder.in_context(records.context)
        decoded = decoder.decode(records.values, with_refused(columns, self.refused))
        outcome = without_refused(decoded, columns, self.refused)
        if self.evolving and outcome.new_fields:
            report.new_fields = merge_fields(report.new_fields, outcome.new_fields)
        if outcome.wider and self.widening:  # the batch is read again, which decides what is bad
            report.wider = join_columns(report.wider, outcome.wider)
            return None
        reads_again = self._reads_again(report)
        letters = None if reads_again else bad
        record_bad(records, outcome.bad, report, letters, first if self.reports_bad_rows else None)
        if report.bad and self.stop_at_bad:
            raise StopReading
        if reads_again:
            return None
        rows = self._with_extra(outcome.rows, outcome.kept, records)
        if self.records_absent_fields:
            kept = outcome.kept
            values = records.values if kept is None else records.values.take(kept)
            absent = decoder.absent_fields(values, outcome.rows)
            rows = rows.append_column(UNCHANGED_COLUMNS, unchanged_columns(absent, rows.num_rows))
        return self._with_numbers(rows, outcome.kept, first)

    def _reads_again(self, report: Report) -> bool:
        """Return whether the batch has to be read again with other columns.

        The rest of the split is still decoded, but not written: the types of new columns are
        inferred from all rows of the batch.
        """
        return bool(report.wider) or bool(self.new_columns(report.new_fields))

    def _fitted(self, rows: pa.RecordBatch, report: Report, first: int) -> pa.RecordBatch | None:
        """Fit rows that need no decoding to the columns, or report new columns."""
        if not self.evolving or rows.schema.equals(self.columns):
            return self._with_numbers(rows, None, first)
        fields = {field.name: field.type for field in rows.schema}
        for refused in self.refused:
            kind = fields.get(refused.column.name)
            if kind is not None and has_member(kind, refused.members):
                raise refused_column_error(rows, refused.reason)
        new = unknown_fields(self.columns, fields)
        report.new_fields = merge_fields(report.new_fields, new)
        if self.widening:
            report.wider = join_columns(report.wider, wider_columns(self.columns, fields))
        if self._reads_again(report):
            return None
        return self._with_numbers(conform_source_rows(rows, self.columns), None, first)

    def _with_numbers(
        self, rows: pa.RecordBatch, kept: pa.Array | None, first: int
    ) -> pa.RecordBatch:
        if not self.numbered:
            return rows
        if kept is None:
            numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
        else:
            numbers = pc.add(kept.cast(pa.int64()), first)
        return rows.append_column(ROW, numbers)

    def _with_extra(
        self, rows: pa.RecordBatch, kept: pa.Array | None, records: Records
    ) -> pa.RecordBatch:
        if not records.extra:
            return rows
        arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, column in records.extra.items():
            arrays[name] = column if kept is None else column.take(kept)
        columns = [column for column in self.columns if column.name in arrays]
        return pa.RecordBatch.from_arrays(
            [arrays[column.name].cast(column.type) for column in columns],
            schema=pa.schema(columns),
        )


@dataclass(frozen=True)
class ReadAndWrite:
    """Reads and writes in one task: the rows never enter the JVM."""

    reading: Reading
    writer: TaskWriter
    faults: RowValidation | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split in split_numbers(batches):
            report = Report(split)
            with reported(report):
                rows = self.reading.rows(report)
                good = rows if self.faults is None else self.faults.good_rows(rows, report)
                report.files = self.writer.write(good)
            yield pack_report(split, report)


@dataclass(frozen=True)
class ReadOnly:
    """Reads and decodes, and passes the rows to Spark. Reports go through an accumulator."""

    reading: Reading
    send_report: Callable[[Report], None]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split in split_numbers(batches):
            report = Report(split)
            with reported(report):
                for batch in self.reading.rows(report):
                    yield conform(batch, self.reading.output_schema())
            self.send_report(report)


@dataclass(frozen=True)
class WriteOnly:
    """Writes the good rows that Spark passes to it."""

    writer: TaskWriter
    faults: RowValidation | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = Report(partition())
        with reported(report):
            good = batches if self.faults is None else self.faults.good_rows(batches, report)
            report.files = self.writer.write(_count_rows(good, report))
        yield pack_report(report.split, report)


@dataclass(frozen=True)
class DropBadRows:
    """Drops bad rows before a transform that would lose the hidden columns.

    Reports go through an accumulator.
    """

    faults: RowValidation
    send_report: Callable[[Report], None]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = Report(partition())
        with reported(report):
            yield from self.faults.good_rows(batches, report)
        self.send_report(report)


class reported:  # noqa: N801 - reads as a statement
    """Puts an icestream error into the report, so that it keeps its class."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, IcestreamError):
            error.what = truncate_text(error.what)
            self._report.error = error
            return True
        return isinstance(error, StopReading)


def partition() -> int:
    """Return the number of this task's partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def split_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers of the splits that a task reads."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _count_rows(batches: Iterable[pa.RecordBatch], report: Report) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        report.rows += batch.num_rows
        yield batch
