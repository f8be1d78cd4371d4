"""Schema migration: the changes that a table needs to fit the rows of a stream.

A pipeline drops only columns that it has declared itself. A table property holds their field ids
and names. It is set after the columns are changed, in a separate commit: a crash in between leaves
a column out of the property, so a column may be kept too long but is never dropped too early.
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
    """Return the table property that holds the columns that a pipeline last declared."""
    return PREFIX + pipeline


def read_declared_columns(properties: Mapping[str, str], pipeline: str) -> dict[int, str]:
    """Return the columns that a pipeline last declared, by field id; none if it never did."""
    try:
        stored = json.loads(properties.get(property_key(pipeline), "{}"))
        return {int(field_id): str(name) for field_id, name in stored.items()}
    except (ValueError, AttributeError):
        # Without the property no column is dropped, and it is written again.
        return {}


def declared_columns_json(table: Schema, stream: Schema) -> str:
    """Return the property's value for a table that has all columns of the stream."""
    names = set(stream._lazy_id_to_name.values())
    declared = {key: name for key, name in table._lazy_id_to_name.items() if name in names}
    return json.dumps(declared, sort_keys=True, separators=(",", ":"))


def droppable_columns(table: Schema, before: Mapping[int, str], stream: Schema) -> set[str]:
    """Return the columns that the pipeline may drop if the stream lacks them.

    These are the columns that it declared before and that still have the same name: a column that
    somebody renamed is in use. Columns with a member that somebody else added are excluded, and so
    are those whose name differs from a column of the stream only in case.
    """
    names = table._lazy_id_to_name
    written = {name.lower() for name in stream._lazy_id_to_name.values()}
    kept = {
        name for key, name in names.items() if before.get(key) != name or name.lower() in written
    }
    return {
        name
        for name in names.values()
        if name not in kept and not any(other.startswith(f"{name}.") for other in kept)
    }


def is_shared(properties: Mapping[str, str], pipeline: str) -> bool:
    """Tell whether other pipelines write to the table, or have started to.

    Replayed dead letters count as rows of the pipeline itself.
    """
    own_names = {pipeline, replay_name(pipeline)}
    writers = [
        key.removeprefix(prefix)
        for key in properties
        for prefix in (PREFIX, ledger.PREFIX)
        if key.startswith(prefix)
    ]
    return any(writer not in own_names for writer in writers)


USE_FULL_EVOLUTION = (
    "Use `schema_evolution: full`, convert the stream with a `cast` transform, or alter the table."
)
USE_ADD_COLUMNS = "Use `schema_evolution: add_columns`, or alter the table."


@dataclass(frozen=True)
class TableLayout:
    """A table's columns, and what depends on them.

    Attributes:
        spec: the table's partition spec.
        specs: every spec that the table ever had.
        is_shared: whether other pipelines also write to it.
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
        """Return the columns that can't be dropped, each with what it is needed for."""
        needed = {}
        if options.sequence_field:
            needed[options.sequence_field] = "decides which change is newer"
        for order in self.sort_order.fields:
            needed[self._name(order.source_id)] = "sorts the table"
        if sets_partitioning(options):
            partitions = [term.column for term in parse_partition_terms(options)]
        else:
            partitions = [self._name(field.source_id) for field in self.spec.fields]
        return {**needed, **dict.fromkeys(partitions, "partitions the table")}

    def partition_source_columns(self) -> set[str]:
        """Return the columns by which older files are partitioned, which must not be dropped."""
        sources = {field.source_id for spec in self.specs for field in spec.fields}
        return {self._name(source) for source in sources if source in self.schema.field_ids}

    def partition_names(self) -> set[str]:
        """Return the names that a new column may not have: Iceberg checks every spec."""
        return {field.name for spec in self.specs for field in spec.fields}

    def _name(self, field_id: int) -> str:
        return str(self.schema.find_column_name(field_id))


def compare_with_table(
    table: TableLayout, columns: pa.Schema, options: IcebergOptions, *, declared: bool
) -> SchemaComparison:
    """Return the changes that rows with `columns` require and the options allow to derive.

    Args:
        table: the table.
        columns: the columns of the rows.
        options: the sink's options.
        declared: whether the source declares them, so that the list is complete.
    """
    stream = arrow_to_iceberg(columns, table.format_version)
    comparison = _compare(table, stream, options, declared=declared)
    partition_names = table.partition_names()
    clashes = [
        f"column {name!r} can't be added: a partition field of the table has that name"
        for change in comparison.changes
        if isinstance(change, AddColumn) and (name := change.column) in partition_names
    ]
    reserved = [problem for name in _new_names(comparison) if (problem := reserved_problem(name))]
    problems = (*comparison.problems, *clashes)
    todo = RENAME_RESERVED if reserved and not problems else comparison.todo
    return replace(comparison, problems=(*problems, *reserved), todo=todo)


def _new_names(comparison: SchemaComparison) -> Iterator[str]:
    """Yield the new names of top-level columns."""
    for change in comparison.changes:
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
        # A column may exist for the rows of another pipeline; it is not ours to drop.
        declared=declared and not table.is_shared,
        keys=options.key_fields,
        undroppable=table.undroppable_columns(options),
        keep=table.partition_source_columns(),
        droppable=droppable_columns(table.schema, table.declared_before, stream),
    )


