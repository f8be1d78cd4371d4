"""Binds the columns that a file names, from the source through the transforms to the sink.

Offline, the columns are those that the source declares. What an unknown name means depends on how
much is known:

- If the source declares its columns, the rows have no others: an unknown name is an error.
- If nothing is known, only SQL that is broken whatever the columns are is an error.
- Columns that were sampled or belong to an existing table are known, but a later record may bring
  others; see `Columns.is_complete`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.columns import UNKNOWN_COLUMNS, Columns
from icestream.contracts.options import ShorthandOptions
from icestream.errors import IcestreamError, PlanError
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icestream.config import Component, Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.columns import OptionProblem
    from icestream.contracts.source import Source
    from icestream.contracts.transform import Transform


@dataclass(frozen=True)
class BoundColumns:
    """The columns of a pipeline.

    Attributes:
        rows: the columns of the rows after the transforms.
        table: the columns of the table that the sink would create.
        problems: what a run would refuse, each with its place in the file.
    """

    rows: Columns
    table: Columns
    problems: tuple[PlanError, ...]


def declared_columns(source: Source[Any]) -> Columns:
    """Return the columns that a source declares; unknown ones if it does not."""
    try:
        schema = source.declared_schema()
    except IcestreamError:
        return UNKNOWN_COLUMNS  # reported when the source is built
    return UNKNOWN_COLUMNS if schema is None else Columns.of(schema)


def bind_steps(
    config: Config, columns: Columns, steps: Sequence[tuple[Component, Transform[Any]]]
) -> tuple[Columns, list[PlanError]]:
    """Bind the columns that transforms name; return the columns after them, and the problems."""
    problems: list[PlanError] = []
    for component, transform in steps:
        places = _Places(config, component, problems)
        columns = transform.output_columns(columns, places.report)
    return columns, problems


def bind_columns(
    config: Config,
    columns: Columns,
    steps: Sequence[tuple[Component, Transform[Any]]],
    sink: Component,
    existing: Columns | None = None,
) -> BoundColumns:
    """Bind every column that a pipeline names.

    Args:
        config: the file.
        columns: the columns of the source.
        steps: the transforms of the pipeline, in the file and built.
        sink: the sink, in the file.
        existing: the columns of the table, none if it does not exist; None if that is not known.
    """
    # These need Arrow, which takes longer to import than a file takes to check.
    from icestream.sinks.iceberg.column_checks import check_columns, table_columns

    columns, problems = bind_steps(config, columns, steps)
    options = sink.options
    if not isinstance(options, IcebergOptions):
        return BoundColumns(columns, UNKNOWN_COLUMNS, tuple(problems))
    table = table_columns(options, columns)
    after = UNKNOWN_COLUMNS
    if existing is not None:
        names = set(existing.names)
        added = [column for column in table.known if column.name not in names]
        after = Columns((*existing.known, *added), columns.is_complete)
    places = _Places(config, sink, problems)
    check_columns(options, columns, places.report, after, is_whole=sink.is_whole)
    return BoundColumns(columns, table, tuple(problems))


def describe_columns(columns: Columns, format_version: int) -> dict[str, Any]:
    """Return the columns of a new table as data, with the types that Iceberg gives them."""
    import pyarrow as pa

    from icestream.schemas.comparison import arrow_to_iceberg

    described = []
    for name, kind in columns.known:
        field = None if kind is None else pa.schema([(name, kind)])
        words = None if field is None else arrow_to_iceberg(field, format_version).fields[0]
        described.append({"name": name, "type": None if words is None else str(words.field_type)})
    return {"columns": described, "columns_complete": columns.is_complete}


def column_lines(table: dict[str, Any]) -> Iterator[str]:
    """Yield the columns of a new table as text, from their description."""
    for column in table["columns"]:
        kind = f" {column['type']}" if column["type"] else ", of a type that Spark decides"
        yield f"column {column['name']}{kind}"
    if not table["columns_complete"]:
        known = table["columns"]
        yield "and columns that are known during a run" if known else "columns of the first records"


@dataclass(frozen=True)
class _Places:
    """Finds the place in the file of a problem with a component's options."""

    config: Config
    component: Component
    problems: list[PlanError]

    def report(self, problem: OptionProblem) -> None:
        where = self.config.tree.where(self._path(problem), key=problem.is_key)
        self.problems.append(PlanError(problem.what, where=where, todo=problem.todo))

    def _path(self, problem: OptionProblem) -> KeyPath:
        path, options = self.component.path, self.component.options
        if isinstance(options, ShorthandOptions) and problem.path[0] == options.shorthand:
            written = self.config.tree.source_value(path)
            if not options.is_full_form(written):
                return (*path, *problem.path[1:])
        return (*path, *problem.path)
