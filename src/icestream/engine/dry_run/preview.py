"""The first rows of a source, as a pipeline would write them."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.changes import change_schema_of, is_block
from icestream.contracts.decoder import Records
from icestream.engine.dry_run.dry_run import DryRunResult, dry_run
from icestream.engine.dry_run.stand_ins import OPERATION, DryRunSink, count_rows
from icestream.errors import PlanError
from icestream.plan.plan import Batching, PipelinePlan, RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icestream.contracts.decoder import BadRecord
    from icestream.contracts.sink import RowExpectation
    from icestream.contracts.source import Source
    from icestream.engine.dry_run.dry_run import OpenSpark

# Transforms may leave many rows out, and columns are inferred from more than a screenful.
MIN_RECORDS = 100


@dataclass(frozen=True)
class PreviewTable:
    """The first rows of one table.

    Attributes:
        name: its full name, or the source's name of it.
        columns: its columns, without those that say what a change does.
        rows: the rows to show.
        count: how many rows there are in what was read.
        source_table: its name in the source, if the source names tables.
    """

    name: str
    columns: pa.Schema
    rows: list[dict[str, Any]]
    count: int
    source_table: str = ""


@dataclass(frozen=True)
class Preview:
    """The first rows of a source, after transforms and expectations.

    Attributes:
        records: how many records were read.
        left_out: how many rows the transforms left out; None if one of them makes rows of its own.
        is_inferred: whether the columns were inferred from the records.
        bad: the bad rows, those that fail an expectation included.
        unmet: each expectation that rows fail, with their number.
    """

    tables: list[PreviewTable]
    records: int
    left_out: int | None
    is_inferred: bool
    bad: Sequence[BadRecord]
    unmet: list[tuple[RowExpectation, int]]


def source_plan(name: str, source: Source[Any]) -> PipelinePlan:
    """Return a pipeline that only reads: no transforms, no expectations and no table."""
    return PipelinePlan(
        name=name,
        source_name=name,
        source=source,
        sink_name="",
        sink=DryRunSink(None),
        batching=Batching(1, 1, 1),
        restart=RestartPolicy(),
        on_error="dead_letter",
    )


def preview(
    plan: PipelinePlan, open_spark: OpenSpark, *, rows: int, tables: Sequence[str] = ()
) -> Preview:
    """Return the first rows of a pipeline's source, as they would be written.

    Args:
        plan: the pipeline, or `source_plan`.
        open_spark: starts Spark; called only if the rows pass through Spark SQL.
        rows: how many rows of each table to return.
        tables: only these tables of many, by their name in the source or in the lake.

    Raises:
        IcestreamError: they can't be read, or the batch would fail.
    """
    blocks = list(first_blocks(plan.source, max(rows, MIN_RECORDS), tables))
    result = dry_run(plan, blocks, open_spark, keeps_bad=True) if blocks else DryRunResult(0)
    shown = [_table(name, batches, rows) for name, batches in result.tables.items()]
    expectations = {one.name: one for one in plan.sink.expectations()}
    decoder = plan.source.decoder()
    return Preview(
        tables=_chosen(shown, tables),
        records=result.records,
        left_out=_left_out(plan, result),
        is_inferred=decoder is not None and plan.source.declared_schema() is None,
        bad=result.bad,
        unmet=[(expectations[name], count) for name, count in result.unmet.items()],
    )


def first_blocks(
    source: Source[Any], max_rows: int, tables: Sequence[str] = ()
) -> Iterator[Records | pa.RecordBatch]:
    """Yield the first blocks of a source: at most `max_rows`, of each table that blocks name."""
    counts: Counter[Any] = Counter()
    is_changes = source.traits.changes
    with tempfile.TemporaryDirectory(prefix="icestream-preview-") as folder:
        source.keep_state_in(Path(folder))
        try:
            block: Any
            for block in source.first_rows(max_rows, tables):
                is_records = isinstance(block, Records)
                table = change_schema_of(block.schema) if is_changes and not is_records else None
                count = count_rows([block])
                wanted = max_rows - counts[table]
                counts[table] += count
                if wanted > 0:
                    yield block if count <= wanted else block.slice(0, wanted)
                if table is None and counts[None] >= max_rows:
                    return
        finally:
            source.close()


def _table(name: str, batches: Sequence[pa.RecordBatch], rows: int) -> PreviewTable:
    plain = [pa.Table.from_batches([batch]).replace_schema_metadata(None) for batch in batches]
    whole = pa.concat_tables(plain, promote_options="permissive")
    # What a change does comes first.
    names = sorted(whole.schema.names, key=lambda column: column != OPERATION)
    shown = whole.select(names)
    return PreviewTable(
        name=name,
        columns=shown.schema,
        rows=shown.slice(0, rows).to_pylist(),
        count=whole.num_rows,
        source_table=_source_table(batches[0].schema),
    )


def _source_table(columns: pa.Schema) -> str:
    return ".".join(change_schema_of(columns).table) if is_block(columns) else ""


def _left_out(plan: PipelinePlan, result: DryRunResult) -> int | None:
    number = result.records - result.rows - len(result.bad)
    return number if plan.transforms and number >= 0 else None


def _chosen(shown: list[PreviewTable], tables: Sequence[str]) -> list[PreviewTable]:
    chosen = [
        one
        for one in shown
        if not tables
        or one.source_table in tables
        or any(f".{one.name}".endswith(f".{name}") for name in tables)
    ]
    if tables and not chosen:
        names = ", ".join(one.source_table or one.name for one in shown) or "none"
        raise PlanError(
            f"no table named {', '.join(map(repr, tables))} is in the first records",
            todo=f"Found: {names}.",
        )
    return chosen
