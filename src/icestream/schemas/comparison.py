"""Compares a stream's columns with a table's, and lists the changes that the table needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)

from icestream.errors import SchemaMismatchError
from icestream.schemas.changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SchemaChange,
    UpdateType,
    apply,
)
from icestream.schemas.column_names import (
    DIFFER_IN_CASE,
    case_clash,
    case_clashes_within,
    refuse_clashes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from icestream.schemas.changes import Path


NEWEST_FORMAT = 3


def arrow_to_iceberg(columns: pa.Schema, format_version: int = NEWEST_FORMAT) -> Schema:
    """Return an Iceberg schema with fresh field ids for Arrow columns.

    Args:
        columns: the Arrow columns.
        format_version: of the table; before 3, nanoseconds are truncated to microseconds.

    Raises:
        SchemaMismatchError: Iceberg does not support a type, or column names clash.
    """
    from pyiceberg.io.pyarrow import (
        UnsupportedPyArrowTypeException,
        _pyarrow_to_schema_without_ids,
    )

    refuse_clashes(columns)
    try:
        schema = _pyarrow_to_schema_without_ids(
            columns,
            downcast_ns_timestamp_to_us=format_version < 3,
            format_version=format_version,  # type: ignore[arg-type]
        )
    except UnsupportedPyArrowTypeException as exc:
        raise SchemaMismatchError(
            f"the rows have a type that Iceberg does not support: {exc}",
            todo="Cast the column with a `cast` transform, or give a `schema`.",
        ) from exc
    return assign_fresh_schema_ids(schema)


def iceberg_to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow columns of a table, without field ids."""
    from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, schema_to_pyarrow

    return _pyarrow_schema_ensure_small_types(schema_to_pyarrow(schema, include_field_ids=False))


MISFIT = "Convert the stream with a `cast` transform, or alter the table."
ORDER = (RenameColumn, UpdateType, MakeOptional, AddColumn, DropColumn)


@dataclass(frozen=True)
class SchemaComparison:
    """The difference between a stream and a table.

    Attributes:
        changes: the changes that let the table hold the stream's rows, in the order to apply them.
        problems: what no change of the table fixes, as messages.
        todo: how to fix the problems instead.
    """

    changes: tuple[SchemaChange, ...] = ()
    problems: tuple[str, ...] = ()
    todo: str = MISFIT


def diff(
    table_schema: Schema,
    stream_schema: Schema | pa.Schema,
    *,
    renames: Mapping[str, str] | None = None,
    declared: bool = False,
) -> list[SchemaChange]:
    """Return the changes after which every row of the stream can be written to the table.

    A type of the stream that is narrower than the table's needs no change: its values fit.

    Args:
        table_schema: the table's columns.
        stream_schema: the stream's columns, in Iceberg or Arrow types.
        renames: columns that have a new name, old name to new.
        declared: whether the stream's columns are complete: the table's other columns are then
            dropped, else they are left null.

    Raises:
        SchemaMismatchError: no change of the table lets it hold the stream's rows.
    """
    comparison = compare(table_schema, stream_schema, renames=renames, declared=declared)
    if comparison.problems:
        raise SchemaMismatchError("; ".join(comparison.problems), todo=comparison.todo)
    return list(comparison.changes)


def is_compatible(table_schema: Schema, stream_schema: Schema | pa.Schema) -> bool:
    """Return whether every row of the stream can be written to the table as it is."""
    comparison = compare(table_schema, stream_schema)
    return not comparison.changes and not comparison.problems


