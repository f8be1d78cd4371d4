"""Makes a table, and keeps its columns and partitions fitting the rows and the file."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from icestream.contracts.offset import pipeline_of
from icestream.errors import CommitConflictError, SchemaMismatchError
from icestream.schemas.changes import AddColumn, RenameColumn
from icestream.schemas.column_names import DIFFER_IN_CASE, refuse_reserved, twins_within
from icestream.schemas.comparison import pending_renames, renames_by_id
from icestream.sinks.iceberg.java import (
    COMMIT_FAILED,
    java_class,
    java_errors,
    java_message,
    refuse_dropped,
)
from icestream.sinks.iceberg.java_table import (
    change_columns,
    change_spec,
    read_specs,
    read_versions,
)
from icestream.sinks.iceberg.migration import (
    TableShape,
    asked,
    declared_text,
    is_shared,
    permitted,
    property_key,
    read_declared,
    refuse_on_branch,
    to_iceberg,
)
from icestream.sinks.iceberg.partition_terms import parse_sort, parse_terms
from icestream.sinks.iceberg.partitioning import (
    names_partitions,
    partition_spec,
    shown,
    sort_order,
    spec_change,
)
from icestream.sinks.iceberg.properties import properties_to_set, table_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyiceberg.schema import Schema

    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.java import JavaCatalog
    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.table import Target

logger = logging.getLogger(__name__)

ATTEMPTS = 5
REFUSED = (
    "ForbiddenException",
    "IllegalArgumentException",
    "UnsupportedOperationException",
    "ValidationException",
)


class Fitting:
    """What is known of one opened table's shape.

    Every change is worked out from the table as it is, so one that was made before a crash, or by
    somebody else, is not made again.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._options = target.options
        self._fits: tuple[pa.Schema, bool] | None = None
        self._is_adopted = False
        self._renamed: dict[str, str] = {}
        self._source_renames: dict[str, str] = {}

    def create(self, catalog: JavaCatalog, columns: pa.Schema) -> JavaTable:
        """Make the table for rows with these columns; another pipeline may be quicker."""
        options, target = self._options, self._target
        refuse_reserved(columns.names)
        schema = to_iceberg(columns, options.format_version)
        twins = twins_within((), schema.as_struct())
        if twins:
            raise SchemaMismatchError("; ".join(twins), todo=DIFFER_IN_CASE)
        catalog.create_namespace(target.namespace)
        handle = catalog.create_table(
            target.namespace,
            target.table,
            schema=schema,
            spec=partition_spec(schema, parse_terms(options)),
            sort_order=sort_order(schema, parse_sort(options)),
            properties=table_properties(
                options, pipeline_of(target.pipeline), target.catalog.abilities
            ),
        )
        logger.info("created table %s", target.identity)
        return handle

    def notice(self) -> None:
        """Look whether somebody else changed the table's columns or partitions.

        Raises:
            CheckpointLostError: the table is gone, or another one of its name is there.
        """
        state = self._target.state
        try:
            versions = read_versions(self._target.handle)
        except java_errors() as exc:
            refuse_dropped(exc, self._target.handle.exists)
            raise
        if versions == (state.schema.schema_id, state.spec.spec_id):
            return
        before = state.schema
        self._target.look()
        self._fits = None
        self._renamed |= _renamed(before, self._target.state.schema)
        logger.info("table %s: its columns or partitions were changed", self._target.identity)

    def fit(
        self, columns: pa.Schema, *, declared: bool, renames: Mapping[str, str] | None = None
    ) -> None:
        """Change the table so that rows with these columns can be written to it, or refuse.

        Args:
            columns: the columns of the rows.
            declared: whether the source declares them, so that they are all there are.
            renames: columns that the source calls by another name now, old name to new.
        """
        if self._fits is not None and self._fits[1] == declared and self._fits[0].equals(columns):
            return
        self._source_renames = dict(renames or {})
        self._attempt(partial(self._step, columns, declared=declared))
        self._fits = (columns, declared)

    def rename(self) -> None:
        """Rename columns as the file asks, for a stream whose columns are the table's own."""
        if self._options.schema_evolution == "full" and self._options.renames:
            self._attempt(self._rename_columns)

    def _attempt(self, step: Callable[[], bool]) -> None:
        """Take steps, each a commit of its own, until there is none left to take."""
        for _ in range(ATTEMPTS):
            try:
                while step():
                    self._target.look()
            except java_errors() as exc:  # noqa: PERF203 - each attempt by itself
                kind = java_class(exc)
                if kind.endswith(REFUSED):
                    raise SchemaMismatchError(
                        f"the catalog refused to change the table: {java_message(exc)}",
                        todo="Alter the table with your engine, then start the pipeline again.",
                    ) from exc
                if kind != COMMIT_FAILED:
                    raise
                # Another writer was quicker; what is left to change is worked out anew.
                self._target.look()
            else:
                return
        raise CommitConflictError(
            f"the table could not be changed in {ATTEMPTS} attempts, other writers moved it",
            todo="Nothing was written; the batch is replayed at the next start.",
        )

    def _step(self, columns: pa.Schema, *, declared: bool) -> bool:
        """Make the next change in a commit of its own; tell whether there was one."""
        # Columns before partitions: a new partition field may be of a new column.
        changed = (
            (not self._is_adopted and self._set_properties())
            or self._change_columns(columns, declared=declared)
            or (not self._is_adopted and self._change_spec())
            or (declared and self._note_declared(columns))
        )
        self._is_adopted = self._is_adopted or not changed
        return changed

    def _set_properties(self) -> bool:
        changed = properties_to_set(self._options, self._target.state.properties)
        if changed:
            self._target.handle.set_properties(changed)
        return bool(changed)

    def _change_columns(self, columns: pa.Schema, *, declared: bool) -> bool:
        options = self._options
        if self._source_renames:
            known = {**options.renames, **self._source_renames}
            options = options.model_copy(update={"renames": known})
        found = asked(self._shape(), columns, options, declared=declared)
        changes = permitted(found, self._options.schema_evolution, self._options.branch)
        if not changes:
            return False
        self._refuse_renamed(changes)
        # Iceberg finds every other column by the name that it had before.
        renames = [change for change in changes if isinstance(change, RenameColumn)]
        step = renames or changes
        change_columns(self._target.handle, step)
        logger.info("table %s: %s", self._target.identity, ", ".join(map(str, step)))
        return True

    def _note_declared(self, columns: pa.Schema) -> bool:
        """Keep in the table which columns are ours to drop, once it has them all."""
        if self._options.schema_evolution != "full":
            return False
        state, key = self._target.state, property_key(self._target.pipeline)
        text = declared_text(state.schema, to_iceberg(columns, state.format_version))
        if state.properties.get(key) == text:
            return False
        self._target.handle.set_properties({key: text})
        return True

    def _rename_columns(self) -> bool:
        renames = pending_renames(self._target.state.schema, self._options.renames)
        refuse_on_branch(renames, self._options.branch)
        if renames:
            change_columns(self._target.handle, renames)
            logger.info("table %s: %s", self._target.identity, ", ".join(map(str, renames)))
        return bool(renames)

    def _change_spec(self) -> bool:
        if not names_partitions(self._options):
            return False
        target, state = self._target, self._target.state
        terms = parse_terms(self._options)
        change = spec_change(state.schema, state.spec, read_specs(target.handle), terms)
        if not change:
            return False
        change_spec(target.handle, change)
        logger.info(
            "table %s: partitioned by %s so far, new files by %s",
            target.identity,
            shown(state.spec, state.schema),
            shown(partition_spec(state.schema, terms), state.schema),
        )
        return True

    def _shape(self) -> TableShape:
        state = self._target.state
        return TableShape(
            schema=state.schema,
            spec=state.spec,
            specs=read_specs(self._target.handle),
            sort_order=state.sort_order,
            format_version=state.format_version,
            is_shared=is_shared(state.properties, self._target.pipeline),
            declared_before=read_declared(state.properties, self._target.pipeline),
        )

    def _refuse_renamed(self, changes: list[SchemaChange]) -> None:
        """Refuse to make a column anew that somebody, or the file, gave another name."""
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
            if old in self._renamed:
                new = self._renamed[old]
                raise SchemaMismatchError(
                    f"column {old!r} of the table was renamed to {new!r} while the pipeline ran, "
                    f"and the stream still has {old!r}",
                    todo=f"To go on in the renamed column, add the transform `rename: {{{old}: "
                    f"{new}}}`. A start without it adds {old!r} as a column of its own.",
                )


def _renamed(before: Schema, now: Schema) -> dict[str, str]:
    """Return the columns that kept their id and go by another name, by the old one."""
    return renames_by_id(before._lazy_id_to_name, now._lazy_id_to_name)
