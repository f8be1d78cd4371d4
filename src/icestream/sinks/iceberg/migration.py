"""The columns that a pipeline declared: only what it brought itself may it drop again.

A table property holds their field ids and names. It is set after the columns were changed, in a
commit of its own: a crash in between leaves a column out of it, which is then kept too long and
never dropped too early.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icestream.contracts.offset import replay_name
from icestream.errors import SchemaMismatchError
from icestream.schemas.changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    UpdateType,
)
from icestream.schemas.column_names import RENAME_RESERVED, reserved_problem
from icestream.schemas.comparison import SchemaComparison, compare
from icestream.schemas.comparison import arrow_to_iceberg as to_iceberg
from icestream.schemas.comparison import iceberg_to_arrow as to_arrow
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.partition_terms import parse_terms
from icestream.sinks.iceberg.partitioning import names_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.options import IcebergOptions


PREFIX = "icestream.columns."


def property_key(pipeline: str) -> str:
    """Return the table property that holds the columns which a pipeline last declared."""
    return PREFIX + pipeline


def read_declared(properties: Mapping[str, str], pipeline: str) -> dict[int, str]:
    """Return the columns that a pipeline last declared, by field id; none if it never did."""
    try:
        kept = json.loads(properties.get(property_key(pipeline), "{}"))
        return {int(field_id): str(name) for field_id, name in kept.items()}
    except (ValueError, AttributeError):
        # Without it nothing is dropped, and it is written anew.
        return {}


def declared_text(table: Schema, stream: Schema) -> str:
    """Return the property's value for a table that has all columns of the stream."""
    names = set(stream._lazy_id_to_name.values())
    found = {key: name for key, name in table._lazy_id_to_name.items() if name in names}
    return json.dumps(found, sort_keys=True, separators=(",", ":"))


def droppable(table: Schema, before: Mapping[int, str], stream: Schema) -> set[str]:
    """Return the columns that the pipeline may drop, should the stream lack them.

    Those that it declared before, and that go by the same name still: what somebody renamed is in
    use. Not those with a member that somebody else added, nor those whose name the stream has in
    other letters, capital or small.
    """
    names = table._lazy_id_to_name
    written = {name.lower() for name in stream._lazy_id_to_name.values()}
    kept = {
        name for key, name in names.items() if before.get(key) != name or name.lower() in written
    }
    return {
        name
        for name in names.values()
        if name not in kept and not any(each.startswith(f"{name}.") for each in kept)
    }


def is_shared(properties: Mapping[str, str], pipeline: str) -> bool:
    """Tell whether other pipelines write to the table, or have begun to.

    Replayed dead letters are rows of the pipeline itself.
    """
    own = {pipeline, replay_name(pipeline)}
    writers = [
        key.removeprefix(prefix)
        for key in properties
        for prefix in (PREFIX, ledger.PREFIX)
        if key.startswith(prefix)
    ]
    return any(writer not in own for writer in writers)


__all__ = ["TableShape", "asked", "permitted", "refuse_on_branch", "to_arrow", "to_iceberg"]

MENDED_BY_FULL = (
    "Use `schema_evolution: full`, convert the stream with a `cast` transform, or alter the table."
)
NEEDS_COLUMNS = "Use `schema_evolution: add_columns`, or alter the table."


@dataclass(frozen=True)
class TableShape:
    """A table's columns, and what hangs on them.

    Attributes:
        spec: its partition spec.
        specs: every spec that it ever had.
        is_shared: whether other pipelines write to it too.
        declared_before: the columns that the pipeline last declared, by field id.
    """

    schema: Schema
    spec: PartitionSpec
    specs: Sequence[PartitionSpec]
    sort_order: SortOrder
    format_version: int
    is_shared: bool
    declared_before: Mapping[int, str]

    def needed(self, options: IcebergOptions) -> dict[str, str]:
        """Return the columns that can't be dropped, and what each does."""
        needed = {}
        if options.sequence_field:
            needed[options.sequence_field] = "tells which change is newer"
        for order in self.sort_order.fields:
            needed[self._name(order.source_id)] = "sorts the table"
        if names_partitions(options):
            partitions = [term.column for term in parse_terms(options)]
        else:
            partitions = [self._name(field.source_id) for field in self.spec.fields]
        return {**needed, **dict.fromkeys(partitions, "partitions the table")}

    def held(self) -> set[str]:
        """Return the columns by which older files are partitioned, and which must stay."""
        sources = {field.source_id for spec in self.specs for field in spec.fields}
        return {self._name(each) for each in sources if each in self.schema.field_ids}

    def partition_names(self) -> set[str]:
        """Return the names that no new column may have: Iceberg checks every spec for them."""
        return {field.name for spec in self.specs for field in spec.fields}

    def _name(self, field_id: int) -> str:
        return str(self.schema.find_column_name(field_id))