def compare(
    table_schema: Schema,
    stream_schema: Schema | pa.Schema,
    *,
    renames: Mapping[str, str] | None = None,
    declared: bool = False,
    keys: Collection[str] = (),
    undroppable: Mapping[str, str] | None = None,
    keep: Collection[str] = (),
    droppable: Collection[str] | None = None,
) -> SchemaComparison:
    """Return the changes and the problems between a table and a stream.

    Args:
        table_schema: the table's columns.
        stream_schema: the stream's columns.
        renames: as for `diff`.
        declared: as for `diff`.
        keys: columns that identify a row, in addition to the table's identifier fields.
        undroppable: columns that can't be dropped, and what each does, e.g. `partitions the table`.
        keep: columns to leave null rather than drop.
        droppable: the only columns that may be dropped; None if any may.
    """
    if not isinstance(stream_schema, Schema):
        stream_schema = arrow_to_iceberg(stream_schema)
    comparer = _Comparer(droppable if declared else (), undroppable=undroppable or {}, keep=keep)
    renamed = comparer.rename(table_schema, stream_schema, renames or {})
    table_schema = apply(table_schema, renamed)
    comparer.keys = {*keys, *table_schema.identifier_field_names()}
    comparer.compare_structs((), stream_schema.as_struct(), table_schema.as_struct())
    changes = sorted(comparer.changes, key=lambda change: ORDER.index(type(change)))
    case_clashes = list(dict.fromkeys(comparer.case_clashes))
    todo = DIFFER_IN_CASE if case_clashes and not comparer.problems else MISFIT
    return SchemaComparison((*renamed, *changes), (*comparer.problems, *case_clashes), todo)


def renames_by_id(before: Mapping[int, str], now: Mapping[int, str]) -> dict[str, str]:
    """Return the columns whose name changed while their id in the source did not.

    For sources that report column ids; the result is what `diff` takes as `renames`.
    """
    return {name: now[key] for key, name in before.items() if key in now and now[key] != name}


def pending_renames(table: Schema, renames: Mapping[str, str]) -> list[RenameColumn]:
    """Return the renames that are still to apply: of columns that have their old name."""
    names = set(table.column_names)
    return [
        RenameColumn(_path_of(table, old), _new_full_name(old, new).removeprefix(_parent(old)))
        for old, new in renames.items()
        if old in names and _new_full_name(old, new) not in names
    ]


def _new_full_name(old: str, new: str) -> str:
    """Return the full name of a renamed column; `new` may omit the parents."""
    return new if new.startswith(_parent(old)) else _parent(old) + new


def _parent(name: str) -> str:
    return name[: name.rfind(".") + 1]


def can_widen(old: IcebergType, new: IcebergType) -> bool:
    """Return whether a table's column may become `new`: what Iceberg's Java API 1.11 allows.

    Format v3 allows more (a date to a timestamp, unknown to anything), which no engine supports.
    """
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision < new.precision
    return (isinstance(old, IntegerType) and isinstance(new, LongType)) or (
        isinstance(old, FloatType) and isinstance(new, DoubleType)
    )


