"""Reads changes to many tables: each block names its table and has its own columns."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from icestream.engine.batch.tasks import Reading, StopReading, record_bad
from icestream.engine.dead_letters.buffer import DeadLetterBuffer
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.source import Split
    from icestream.engine.batch.tasks import Report
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
        bad = None
        if self.dead_letters is not None:
            bad = DeadLetterBuffer(self.dead_letters, report.dead_files)
        for content in self.blocks(report.split):
            for block in self._blocks(content, report, bad):
                report.rows += block.num_rows
                yield block
        if bad is not None:
            bad.flush()

    def _blocks(
        self, content: Records | pa.RecordBatch, report: Report, bad: DeadLetterBuffer | None
    ) -> Sequence[pa.RecordBatch]:
        if not isinstance(content, Records):
            return [content]
        assert self.change_decoder is not None  # noqa: S101 - a source of records has a decoder
        decoded = self.change_decoder.decode_changes(content)
        record_bad(content, decoded.bad, report, bad)
        report.ignored.update(decoded.ignored)
        if report.bad and self.stop_at_bad:
            raise StopReading
        return decoded.blocks


_log = logging.getLogger(__name__)

# Pipelines and topics for which ignored tombstones were logged.
_WARNED: set[tuple[str, str]] = set()
# Tables that change while a batch is read make it be read again, at most this many times.
ROUNDS = 20


def write_changes(
    spark: SparkSession | None,
    plan: PipelinePlan,
    splits: tuple[Split, ...],
    mark: BatchMark,
) -> BatchOutcome:
    """Read the splits and write files, evolving each table like its table in the source."""
    sink = plan.sink
    schemas = list(plan.source.block_schemas(splits))
    letters = prepare_dead_letters(plan, mark)
    outcome = BatchOutcome()
    decoder = plan.source.change_decoder()
    if decoder is not None:
        decoder.records_absent_fields = sink.keeps_missing_fields()
    for _ in range(ROUNDS):
        sink.prepare_tables(schemas)
        reading = ChangeReading(
            source=plan.source,
            decoder=None,
            splits=splits,
            columns=pa.schema([]),
            evolving=False,
            stop_at_bad=plan.on_error == "fail",
            dead_letters=letters if plan.on_error == "dead_letter" else None,
            change_decoder=decoder,
        )
        outcome = BatchOutcome(reading=reading)
        task = tasks.ReadAndWrite(reading, sink.writer())
        for report in run_tasks(spark, len(splits), task):
            outcome.add(report)
        failed = outcome.error or bad_record_error(plan, outcome, mark)
        if failed is None and not outcome.new_change_schemas:
            _warn_of_ignored(plan.name, outcome.ignored)
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
