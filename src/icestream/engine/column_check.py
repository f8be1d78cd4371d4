"""The step of `check` that binds the columns of a pipeline, where only the systems tell them.

A run would use the same columns for its next batch: those that the source declares, those of the
table, those that an earlier batch saved, or those that it infers from the first records. An unknown
name fails the check only where the run is certain to refuse it:

- The table's columns are those of the rows so far, and the next record may have others.
- Records are sampled. If the source holds more of them than the sample, the rest may have others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.columns import UNKNOWN_COLUMNS, Columns
from icestream.contracts.faults import CheckStep
from icestream.contracts.source import Source
from icestream.engine.batch.columns import (
    SAMPLE,
    no_columns_error,
    remembered_columns,
    sample_records,
)
from icestream.engine.state import PipelineState
from icestream.errors import ConfigError, PlanError, SchemaMismatchError
from icestream.plan.columns import bind_columns
from icestream.schemas.comparison import iceberg_to_arrow
from icestream.sinks.iceberg.column_checks import unpartitioned_problem
from icestream.sinks.iceberg.partition_terms import parse_partition_name
from icestream.sinks.iceberg.partitioning import sets_partitioning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.table import Table

    from icestream.config import Config
    from icestream.plan.plan import PipelinePlan


def column_steps(config: Config, pipeline: PipelinePlan, state: Path) -> Iterator[CheckStep]:
    """Yield the step that binds the columns of a pipeline.

    Args:
        config: the file.
        pipeline: the pipeline.
        state: the folder of `state.path`.
    """
    if not pipeline.source.traits.changes:
        yield CheckStep("bind columns", lambda: _bind(config, pipeline, state))


def _bind(config: Config, pipeline: PipelinePlan, state: Path) -> str:
    table = _find_table(pipeline)
    try:
        columns, origin = known_columns(pipeline, PipelineState(state, pipeline.name), table)
    finally:
        pipeline.source.close()
    steps = zip(config.transforms.get(pipeline.name, ()), pipeline.transforms, strict=True)
    sink = config.sinks[pipeline.sink_name]
    existing = Columns.of(() if table is None else iceberg_to_arrow(table.schema()))
    bound = bind_columns(config, columns, [*steps], sink, existing)
    problems = [*bound.problems]
    for path, exc in _partition_problems(pipeline, table):
        where = config.tree.where((*sink.path, *path))
        problems.append(PlanError(exc.what, where=where, todo=exc.todo))
    if problems:
        raise ConfigError([*problems])
    return f"{_count(len(columns.known), 'column')}, {origin}" if columns.known else origin


def known_columns(
    pipeline: PipelinePlan, state: PipelineState, table: Table | None
) -> tuple[Columns, str]:
    """Return the columns of a source's rows that the next batch would use, and their origin."""
    source = pipeline.source
    declared = source.declared_schema()
    if declared is not None:
        return Columns.of(declared), "declared by the source"
    if table is not None and not pipeline.transforms:
        sink: Any = pipeline.sink
        stream = sink.mode.stream_columns(iceberg_to_arrow(table.schema()))
        return Columns.of(stream, is_complete=False), "those of the table"
    remembered = remembered_columns(state)
    if remembered is not None:
        return Columns.of(remembered), "saved by an earlier run"
    return _sampled_columns(source)


def _sampled_columns(source: Source[Any]) -> tuple[Columns, str]:
    unknown = UNKNOWN_COLUMNS, "only known during a run"
    decoder = source.decoder()
    if decoder is None:
        schema = source.schema()
        return unknown if schema is None else (Columns.of(schema), "those of the files")
    extra = source.extra_columns() or ()
    if getattr(source.options, "schema_registry", None) is not None:
        registered = decoder.infer([])
        if registered.names:
            return Columns.of([*registered, *extra]), "those of the schema registry"
    if type(source).first_rows is not Source.first_rows:
        return unknown  # its offsets can't be asked without side effects
    start = source.initial()
    latest = source.latest(start)
    end = source.limit(start, latest, SAMPLE) if latest != start else start
    sample = sample_records(source, source.splits(start, end, 1))
    if not sample.values:
        return unknown
    decoder = decoder.in_context(sample.context)
    inferred = decoder.infer(sample.values)
    if not inferred.names:
        raise no_columns_error(decoder, sample)
    columns = [*inferred, *extra]
    origin = f"inferred from {_count(len(sample.values), 'record')}"
    return Columns.of(columns, is_complete=sample.is_all and end == latest), origin


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _find_table(pipeline: PipelinePlan) -> Table | None:
    identifier = pipeline.sink.single_table()
    return None if identifier is None else pipeline.sink.catalog.find_table(identifier)


def _partition_problems(
    pipeline: PipelinePlan, table: Table | None
) -> Iterator[tuple[tuple[str | int, ...], SchemaMismatchError]]:
    """Yield the partitions of `overwrite_partitions` that the table does not have."""
    options = pipeline.sink.options
    if options.commit_mode != "overwrite_partitions" or sets_partitioning(options):
        return
    for number, name in enumerate(options.overwrite_partitions):
        path = ("overwrite_partitions", number)
        if table is None:
            problem = unpartitioned_problem(path, name)
            yield path, SchemaMismatchError(problem.what, todo=problem.todo)
            continue
        try:
            parse_partition_name(name, table.spec(), table.schema())
        except SchemaMismatchError as exc:
            yield path, exc
