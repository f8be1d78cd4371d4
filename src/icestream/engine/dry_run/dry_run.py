"""Runs records through a pipeline as a batch would, up to the files that it does not write."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.decoder import BadRecord, Records
from icestream.contracts.offset import BatchMark
from icestream.engine.batch.batch import write_files
from icestream.engine.batch.changes import write_changes
from icestream.engine.batch.columns import StreamColumns
from icestream.engine.dry_run.stand_ins import (
    DryRunMirror,
    DryRunSink,
    NoState,
    RecordedSource,
    collected_rows,
    count_rows,
)
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icestream.contracts.decoder import Decoder
    from icestream.engine.batch.commit import BatchOutcome
    from icestream.plan.plan import PipelinePlan, Plan

    OpenSpark = Callable[[], SparkSession]

# Small enough for one core; the user's own settings of Spark SQL apply.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
}


@dataclass(frozen=True)
class DryRunResult:
    """What a batch of records becomes.

    Attributes:
        records: how many records there were; rows, if the source has no records.
        tables: the rows, by the full name of their table. A table of a mirror may have several
            blocks of changes, with columns of their own.
        bad: the records and rows that are bad, with the reason and where they came from.
        unmet: how many rows fail each expectation, by its name.
    """

    records: int
    tables: Mapping[str, Sequence[pa.RecordBatch]] = field(default_factory=dict)
    bad: Sequence[BadRecord] = ()
    unmet: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batches in self.tables.values() for batch in batches)


def dry_run(
    plan: PipelinePlan,
    blocks: Sequence[Records | pa.RecordBatch],
    open_spark: OpenSpark,
    *,
    decoder: Decoder | None = None,
    keeps_bad: bool = False,
) -> DryRunResult:
    """Take the records of one batch through decoding, transforms and expectations.

    Args:
        plan: the pipeline; neither its source nor its sink is used but for its settings.
        blocks: the records, or rows, of its source.
        open_spark: starts Spark; called only if the rows pass through Spark SQL.
        decoder: the decoder of the records, if the source itself has rows.
        keeps_bad: whether to return bad rows, whatever `on_error` and `on_fail` say; otherwise
            they are dropped, returned or fail, as in a run.

    Raises:
        IcestreamError: the batch would fail.
    """
    on_error = "dead_letter" if keeps_bad else plan.on_error
    kind = DryRunMirror if plan.source.traits.changes else DryRunSink
    sink = kind(_origin(plan), on_error=on_error, keeps_failed=keeps_bad)
    keeps_letters = keeps_bad or plan.dead_letter is not None
    trial = replace(
        plan,
        source=RecordedSource(plan.source, blocks, decoder),
        sink=sink,
        on_error=on_error,
        dead_letter=DryRunSink(None) if keeps_letters else None,
    )
    mark = BatchMark(plan.name, "dry-run", 0, plan.source.identity(), {}, {})
    splits = tuple(trial.source.splits({}, {}, 1))
    spark = open_spark() if trial.uses_spark_sql() else None
    columns = StreamColumns(trial, NoState(Path(), plan.name))
    try:
        if sink.is_mirror:
            outcome = write_changes(spark, trial, columns, splits, mark)
        else:
            outcome = write_files(spark, trial, columns, splits, mark)
    except IcestreamError as exc:
        raise exc.at(f"pipeline {plan.name!r}") from exc.__cause__
    return DryRunResult(
        records=count_rows(blocks),
        tables=_tables(outcome, sink),
        bad=_bad_records(outcome),
        unmet=dict(outcome.unmet),
    )


def _origin(plan: PipelinePlan) -> Any:
    """Return the sink whose rules apply; None for a plan that already has a stand-in."""
    return None if isinstance(plan.sink, DryRunSink) else plan.sink


def _tables(outcome: BatchOutcome, sink: DryRunSink) -> dict[str, list[pa.RecordBatch]]:
    tables: dict[str, list[pa.RecordBatch]] = {}
    for file in outcome.files:
        for table, rows in sink.rows_by_table(collected_rows(file)).items():
            tables.setdefault(table, []).append(rows)
    if not tables and sink.columns_received is not None and sink.single_table() is not None:
        tables[sink.identity()] = [pa.RecordBatch.from_pylist([], schema=sink.columns_received)]
    return tables


def _bad_records(outcome: BatchOutcome) -> list[BadRecord]:
    letters = [row for file in outcome.dead_files for row in collected_rows(file).to_pylist()]
    return [
        BadRecord(letter["raw"], letter["reason"], letter["position"], letter["extra"])
        for letter in letters
    ]


@contextmanager
def dry_run_session(plan: Plan, announce: Callable[[], None]) -> Iterator[OpenSpark]:
    """Give a function that starts Spark once, with the smallest settings, and in this process.

    It needs no catalog, so none of icestream's jars are downloaded. It logs to a temporary folder.

    Args:
        plan: for the user's settings.
        announce: called before Spark starts.
    """
    folder = Path(tempfile.mkdtemp(prefix="icestream-dry-run-"))

    @cache
    def open_spark() -> SparkSession:
        from icestream.spark import jars
        from icestream.spark.class_archive import add_archived_jars
        from icestream.spark.session import CATALOG_PREFIX, open_session

        announce()
        conf = {
            key: value
            for key, value in plan.spark_conf.items()
            if key.startswith("spark.sql.") and not key.startswith(CATALOG_PREFIX)
        }
        settings = jars.ivy_settings(plan.spark_conf)
        # Packages of the user may define functions. Those of catalogs and stores are not needed.
        packages = jars.resolve_packages(jars.user_packages(plan.jars), folder, settings)
        # Java's class archive, if there is one, needs its jars; they are on this machine then.
        archived = jars.resolve(add_archived_jars(()))
        conf = {"spark.sql.extensions": "", **conf, **SETTINGS}
        conf |= {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder)}
        log = folder / "spark.log"
        return open_session("local[1]", conf, [*archived, *packages], log, light=True)

    try:
        yield open_spark
    finally:
        shutil.rmtree(folder, ignore_errors=True)
