"""Filters out bad rows in a task, and finds the records that they came from.

A row carries the number of its record (8 bytes), not the record: bad rows are few, and their
records can be read again from the source. So a pipeline without bad rows pays almost nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.contracts.decoder import BadRecord, Records
from icestream.contracts.reports import truncate_text
from icestream.contracts.sink import ROUTE
from icestream.contracts.transform import ABSENT, CHANGE, FAULT, ROW
from icestream.engine.batch.tasks import INDEX_BITS, row_number
from icestream.engine.dead_letters.buffer import DeadLetterBuffer, extra_as_json, row_as_json
from icestream.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icestream.contracts.sink import RowExpectation
    from icestream.engine.batch.tasks import Reading, Report
    from icestream.engine.dead_letters.buffer import DeadLetterWriter
    from icestream.plan.plan import PipelinePlan


class BadRow(NamedTuple):
    """A bad row: why it is bad, and what to keep of it if not its record."""

    reason: str
    raw: bytes | None = None


UNMET = "__icestream_unmet"
HIDDEN = (ROW, FAULT, UNMET)
# Further columns that rows of changes have.
_OF_CHANGES = (CHANGE, ABSENT, UNCHANGED_COLUMNS)


@dataclass(frozen=True)
class RowValidation:
    """What happens to rows with a fault, and to rows that fail an expectation.

    Attributes:
        reading: reads the records again.
        expectations: the sink's expectations, in the order of the bits of the column `UNMET`.
        keeps_faults: whether rows with a fault become dead letters, or are dropped.
        letters: the writer for dead letters; None to keep none.
        reports_bad_rows: whether the report lists every bad row instead, as a replay needs.
        check: finds further faults, with a reason for each bad row; None for no check.
        keeps_number: whether good rows keep the number of their record.
    """

    reading: Reading
    expectations: tuple[RowExpectation, ...] = ()
    keeps_faults: bool = False
    letters: DeadLetterWriter | None = None
    reports_bad_rows: bool = False
    check: Callable[[pa.RecordBatch], pa.Array | None] | None = None
    keeps_number: bool = False

    def good_rows(
        self, batches: Iterable[pa.RecordBatch], report: Report
    ) -> Iterator[pa.RecordBatch]:
        """Yield the good rows without the hidden columns; record the others in the report."""
        numbered: dict[int, BadRow] = {}
        unnumbered = None
        if self.letters is not None:
            unnumbered = DeadLetterBuffer(self.letters, report.dead_files)
        hidden = set(HIDDEN) - {ROW} if self.keeps_number else set(HIDDEN)
        for received in batches:
            batch = self._checked(received)
            visible = batch.select([name for name in batch.schema.names if name not in hidden])
            is_bad = _is_bad(batch)
            if is_bad is None or not pc.any(is_bad).as_py():
                yield visible
                continue
            bad = batch.filter(is_bad)
            self._record_bad(bad, visible.filter(is_bad), report, numbered, unnumbered)
            yield self._without_bad(visible, is_bad)
        if self.letters is not None and numbered:
            report.dead_files += self.letters.write(self._records(numbered))
        if unnumbered is not None:
            unnumbered.flush()

    def _without_bad(self, rows: pa.RecordBatch, is_bad: pa.Array) -> pa.RecordBatch:
        return rows.filter(pc.invert(is_bad))

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        reasons = None if self.check is None else self.check(batch)
        if reasons is None:
            return batch
        index = batch.schema.get_field_index(FAULT)
        if index < 0:
            return batch.append_column(FAULT, reasons)
        return batch.set_column(index, FAULT, pc.coalesce(batch.column(index), reasons))

    def _record_bad(
        self,
        bad: pa.RecordBatch,
        rows: pa.RecordBatch,
        report: Report,
        numbered: dict[int, BadRow],
        unnumbered: DeadLetterBuffer | None,
    ) -> None:
        faults = _values(bad, FAULT)
        unmet = _values(bad, UNMET)
        numbers = _values(bad, ROW)
        for index, (fault, bits, number) in enumerate(zip(faults, unmet, numbers, strict=True)):
            failed = [e for bit, e in enumerate(self.expectations) if (bits or 0) >> bit & 1]
            reason = fault if fault is not None else "; ".join(_unmet_reason(e) for e in failed)
            if fault is not None:
                report.bad += 1
                keep = self.keeps_faults
            else:
                keep = self._judge(failed, rows, index, report)
            if self.reports_bad_rows:
                report.bad_rows[_known_number(number, reason)] = truncate_text(reason)
            if not keep or unnumbered is None:
                continue
            if number is not None:
                numbered[number] = BadRow(sys.intern(reason))  # many rows share a reason
            else:
                raw = row_as_json(_without_hidden_columns(rows), index).encode()
                unnumbered.add(BadRecord(raw, reason, None))

    def _judge(
        self, failed: list[RowExpectation], rows: pa.RecordBatch, index: int, report: Report
    ) -> bool:
        """Count the expectations that a row fails; return whether it becomes a dead letter."""
        report.unmet_rows += 1
        for expectation in failed:
            report.unmet[expectation.name] = report.unmet.get(expectation.name, 0) + 1
            if expectation.on_fail == "fail" and expectation.name not in report.unmet_examples:
                report.unmet_examples[expectation.name] = truncate_text(row_as_json(rows, index))
        return any(expectation.on_fail == "dead_letter" for expectation in failed)

    def _records(self, numbered: Mapping[int, BadRow]) -> Iterator[list[BadRecord]]:
        for split, numbers in groupby(sorted(numbered), key=lambda number: number >> INDEX_BITS):
            yield from reread_records(self.reading, split, {n: numbered[n] for n in numbers})


@dataclass(frozen=True)
class ChangeValidation(RowValidation):
    """What happens to bad changes of one table.

    Their dead letters hold the row as it is after the transforms, because these may mask values.

    Attributes:
        table: the source's name of the table, for messages.
        key: the columns that identify a row.
        stops_at_fault: whether a row with a fault fails the batch.
        keeps_changes: whether the table has a row for every change; a bad one has none.
    """

    table: str = ""
    key: tuple[str, ...] = ()
    stops_at_fault: bool = False
    keeps_changes: bool = False

    def _without_bad(self, rows: pa.RecordBatch, is_bad: pa.Array) -> pa.RecordBatch:
        """Return the rows with each bad one left out, as by a filter: it deletes its old version.

        If that stayed, a later change that was sent without some values would take them from it.
        """
        if self.keeps_changes:
            return super()._without_bad(rows, is_bad)
        index = rows.schema.get_field_index(ABSENT)
        return rows.set_column(index, ABSENT, pc.or_kleene(rows.column(index), is_bad))

    def _record_bad(
        self,
        bad: pa.RecordBatch,
        rows: pa.RecordBatch,
        report: Report,
        numbered: dict[int, BadRow],
        unnumbered: DeadLetterBuffer | None,
    ) -> None:
        ops = rows.column(CHANGE).field("op")
        visible = rows.select([name for name in rows.schema.names if name not in _OF_CHANGES])
        visible = visible.append_column("op" if "op" not in visible.schema.names else "_op", ops)
        values = (_values(bad, name) for name in (FAULT, UNMET, ROW))
        for index, (fault, bits, number) in enumerate(zip(*values, strict=True)):
            failed = [e for bit, e in enumerate(self.expectations) if (bits or 0) >> bit & 1]
            if fault is not None:
                self._refuse_fault(visible.slice(index, 1), fault)
                report.bad += 1
            keep = self._judge(failed, visible, index, report) if fault is None else False
            if unnumbered is None or not (keep or (fault is not None and self.keeps_faults)):
                continue
            reason = fault or "; ".join(_unmet_reason(one) for one in failed)
            raw = row_as_json(visible, index).encode()
            reason = f"table {self.table}: {reason}"
            if number is None:
                unnumbered.add(BadRecord(raw, reason, None))
            else:
                numbered[number] = BadRow(reason, raw)

    def _refuse_fault(self, row: pa.RecordBatch, fault: str) -> None:
        if not self.stops_at_fault:
            return
        key = ", ".join(f"{name} = {row.column(name)[0]}" for name in self.key)
        raise BadRecordError(
            f"table {self.table!r}: the row with {key} can't be transformed: {fault}"
            if key
            else f"table {self.table!r}: a row can't be transformed: {fault}",
            todo="Nothing of the batch was written. Change the transforms, or set `on_error: "
            "dead_letter` with a `dead_letter` table, or `on_error: drop`, on the sink.",
        )

    def _records(self, numbered: Mapping[int, BadRow]) -> Iterator[list[BadRecord]]:
        if getattr(self.reading, "change_decoder", None) is not None:
            yield from super()._records(numbered)
            return
        yield [
            BadRecord(bad.raw, bad.reason, row_position(self.reading, number))
            for number, bad in numbered.items()
        ]


def reread_records(
    reading: Reading, split: int, bad: Mapping[int, BadRow]
) -> Iterator[list[BadRecord]]:
    """Yield the records of a split with the given numbers, block by block."""
    base = row_number(split, 0)
    waiting = sorted(bad)
    for block in reading.blocks(split):
        count = len(block.values) if isinstance(block, Records) else block.num_rows
        numbers = [number for number in waiting if number < base + count]
        waiting = waiting[len(numbers) :]
        yield [_record(reading, block, n - base, n, bad[n]) for n in numbers]
        base += count
        if not waiting:
            return


def _record(
    reading: Reading, block: Records | pa.RecordBatch, index: int, number: int, bad: BadRow
) -> BadRecord:
    if not isinstance(block, Records):
        raw = row_as_json(block, index).encode() if bad.raw is None else bad.raw
        return BadRecord(raw, bad.reason, row_position(reading, number))
    if bad.raw is not None:
        return BadRecord(bad.raw, bad.reason, block.position(index))
    extra = extra_as_json(block, index)
    return BadRecord(block.values[index].as_py(), bad.reason, block.position(index), extra)


def row_position(reading: Reading, number: int) -> str:
    """Return the position of a row of a source that gives rows, not records."""
    split, row = number >> INDEX_BITS, number & ((1 << INDEX_BITS) - 1)
    return f"{reading.source.identity()}, part {split}, row {row}"


def _known_number(number: int | None, reason: str) -> int:
    if number is None:
        raise BadRecordError(
            f"a row that can't be traced back to one record is bad: {reason}",
            todo="Nothing was written. Exclude its record with --reason or --since, or fix the "
            "pipeline's transforms.",
        )
    return number


def _unmet_reason(expectation: RowExpectation) -> str:
    return f"expectation {expectation.name!r} is not met: {expectation.expr}"


def _without_hidden_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select([name for name in rows.schema.names if name != ROUTE])


def _is_bad(batch: pa.RecordBatch) -> pa.Array | None:
    masks = []
    if FAULT in batch.schema.names:
        masks.append(batch.column(FAULT).is_valid())
    if UNMET in batch.schema.names:
        masks.append(pc.not_equal(batch.column(UNMET), 0))
    if len(masks) == 2:
        return pc.or_(*masks)
    return masks[0] if masks else None


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    values: list[Any] = batch.column(name).to_pylist()
    return values


def with_row_checks(
    plan: PipelinePlan, reading: Reading, letters: DeadLetterWriter | None
) -> tuple[Reading, RowValidation | None]:
    """Return the reading and validation that filter out rows that the sink refuses.

    None for the validation if such rows fail the batch. If they may become dead letters, each row
    has the number of its record, and keeps it if a table may still refuse it.
    """
    if plan.on_error == "fail":
        return reading, None
    sink = plan.sink
    check = sink.row_faults()
    if check is None:
        return reading, None
    keeps_records = letters is not None or reading.reports_bad_rows
    numbered = keeps_records and plan.source.traits.replayable
    faults = RowValidation(
        reading=reading,
        keeps_faults=plan.on_error == "dead_letter",
        letters=letters,
        reports_bad_rows=reading.reports_bad_rows,
        check=check,
        keeps_number=sink.may_refuse_rows,
    )
    return replace(reading, numbered=numbered), faults