class _Comparer:
    def __init__(
        self,
        droppable: Collection[str] | None,
        *,
        undroppable: Mapping[str, str],
        keep: Collection[str],
    ) -> None:
        self.droppable = droppable
        self.undroppable = undroppable
        self.keep = keep
        self.keys: set[str] = set()
        self.changes: list[SchemaChange] = []
        self.problems: list[str] = []
        self.case_clashes: list[str] = []

    def rename(
        self, table: Schema, stream: Schema, renames: Mapping[str, str]
    ) -> list[RenameColumn]:
        table_names, stream_names = set(table.column_names), set(stream.column_names)
        for old, new in renames.items():
            full = _new_full_name(old, new)
            if old in table_names and full in table_names:
                self.problems.append(
                    f"column {old!r} can't be renamed: the table already has a column {full!r}"
                )
            elif old in table_names and old in stream_names:
                self.problems.append(
                    f"column {old!r} can't be renamed to {new!r}: the stream still has it"
                )
        possible = {old: new for old, new in renames.items() if old not in stream_names}
        return pending_renames(table, possible)

    def compare_structs(
        self, path: Path, stream: StructType, table: StructType, *, in_key: bool = False
    ) -> None:
        table_columns = {column.name: column for column in table.fields}
        for column in stream.fields:
            table_column = table_columns.get(column.name)
            here = (*path, column.name)
            if table_column is not None:
                self.compare_fields(here, column, table_column, in_key=in_key)
            elif in_key:
                self.problems.append(
                    f"column {_name(here)!r} is missing in the table, and the key of a map can't "
                    "gain members"
                )
            elif clash := case_clash(here, stream, table):
                self.case_clashes.append(clash)
            else:
                self.case_clashes += case_clashes_within(here, column.field_type)
                self.changes.append(AddColumn(here, column.field_type, column.doc))
        stream_names = {column.name for column in stream.fields}
        for column in table.fields:
            if column.name not in stream_names:
                self.add_missing((*path, column.name), column, in_key=in_key)

    def compare_fields(
        self, path: Path, stream: NestedField, table: NestedField, *, in_key: bool
    ) -> None:
        # A null key is refused row by row, since the table can't do without it.
        if table.required and not stream.required and not in_key and _name(path) not in self.keys:
            self.changes.append(MakeOptional(path))
        self.compare_types(path, stream.field_type, table.field_type, in_key=in_key)

    def add_missing(self, path: Path, column: NestedField, *, in_key: bool) -> None:
        """Add what follows from a column of the table that the stream lacks."""
        name = _name(path)
        use = "identifies its rows" if name in self.keys else self.undroppable.get(name)
        may_drop = self.droppable is None or name in self.droppable
        if in_key or (use is not None and (may_drop or name in self.keys)):
            reason = use or "is part of a map's key"
            self.problems.append(
                f"column {name!r} of the table {reason} and is missing in the stream"
            )
        elif may_drop and not self._keeps(name):
            self.changes.append(DropColumn(path))
        elif column.required:
            self.changes.append(MakeOptional(path, is_missing=True))

    def _keeps(self, name: str) -> bool:
        inside = f"{name}."
        return any(
            column == name or column.startswith(inside)
            for column in (*self.keep, *self.undroppable)
        )

    def compare_types(
        self, path: Path, stream: IcebergType, table: IcebergType, *, in_key: bool = False
    ) -> None:
        if isinstance(stream, StructType) and isinstance(table, StructType):
            self.compare_structs(path, stream, table, in_key=in_key)
        elif isinstance(stream, ListType) and isinstance(table, ListType):
            element = (*path, "element")
            self.compare_fields(element, stream.element_field, table.element_field, in_key=in_key)
        elif isinstance(stream, MapType) and isinstance(table, MapType):
            self.compare_types((*path, "key"), stream.key_type, table.key_type, in_key=True)
            value = (*path, "value")
            self.compare_fields(value, stream.value_field, table.value_field, in_key=in_key)
        elif can_widen(table, stream) and not in_key:
            self.changes.append(UpdateType(path, table, stream))
        elif not fits(stream, table):
            self.problems.append(
                f"column {_name(path)!r} is {table} in the table and {stream} in the stream"
            )


def fits(stream: IcebergType, table: IcebergType) -> bool:
    """Return whether every value of the stream's type can be written as the table's."""
    if stream == table:
        return True
    if not isinstance(stream, PrimitiveType) or not isinstance(table, PrimitiveType):
        return False
    if isinstance(stream, BinaryType) and isinstance(table, StringType):
        return False  # PyIceberg would take any bytes as text.
    if isinstance(stream, DecimalType) and isinstance(table, DecimalType):
        # PyIceberg checks the precision alone.
        return stream.scale == table.scale and stream.precision <= table.precision
    try:
        return promote(stream, table) == table
    except ResolveError:
        return False


def _path_of(schema: Schema, name: str) -> Path:
    """Return the parts of a full name; a column's own name may contain dots."""
    field_id = schema.find_field(name).field_id
    parent_id = schema._lazy_id_to_parent.get(field_id)
    own = schema.find_field(field_id).name
    if parent_id is None:
        return (own,)
    return (*_path_of(schema, str(schema.find_column_name(parent_id))), own)


def _name(path: Path) -> str:
    return ".".join(path)
