"""The schema of a mirrored table, and how blocks of changes are conformed to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icestream.contracts.changes import (
    COLUMN_ID,
    OP,
    UNCHANGED_COLUMNS,
    ChangeSchema,
    change_schema_of,
    unchanged_columns,
)
from icestream.errors import SchemaMismatchError
from icestream.schemas.column_names import RENAME_RESERVED

if TYPE_CHECKING:
    from collections.abc import Sequence


# Columns that describe a change; never columns of the table.
HIDDEN = (OP, UNCHANGED_COLUMNS)


@dataclass(frozen=True)
class MirrorSchema:
    """The schema that a table is prepared for.

    Attributes:
        change_schema: the newest change schema of its rows.
        columns: the columns that rows are conformed to, without the hidden ones.
        block_schemas: the columns of the expected blocks, as text; if the change schema is not
            whole, other blocks are accepted if they fit.
        op_name: the column with the operation, if every change becomes a row.
        keeps_missing: whether a row keeps the table's values for columns that its block lacks.
    """

    change_schema: ChangeSchema
    columns: pa.Schema
    block_schemas: frozenset[str]
    op_name: str | None = None
    keeps_missing: bool = False

    @property
    def row_columns(self) -> pa.Schema:
        """The columns of the table's rows, with that of the operation if there is one."""
        if self.op_name is None:
            return self.columns
        return self.columns.append(pa.field(self.op_name, pa.string()))

    def accepts(self, columns: pa.Schema) -> bool:
        """Tell whether a block with these columns can be written without changing the table."""
        if not data_columns(columns):  # a truncate only
            return True
        if _key_ids(change_schema_of(columns), columns) != _key_ids(
            self.change_schema, self.columns
        ):
            return False
        if self.change_schema.is_whole:
            return schema_text(columns) in self.block_schemas
        return all(self._fits(column) for column in data_columns(columns))

    def _fits(self, column: pa.Field) -> bool:
        index = self.columns.get_field_index(column.name)
        if index < 0:
            return False
        ours = self.columns.field(index).with_nullable(True)
        try:
            both = _unify_schemas([pa.schema([ours]), pa.schema([column.with_nullable(True)])])
        except pa.ArrowInvalid:
            return False
        return bool(both.field(0).type == ours.type)

    def conform(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return a block with the table's columns, matched by the source's ids or by name.

        Raises:
            SchemaMismatchError: values of an older schema can't be cast to the newest.
        """
        own = data_columns(block.schema)
        sources = _match_columns(own, self.columns)
        arrays = [
            pa.nulls(block.num_rows, column.type)
            if source is None
            else _cast_column(block.column(block.schema.get_field_index(source)), column)
            for column, source in zip(self.columns, sources, strict=True)
        ]
        columns = [*self.columns]
        renamed = {old: new for old, new in zip(sources, self.columns.names, strict=True) if old}
        for name in HIDDEN:
            index = block.schema.get_field_index(name)
            if index < 0:
                continue
            array = block.column(index)
            if name == UNCHANGED_COLUMNS:
                array = _rename_listed_columns(array, renamed)
            columns.append(pa.field(name, array.type))
            arrays.append(array)
        conformed = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(columns))
        absent = [name for name in self.columns.names if name not in renamed.values()]
        absent = [name for name in absent if name not in block.schema.names]
        if self.keeps_missing and not self.change_schema.is_whole and absent:
            return _add_unchanged(conformed, absent)
        return conformed

    def as_rows(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return a conformed block as plain rows, with their operation if the table has it."""
        arrays = [block.column(index) for index in range(len(self.columns))]
        columns = [*self.columns]
        if self.op_name is not None:
            index = block.schema.get_field_index(OP)
            arrays.append(_snapshot_ops(block) if index < 0 else block.column(index))
            columns.append(pa.field(self.op_name, pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(columns))


def _add_unchanged(block: pa.RecordBatch, absent: list[str]) -> pa.RecordBatch:
    """Return a block whose rows also name `absent` as columns that they were sent without."""
    index = block.schema.get_field_index(UNCHANGED_COLUMNS)
    if index < 0:
        flags = {name: np.ones(block.num_rows, np.bool_) for name in absent}
        return block.append_column(UNCHANGED_COLUMNS, unchanged_columns(flags, block.num_rows))
    lists = [[*(names or ()), *absent] for names in block.column(index).to_pylist()]
    return block.set_column(index, UNCHANGED_COLUMNS, pa.array(lists, pa.list_(pa.string())))


def snapshot_rows_to_changes(block: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a snapshot as changes, with the operation of a snapshot read."""
    return block.append_column(pa.field(OP, pa.string()), _snapshot_ops(block))


def _snapshot_ops(block: pa.RecordBatch) -> pa.Array:
    return pa.array(["r"] * block.num_rows, pa.string())


def merge_change_schemas(
    schemas: Sequence[pa.Schema], table: pa.Schema | None, *, op_name: str | None = None
) -> MirrorSchema:
    """Return the schema to prepare a table for, so that blocks of all these schemas fit.

    Args:
        schemas: columns of one table's blocks, in the order in which they were seen.
        table: the table's columns; None if there is no table.
        op_name: as in `MirrorSchema`.

    Raises:
        SchemaMismatchError: a column has incompatible types, or the name of a hidden column.
    """
    change_schemas = [change_schema_of(columns) for columns in schemas]
    for columns, change_schema in zip(schemas, change_schemas, strict=True):
        _refuse_hidden(columns, change_schema)
    newest = max(range(len(schemas)), key=lambda number: (change_schemas[number].version, number))
    known = frozenset(schema_text(columns) for columns in schemas)
    if change_schemas[newest].is_whole:
        return MirrorSchema(
            change_schemas[newest], pa.schema(data_columns(schemas[newest])), known, op_name
        )
    return MirrorSchema(change_schemas[newest], _merge_columns(schemas, table), known, op_name)


def _refuse_hidden(columns: pa.Schema, change_schema: ChangeSchema) -> None:
    """Refuse a table of the source with a column that has the name of a hidden one."""
    for name in HIDDEN:
        source_columns = len(columns.get_all_field_indices(name)) - (
            0 if change_schema.is_snapshot else 1
        )
        if source_columns > 0:
            raise SchemaMismatchError(
                f"column {name!r} has a name that icestream reserves for its own columns",
                todo=RENAME_RESERVED,
            )


def _merge_columns(schemas: Sequence[pa.Schema], table: pa.Schema | None) -> pa.Schema:
    """Return the columns of all schemas, each at least as wide as in the table."""
    named = {column.name for columns in schemas for column in data_columns(columns)}
    existing = [column.with_nullable(True) for column in table or () if column.name in named]
    data_schemas = [pa.schema(data_columns(columns)) for columns in schemas]
    try:
        return _unify_schemas([pa.schema(existing), *data_schemas])
    except pa.ArrowInvalid as exc:
        raise SchemaMismatchError(
            f"a column has incompatible types: {exc}",
            todo="Nothing of the batch was written. Fix the column in the source, or drop it from "
            "the table, which then creates it again.",
        ) from exc


def _unify_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowTypeError as exc:
        raise pa.ArrowInvalid(str(exc)) from None


def data_columns(columns: pa.Schema) -> list[pa.Field]:
    """Return the columns that belong in the table.

    A column of type null only says that some rows were sent with a null for it.
    """
    return [
        column
        for column in columns
        if column.name not in HIDDEN and not pa.types.is_null(column.type)
    ]


def column_ids(columns: pa.Schema) -> dict[str, str]:
    """Return the source's id of each column, by name; empty if the source has no ids."""
    return {
        column.name: column.metadata[COLUMN_ID].decode()
        for column in columns
        if column.metadata and COLUMN_ID in column.metadata
    }


def _key_ids(change_schema: ChangeSchema, columns: pa.Schema) -> tuple[str, ...]:
    """Return the key by the ids of its columns in the source, whatever their names."""
    ids = column_ids(columns)
    return tuple(ids.get(name, name) for name in change_schema.key)


def schema_text(columns: pa.Schema) -> str:
    """Return columns as text that is equal for equal columns, whatever their metadata."""
    ids = column_ids(columns)
    parts = [f"{one.name!r} {one.type} {ids.get(one.name)}" for one in data_columns(columns)]
    return f"{change_schema_of(columns).key}: {', '.join(parts)}"


def _match_columns(block: list[pa.Field], table: pa.Schema) -> list[str | None]:
    """Return, for each column of the table, the block's column, by id or else by name."""
    ids = {source_id: name for name, source_id in column_ids(pa.schema(block)).items()}
    names = {column.name for column in block}
    table_ids = column_ids(table)
    matches: list[str | None] = []
    for column in table:
        if ids and column.name in table_ids:
            matches.append(ids.get(table_ids[column.name]))
        else:
            matches.append(column.name if column.name in names else None)
    return matches


def _cast_column(array: pa.Array, column: pa.Field) -> pa.Array:
    if array.type == column.type:
        return array
    try:
        return array.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise SchemaMismatchError(
            f"column {column.name!r} changed from {array.type} to {column.type}, and an older "
            f"value can't be cast: {exc}",
            todo="Nothing of the batch was written. Start over, which reads the table again: "
            "`icestream run --start-over`.",
        ) from exc


def _rename_listed_columns(names: pa.Array, renamed: dict[str, str]) -> pa.Array:
    """Return lists of column names with the new names, without dropped columns."""
    if all(old == new for old, new in renamed.items()) or not len(names.flatten()):
        return names
    lists = [
        None if listed is None else [renamed[name] for name in listed if name in renamed]
        for listed in names.to_pylist()
    ]
    return pa.array(lists, names.type)
