"""Reads changes to many tables: each block names its table and has its own columns."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icestream.contracts.changes import change_schema_of
from icestream.contracts.decoder import Records
from icestream.contracts.reports import run_tasks
from icestream.engine.batch import tasks
from icestream.engine.batch.commit import (
    BatchOutcome,
    bad_record_error,
    discard_files,
    prepare_dead_letters,
)
from icestream.engine.batch.tasks import Reading, StopReading, record_bad, row_number
from icestream.engine.dead_letters.buffer import DeadLetterBuffer
from icestream.engine.dead_letters.expectations import unmet_expectation_error
from icestream.errors import IcestreamError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icestream.contracts.changes import ChangeDecoder, DecodedChanges
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.source import Split
    from icestream.engine.batch.columns import StreamColumns
    from icestream.engine.batch.tasks import Report
    from icestream.engine.dead_letters.buffer import DeadLetterWriter
    from icestream.plan.plan import PipelinePlan


@dataclass(frozen=True)
class ChangeReading(Reading):
    """Reads splits into blocks of changes.

    Attributes:
        change_decoder: decodes records; None if the source yields blocks of changes itself.
    """

    change_decoder: ChangeDecoder | None = None

    def rows(self, report: Report) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of a split, and record undecodable records in its report."""
        for block, _ in self._indexed_blocks(report):
            yield block

    def numbered_blocks(self, report: Report) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the blocks of a split, each with the numbers of the records of its rows."""
        for block, indexes in self._indexed_blocks(report):
            if indexes is None:
                yield block, pa.nulls(block.num_rows, pa.int64())
            else:
                yield block, pa.array(indexes + row_number(report.split, 0), pa.int64())

    def _indexed_blocks(
        self, report: Report
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]]:
        """Yield blocks, each with the index in the split of the record of each row, if known."""
        bad = None
        if self.dead_letters is not None:
            bad = DeadLetterBuffer(self.dead_letters, report.dead_files)
        first = 0
        for content in self.blocks(report.split):
            if not isinstance(content, Records):
                report.rows += content.num_rows
                yield content, np.arange(first, first + content.num_rows)
                first += content.num_rows
                continue
            decoded = self._decode_changes(content, report, bad)
            for number, block in enumerate(decoded.blocks):
                report.rows += block.num_rows
                yield block, decoded.records[number] + first if decoded.records else None
            first += len(content.values)
        if bad is not None:
            bad.flush()

    def _decode_changes(
        self, content: Records, report: Report, bad: DeadLetterBuffer | None
    ) -> DecodedChanges:
        assert self.change_decoder is not None  # noqa: S101 - a source of records has a decoder
        decoded = self.change_decoder.decode_changes(content)
        record_bad(content, decoded.bad, report, bad)
        report.ignored.update(decoded.ignored)
        if report.bad and self.stop_at_bad:
            raise StopReading
        return decoded


_log = logging.getLogger(__name__)

# Pipelines and topics for which ignored tombstones were logged.
_WARNED: set[tuple[str, str]] = set()
# Tables that change while a batch is read make it be read again, at most this many times.
ROUNDS = 20


def write_changes(
    spark: SparkSession | None,
    plan: PipelinePlan,
    columns: StreamColumns,
    splits: tuple[Split, ...],
    mark: BatchMark,
) -> BatchOutcome:
    """Read the splits and write files, evolving each table like its table in the source."""
    if plan.uses_spark_sql():
        assert spark is not None  # noqa: S101 - started for plans that use Spark SQL
        outcome = _write_transformed(spark, plan, columns, splits, mark)
    else:
        outcome = _write_unchanged(spark, plan, splits, mark)
    _warn_of_ignored(plan.name, outcome.ignored)
    return outcome


def _reading(
    plan: PipelinePlan, splits: tuple[Split, ...], letters: DeadLetterWriter | None
) -> ChangeReading:
    decoder = plan.source.change_decoder()
    if decoder is not None:
        decoder.records_absent_fields = plan.sink.keeps_missing_fields()
    return ChangeReading(
        source=plan.source,
        decoder=None,
        splits=splits,
        columns=pa.schema([]),
        evolving=False,
        stop_at_bad=plan.on_error == "fail",
        dead_letters=letters if plan.on_error == "dead_letter" else None,
        change_decoder=decoder,
    )


def _write_unchanged(
    spark: SparkSession | None, plan: PipelinePlan, splits: tuple[Split, ...], mark: BatchMark
) -> BatchOutcome:
    """Write changes as the source gives them: they never enter the JVM."""
    sink = plan.sink
    schemas = list(plan.source.block_schemas(splits))
    letters = prepare_dead_letters(plan, mark)
    outcome = BatchOutcome()
    reading = _reading(plan, splits, letters)
    for _ in range(ROUNDS):
        sink.prepare_tables(schemas)
        outcome = BatchOutcome(reading=reading)
        task = tasks.ReadAndWrite(reading, sink.writer())
        for report in run_tasks(spark, len(splits), task):
            outcome.add(report)
        failed = outcome.error or bad_record_error(plan, outcome, mark)
        if failed is None and not outcome.new_change_schemas:
            return outcome
        discard_files(plan, outcome)
        if failed is not None:
            raise failed.at(f"pipeline {plan.name!r}, batch {mark.epoch}")
        schemas += outcome.new_change_schemas
    tables = {".".join(change_schema_of(columns).table) for columns in outcome.new_change_schemas}
    raise SchemaMismatchError(
        f"the batch still has new columns after {ROUNDS} schema changes, in tables: "
        f"{', '.join(sorted(tables))}",
        where=f"pipeline {plan.name!r}, batch {mark.epoch}",
        todo="Make the source send column types; with Debezium, enable schemas in its converter.",
    )


def _write_transformed(
    spark: SparkSession,
    plan: PipelinePlan,
    columns: StreamColumns,
    splits: tuple[Split, ...],
    mark: BatchMark,
) -> BatchOutcome:
    """Write changes that go through transforms and expectations."""
    from icestream.engine.batch.change_batch import TransformedChanges

    reading = _reading(plan, splits, letters := prepare_dead_letters(plan, mark))
    outcome = BatchOutcome(reading=reading)
    where = f"pipeline {plan.name!r}, batch {mark.epoch}"
    known = columns.newest_schemas, columns.transformed_schemas
    with TransformedChanges(spark, plan, reading, letters, *known) as changes:
        for write in (changes.read, changes.write):
            try:
                reports = write()
            except IcestreamError as exc:
                discard_files(plan, outcome)
                raise exc.at(where) from exc.__cause__
            for report in reports:
                outcome.add(report)
            failed = outcome.error or bad_record_error(plan, outcome, mark)
            failed = failed or unmet_expectation_error(
                plan, outcome.unmet, outcome.unmet_examples, mark
            )
            if failed is not None:
                discard_files(plan, outcome)
                raise failed.at(where)
    return outcome


def _warn_of_ignored(pipeline: str, tombstones: Mapping[str, int]) -> None:
    """Log a warning, once for each topic, that tombstones are ignored."""
    for topic, count in tombstones.items():
        if (pipeline, topic) not in _WARNED:
            _WARNED.add((pipeline, topic))
            _log.warning(
                "pipeline %s: ignored %d tombstones of topic %r, whose table is unknown: deletes "
                "that arrive only as tombstones are not applied there",
                pipeline,
                count,
                topic,
            )