def allowed_changes(
    comparison: SchemaComparison, evolution: str, branch: str = MAIN
) -> list[SchemaChange]:
    """Return the changes that make the table fit, all of them allowed.

    Args:
        comparison: the changes that the stream requires.
        evolution: `strict`, `add_columns` or `full`.
        branch: the branch that the rows are written to.

    Raises:
        SchemaMismatchError: a change is not allowed, or no change can make the rows fit; the
            message shows the whole difference.
    """
    if evolution == "full":
        if comparison.problems:
            raise SchemaMismatchError("; ".join(comparison.problems), todo=comparison.todo)
        refuse_on_branch(comparison.changes, branch)
        return list(comparison.changes)
    missing = [change for change in comparison.changes if isinstance(change, AddColumn)]
    unsupported = [words for change in comparison.changes if (words := _refusal(change))]
    refused = [*comparison.problems, *unsupported]
    todo = USE_FULL_EVOLUTION if unsupported and not comparison.problems else comparison.todo
    if evolution == "strict" and missing:
        todo = todo if refused else USE_ADD_COLUMNS
        named = ", ".join(f"{change.column!r} {change.field_type}" for change in missing)
        refused.append(f"the stream has columns that the table lacks: {named}")
    if refused:
        raise SchemaMismatchError("; ".join(refused), todo=todo)
    return list(missing)


def refuse_on_branch(changes: Iterable[SchemaChange], branch: str) -> None:
    """Refuse changes that readers of the main branch would see before anything is published.

    Raises:
        SchemaMismatchError: a column would be dropped or renamed for the rows of a branch.
    """
    kinds = (DropColumn, RenameColumn)
    visible = [str(change) for change in changes if isinstance(change, kinds)]
    if branch != MAIN and visible:
        raise SchemaMismatchError(
            f"columns belong to all branches, and rows for branch {branch!r} would "
            f"{', '.join(visible)}",
            todo="Alter the table with your engine once its readers are ready, or write to the "
            "main branch.",
        )


def _refusal(change: SchemaChange) -> str | None:
    """Say why rows can't be written without a change that needs `full`; None if they can."""
    if isinstance(change, UpdateType):
        return (
            f"column {change.column!r} is {change.old_type} in the table and {change.new_type} in "
            "the stream"
        )
    if isinstance(change, MakeOptional) and change.is_missing:
        return f"column {change.column!r} is required by the table and missing in the stream"
    # A column that the stream has, but may be null there, is checked row by row.
    return None


class SchemaMigration:
    """Brings one table's properties, columns and partitions in line with the stream and the file.

    Every change is derived from the table's current state, so a change made before a crash, or by
    another writer, is not repeated.

    Args:
        options: the sink's options.
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
        """Remember that the table fits rows with these columns."""
        self._migrated = (columns, declared)

    def observe_change(self, before: Schema, now: Schema) -> None:
        """Record that another writer changed the table's columns or partitions."""
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
        """Make the next change that the table needs, in a separate commit.

        Args:
            table: the table.
            state: the table's current state.
            columns: the columns of the rows.
            declared: whether the source declares them, so that the list is complete.
            renames: columns that the source has renamed, old name to new.

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
        """Rename the columns listed in `renames`; return whether there were any.

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
            self._layout(table, state), columns, options, declared=declared
        )
        changes = allowed_changes(comparison, self._options.schema_evolution, self._options.branch)
        if not changes:
            return False
        self._refuse_renamed(changes)
        # Iceberg looks up every other column by its old name.
        first = [change for change in changes if isinstance(change, RenameColumn)] or changes
        change_columns(table, first)
        logger.info("table %s: %s", self._identity, ", ".join(map(str, first)))
        return True

    def _store_declared(self, table: JavaTable, state: TableState, columns: pa.Schema) -> bool:
        """Store in the table which columns this pipeline may drop, once it has them all."""
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
            "table %s: partitioning of new files changed from %s to %s",
            self._identity,
            describe_spec(state.spec, state.schema),
            describe_spec(partition_spec(state.schema, terms), state.schema),
        )
        return True

    def _layout(self, table: JavaTable, state: TableState) -> TableLayout:
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
        """Refuse to add a column that another writer, or `renames`, has renamed."""
        for change in changes:
            old = change.column
            if not isinstance(change, AddColumn):
                continue
            if old in self._options.renames:
                raise SchemaMismatchError(
                    f"the stream still has a column {old!r}, which `renames` renames to "
                    f"{self._options.renames[old]!r}",
                    todo="Rename the column with a transform, or remove it from `renames`.",
                )
            if old in self._external_renames:
                new = self._external_renames[old]
                raise SchemaMismatchError(
                    f"column {old!r} of the table was renamed to {new!r} while the pipeline ran, "
                    f"and the stream still has {old!r}",
                    todo=f"To continue in the renamed column, add the transform `rename: {{{old}: "
                    f"{new}}}`. Without it, the next start adds {old!r} as a separate column.",
                )