def asked(
    table: TableShape, columns: pa.Schema, options: IcebergOptions, *, declared: bool
) -> SchemaComparison:
    """Return what rows with `columns` ask of the table, as far as the options let it follow.

    Args:
        table: the table.
        columns: the columns of the rows.
        options: the sink's.
        declared: whether the source declares them, so that they are all there are.
    """
    stream = to_iceberg(columns, table.format_version)
    found = _compared(table, stream, options, declared=declared)
    taken = table.partition_names()
    clashes = [
        f"column {name!r} can't be added: a partition field of the table has that name"
        for change in found.changes
        if isinstance(change, AddColumn) and (name := change.column) in taken
    ]
    reserved = [problem for name in _new_names(found) if (problem := reserved_problem(name))]
    todo = RENAME_RESERVED if reserved and not (found.problems or clashes) else found.todo
    return replace(found, problems=(*found.problems, *clashes, *reserved), todo=todo)


def _new_names(found: SchemaComparison) -> Iterator[str]:
    """Yield the names that columns at the top of the table would get."""
    for change in found.changes:
        if isinstance(change, AddColumn) and len(change.path) == 1:
            yield change.column
        elif isinstance(change, RenameColumn) and len(change.path) == 1:
            yield change.new_name


def _compared(
    table: TableShape, stream: Schema, options: IcebergOptions, *, declared: bool
) -> SchemaComparison:
    if options.schema_evolution != "full":
        return compare(table.schema, stream)
    return compare(
        table.schema,
        stream,
        renames=options.renames,
        # What only the rows of another pipeline have is not ours to drop.
        declared=declared and not table.is_shared,
        keys=options.key_fields,
        needed=table.needed(options),
        held=table.held(),
        droppable=droppable(table.schema, table.declared_before, stream),
    )


def permitted(found: SchemaComparison, evolution: str, branch: str = MAIN) -> list[SchemaChange]:
    """Return the changes that make the table fit, all of them allowed.

    Args:
        found: what the stream asks of the table.
        evolution: `strict`, `add_columns` or `full`.
        branch: the branch that the rows go to.

    Raises:
        SchemaMismatchError: a change that is needed is not allowed, or none would do; the message
            shows the whole difference.
    """
    if evolution == "full":
        if found.problems:
            raise SchemaMismatchError("; ".join(found.problems), todo=found.todo)
        refuse_on_branch(found.changes, branch)
        return list(found.changes)
    lacking = [change for change in found.changes if isinstance(change, AddColumn)]
    mended = [words for change in found.changes if (words := _refusal(change))]
    refused = [*found.problems, *mended]
    todo = MENDED_BY_FULL if mended and not found.problems else found.todo
    if evolution == "strict" and lacking:
        todo = todo if refused else NEEDS_COLUMNS
        named = ", ".join(f"{change.column!r} {change.field_type}" for change in lacking)
        refused.append(f"the stream has columns that the table lacks: {named}")
    if refused:
        raise SchemaMismatchError("; ".join(refused), todo=todo)
    return list(lacking)


def refuse_on_branch(changes: Iterable[SchemaChange], branch: str) -> None:
    """Refuse what readers of the main branch would notice before anything is published.

    Raises:
        SchemaMismatchError: a column would be dropped or renamed for the rows of a branch.
    """
    kinds = (DropColumn, RenameColumn)
    seen = [str(change) for change in changes if isinstance(change, kinds)]
    if branch != MAIN and seen:
        raise SchemaMismatchError(
            f"columns belong to all branches, and rows for branch {branch!r} ask to "
            f"{', '.join(seen)}",
            todo="Alter the table with your engine once its readers are ready, or write to the "
            "main branch.",
        )


def _refusal(change: SchemaChange) -> str | None:
    """Say why rows can't be written without a change that only `full` makes; None if they can."""
    if isinstance(change, UpdateType):
        return (
            f"column {change.column!r} is {change.old_type} in the table and {change.new_type} in "
            "the stream"
        )
    if isinstance(change, MakeOptional) and change.is_missing:
        return f"column {change.column!r} is required by the table and missing in the stream"
    # One that the stream has, without promising a value, is looked at row by row.
    return None
