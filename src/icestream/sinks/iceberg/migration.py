"""Schema migration: the changes that let a table take the rows of a stream.

A pipeline drops only columns that it has declared itself. A table property holds their field ids
and names. It is set after the columns were changed, in a commit of its own: a crash in between
leaves a column out of the property, so the column is kept too long and never dropped too early.
"""

from __future__ import annotations

import json
import logging
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
from icestream.schemas.comparison import (
    SchemaComparison,
    arrow_to_iceberg,
    compare,
    pending_renames,
    renames_by_id,
)
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.java_table import change_columns, change_spec, read_specs
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.partition_terms import parse_partition_terms
from icestream.sinks.iceberg.partitioning import (
    describe_spec,
    partition_spec,
    sets_partitioning,
    spec_change,
)
from icestream.sinks.iceberg.properties import properties_to_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.java_table import JavaTable, TableState
    from icestream.sinks.iceberg.options import IcebergOptions


logger = logging.getLogger(__name__)

PREFIX = "icestream.columns."


def property_key(pipeline: str) -> str:
    """Return the table property that holds the columns which a pipeline last declared."""
    return PREFIX + pipeline


def read_declared_columns(properties: Mapping[str, str], pipeline: str) -> dict[int, str]:
    """Return the columns that a pipeline last declared, by field id; none if it never did."""
    try:
        kept = json.loads(properties.get(property_key(pipeline), "{}"))
        return {int(field_id): str(name) for field_id, name in kept.items()}
    except (ValueError, AttributeError):
        # Without it nothing is dropped, and it is written again.
        return {}


def declared_columns_json(table: Schema, stream: Schema) -> str:
    """Return the property's value for a table that has all columns of the stream."""
    names = set(stream._lazy_id_to_name.values())
    found = {key: name for key, name in table._lazy_id_to_name.items() if name in names}
    return json.dumps(found, sort_keys=True, separators=(",", ":"))


def droppable_columns(table: Schema, before: Mapping[int, str], stream: Schema) -> set[str]:
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


USE_FULL_EVOLUTION = (
    "Use `schema_evolution: full`, convert the stream with a `cast` transform, or alter the table."
)
USE_ADD_COLUMNS = "Use `schema_evolution: add_columns`, or alter the table."


@dataclass(frozen=True)
class TableLayout:
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

    def undroppable_columns(self, options: IcebergOptions) -> dict[str, str]:
        """Return the columns that can't be dropped, and what each does."""
        needed = {}
        if options.sequence_field:
            needed[options.sequence_field] = "tells which change is newer"
        for order in self.sort_order.fields:
            needed[self._name(order.source_id)] = "sorts the table"
        if sets_partitioning(options):
            partitions = [term.column for term in parse_partition_terms(options)]
        else:
            partitions = [self._name(field.source_id) for field in self.spec.fields]
        return {**needed, **dict.fromkeys(partitions, "partitions the table")}

    def partition_source_columns(self) -> set[str]:
        """Return the columns by which older files are partitioned, and which must stay."""
        sources = {field.source_id for spec in self.specs for field in spec.fields}
        return {self._name(each) for each in sources if each in self.schema.field_ids}

    def partition_names(self) -> set[str]:
        """Return the names that no new column may have: Iceberg checks every spec for them."""
        return {field.name for spec in self.specs for field in spec.fields}

    def _name(self, field_id: int) -> str:
        return str(self.schema.find_column_name(field_id))


def compare_with_table(
    table: TableLayout, columns: pa.Schema, options: IcebergOptions, *, declared: bool
) -> SchemaComparison:
    """Return what rows with `columns` ask of the table, as far as the options let it follow.

    Args:
        table: the table.
        columns: the columns of the rows.
        options: the sink's.
        declared: whether the source declares them, so that they are all there are.
    """
    stream = arrow_to_iceberg(columns, table.format_version)
    found = _compare(table, stream, options, declared=declared)
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


def _compare(
    table: TableLayout, stream: Schema, options: IcebergOptions, *, declared: bool
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
        needed=table.undroppable_columns(options),
        held=table.partition_source_columns(),
        droppable=droppable_columns(table.schema, table.declared_before, stream),
    )


def allowed_changes(
    found: SchemaComparison, evolution: str, branch: str = MAIN
) -> list[SchemaChange]:
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
    missing = [change for change in found.changes if isinstance(change, AddColumn)]
    unsupported = [words for change in found.changes if (words := _refusal(change))]
    refused = [*found.problems, *unsupported]
    todo = USE_FULL_EVOLUTION if unsupported and not found.problems else found.todo
    if evolution == "strict" and missing:
        todo = todo if refused else USE_ADD_COLUMNS
        named = ", ".join(f"{change.column!r} {change.field_type}" for change in missing)
        refused.append(f"the stream has columns that the table lacks: {named}")
    if refused:
        raise SchemaMismatchError("; ".join(refused), todo=todo)
    return list(missing)


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
    # One that the stream has, without promising a value, is checked row by row.
    return None


class SchemaMigration:
    """Brings one table's properties, columns and partitions in line with the stream and the file.

    Every change is derived from the table's current state, so a change that was made before a
    crash, or by another writer, is not made again.

    Args:
        options: the sink's.
        pipeline: the pipeline that writes to the table.
        identity: the table's full name, for the log.
    """

    def __init__(self, options: IcebergOptions, pipeline: str, identity: str) -> None:
        self._options = options
        self._pipeline = pipeline
        self._identity = identity
        self._migrated: tuple[pa.Schema, bool] | None = None
        self._has_file_settings = False
        self._external_renames: dict[str, str] = {}

    def is_done(self, columns: pa.Schema, *, declared: bool) -> bool:
        """Tell whether the table was already migrated to these columns."""
        if self._migrated is None:
            return False
        columns_before, declared_before = self._migrated
        return declared_before == declared and columns_before.equals(columns)

    def mark_done(self, columns: pa.Schema, *, declared: bool) -> None:
        """Remember that the table takes rows with these columns."""
        self._migrated = (columns, declared)

    def observe_change(self, before: Schema, now: Schema) -> None:
        """Take into account that another writer changed the table's columns or partitions."""
        self._migrated = None
        self._external_renames |= renames_by_id(before._lazy_id_to_name, now._lazy_id_to_name)
        logger.info("table %s: its columns or partitions were changed", self._identity)

    def step(
        self,
        table: JavaTable,
        state: TableState,
        columns: pa.Schema,
        *,
        declared: bool,
        renames: Mapping[str, str],
    ) -> bool:
        """Make the next change that the table needs, in a commit of its own.

        Args:
            table: the table.
            state: the table as it is now.
            columns: the columns of the rows.
            declared: whether the source declares them, so that they are all there are.
            renames: columns that the source calls by another name now, old name to new.

        Returns:
            Whether there was a change to make.
        """
        # Columns before partitions: a new partition field may be of a new column.
        changed = (
            (not self._has_file_settings and self._set_properties(table, state))
            or self._change_columns(table, state, columns, declared=declared, renames=renames)
            or (not self._has_file_settings and self._change_spec(table, state))
            or (declared and self._store_declared(table, state, columns))
        )
        self._has_file_settings = self._has_file_settings or not changed
        return changed

    def rename_step(self, table: JavaTable, state: TableState) -> bool:
        """Rename the columns that the file asks to rename; return whether there were any.

        Used when the stream takes its columns from the table.
        """
        if self._options.schema_evolution != "full" or not self._options.renames:
            return False
        renames = pending_renames(state.schema, self._options.renames)
        refuse_on_branch(renames, self._options.branch)
        if renames:
            change_columns(table, renames)
            logger.info("table %s: %s", self._identity, ", ".join(map(str, renames)))
        return bool(renames)

    def _set_properties(self, table: JavaTable, state: TableState) -> bool:
        changed = properties_to_set(self._options, state.properties)
        if changed:
            table.set_properties(changed)
        return bool(changed)

    def _change_columns(
        self,
        table: JavaTable,
        state: TableState,
        columns: pa.Schema,
        *,
        declared: bool,
        renames: Mapping[str, str],
    ) -> bool:
        options = self._options
        if renames:
            merged = {**options.renames, **renames}
            options = options.model_copy(update={"renames": merged})
        comparison = compare_with_table(
            self._shape(table, state), columns, options, declared=declared
        )
        changes = allowed_changes(comparison, self._options.schema_evolution, self._options.branch)
        if not changes:
            return False
        self._refuse_renamed(changes)
        # Iceberg finds every other column by the name that it had before.
        first = [change for change in changes if isinstance(change, RenameColumn)] or changes
        change_columns(table, first)
        logger.info("table %s: %s", self._identity, ", ".join(map(str, first)))
        return True

    def _store_declared(self, table: JavaTable, state: TableState, columns: pa.Schema) -> bool:
        """Store in the table which columns are ours to drop, once it has them all."""
        if self._options.schema_evolution != "full":
            return False
        key = property_key(self._pipeline)
        text = declared_columns_json(state.schema, arrow_to_iceberg(columns, state.format_version))
        if state.properties.get(key) == text:
            return False
        table.set_properties({key: text})
        return True

    def _change_spec(self, table: JavaTable, state: TableState) -> bool:
        if not sets_partitioning(self._options):
            return False
        terms = parse_partition_terms(self._options)
        change = spec_change(state.schema, state.spec, read_specs(table), terms)
        if not change:
            return False
        change_spec(table, change)
        logger.info(
            "table %s: was partitioned by %s, new files are partitioned by %s",
            self._identity,
            describe_spec(state.spec, state.schema),
            describe_spec(partition_spec(state.schema, terms), state.schema),
        )
        return True

    def _shape(self, table: JavaTable, state: TableState) -> TableLayout:
        return TableLayout(
            schema=state.schema,
            spec=state.spec,
            specs=read_specs(table),
            sort_order=state.sort_order,
            format_version=state.format_version,
            is_shared=is_shared(state.properties, self._pipeline),
            declared_before=read_declared_columns(state.properties, self._pipeline),
        )

    def _refuse_renamed(self, changes: list[SchemaChange]) -> None:
        """Refuse to add a column again that another writer, or the file, has renamed."""
        for change in changes:
            old = change.column
            if not isinstance(change, AddColumn):
                continue
            if old in self._options.renames:
                raise SchemaMismatchError(
                    f"the stream still has a column {old!r}, which `renames` calls "
                    f"{self._options.renames[old]!r}",
                    todo="Give such rows the new name by a transform, or take the column out of "
                    "`renames`.",
                )
            if old in self._external_renames:
                new = self._external_renames[old]
                raise SchemaMismatchError(
                    f"column {old!r} of the table was renamed to {new!r} while the pipeline ran, "
                    f"and the stream still has {old!r}",
                    todo=f"To continue in the renamed column, add the transform `rename: {{{old}: "
                    f"{new}}}`. A start without it adds {old!r} as a column of its own.",
                )
