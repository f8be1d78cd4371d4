"""Compares the columns of a stream with a table's, and says what would have to change."""

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
    refuse_clashes,
    twin_problem,
    twins_within,
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
        format_version: of the table; before 3 there are no nanoseconds, and they are cut off.

    Raises:
        SchemaMismatchError: Iceberg has no such type, or names of columns clash.
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
            f"the rows have a type that Iceberg lacks: {exc}",
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
    """What a stream asks of a table.

    Attributes:
        changes: what makes the table fit, in the order to make it.
        problems: what no change of the table mends, each in words.
        todo: what mends them instead.
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
        stream_schema: the stream's columns; in Iceberg's types, or in Arrow's.
        renames: columns that go by another name now, old name to new.
        declared: whether it has no other columns; what it lacks is then dropped, else left null.

    Raises:
        SchemaMismatchError: the two do not fit, and no change of the table mends it.
    """
    found = compare(table_schema, stream_schema, renames=renames, declared=declared)
    if found.problems:
        raise SchemaMismatchError("; ".join(found.problems), todo=found.todo)
    return list(found.changes)


def is_compatible(table_schema: Schema, stream_schema: Schema | pa.Schema) -> bool:
    """Tell whether every row of the stream can be written to the table as it is."""
    found = compare(table_schema, stream_schema)
    return not found.changes and not found.problems


def compare(
    table_schema: Schema,
    stream_schema: Schema | pa.Schema,
    *,
    renames: Mapping[str, str] | None = None,
    declared: bool = False,
    keys: Collection[str] = (),
    needed: Mapping[str, str] | None = None,
    held: Collection[str] = (),
    droppable: Collection[str] | None = None,
) -> SchemaComparison:
    """Return the changes and the problems between a table and a stream.

    Args:
        table_schema: the table's columns.
        stream_schema: the stream's columns.
        renames: as for `diff`.
        declared: as for `diff`.
        keys: columns that identify a row, beside those that the table's schema says.
        needed: columns that can't be dropped, and what each does, e.g. `partitions the table`.
        held: columns that are left null rather than dropped.
        droppable: the only columns that may be dropped; None for any.
    """
    if not isinstance(stream_schema, Schema):
        stream_schema = arrow_to_iceberg(stream_schema)
    comparing = _Comparer(droppable if declared else (), needed=needed or {}, held=held)
    renamed = comparing.rename(table_schema, stream_schema, renames or {})
    table_schema = apply(table_schema, renamed)
    comparing.keys = {*keys, *table_schema.identifier_field_names()}
    comparing.structs((), stream_schema.as_struct(), table_schema.as_struct())
    changes = sorted(comparing.changes, key=lambda change: ORDER.index(type(change)))
    twins = list(dict.fromkeys(comparing.twins))
    todo = DIFFER_IN_CASE if twins and not comparing.problems else MISFIT
    return SchemaComparison((*renamed, *changes), (*comparing.problems, *twins), todo)


def renames_by_id(before: Mapping[int, str], now: Mapping[int, str]) -> dict[str, str]:
    """Return the columns that kept their id in the source and go by another name now.

    For sources that tell ids of their columns; the result is what `diff` takes as `renames`.
    """
    return {name: now[key] for key, name in before.items() if key in now and now[key] != name}


def pending_renames(table: Schema, renames: Mapping[str, str]) -> list[RenameColumn]:
    """Return the renames that are left to make: of columns that go by their old name still."""
    names = set(table.column_names)
    return [
        RenameColumn(_path_of(table, old), _new_full_name(old, new).removeprefix(_parent(old)))
        for old, new in renames.items()
        if old in names and _new_full_name(old, new) not in names
    ]


def _new_full_name(old: str, new: str) -> str:
    """Return the full name of a renamed column; the new one may leave the parents out."""
    return new if new.startswith(_parent(old)) else _parent(old) + new


def _parent(name: str) -> str:
    return name[: name.rfind(".") + 1]


def can_widen(old: IcebergType, new: IcebergType) -> bool:
    """Tell whether a table's column may become `new`: what Iceberg's Java API 1.11 allows.

    Format v3 names more (a date to a timestamp, unknown to anything), which no engine does yet.
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
        needed: Mapping[str, str],
        held: Collection[str],
    ) -> None:
        self.droppable = droppable
        self.needed = needed
        self.held = held
        self.keys: set[str] = set()
        self.changes: list[SchemaChange] = []
        self.problems: list[str] = []
        self.twins: list[str] = []

    def rename(
        self, table: Schema, stream: Schema, renames: Mapping[str, str]
    ) -> list[RenameColumn]:
        names, given = set(table.column_names), set(stream.column_names)
        for old, new in renames.items():
            full = _new_full_name(old, new)
            if old in names and full in names:
                self.problems.append(
                    f"column {old!r} can't be renamed: the table has a column {full!r} too"
                )
            elif old in names and old in given:
                self.problems.append(
                    f"column {old!r} can't be renamed to {new!r}: the stream still has it"
                )
        left = {old: new for old, new in renames.items() if old not in given}
        return pending_renames(table, left)

    def structs(
        self, path: Path, found: StructType, wanted: StructType, *, in_key: bool = False
    ) -> None:
        known = {column.name: column for column in wanted.fields}
        for column in found.fields:
            match = known.get(column.name)
            here = (*path, column.name)
            if match is not None:
                self.field(here, column, match, in_key=in_key)
            elif in_key:
                self.problems.append(
                    f"column {_name(here)!r} is missing in the table, and the key of a map can't "
                    "gain members"
                )
            elif twin := twin_problem(here, found, wanted):
                self.twins.append(twin)
            else:
                self.twins += twins_within(here, column.field_type)
                self.changes.append(AddColumn(here, column.field_type, column.doc))
        given = {column.name for column in found.fields}
        for column in wanted.fields:
            if column.name not in given:
                self.lacking((*path, column.name), column, in_key=in_key)

    def field(self, path: Path, found: NestedField, wanted: NestedField, *, in_key: bool) -> None:
        # A key that is null is refused row by row, since the table can't do without it.
        if wanted.required and not found.required and not in_key and _name(path) not in self.keys:
            self.changes.append(MakeOptional(path))
        self.types(path, found.field_type, wanted.field_type, in_key=in_key)

    def lacking(self, path: Path, wanted: NestedField, *, in_key: bool) -> None:
        """Note a column of the table that the stream lacks."""
        name = _name(path)
        use = "identifies its rows" if name in self.keys else self.needed.get(name)
        is_unwanted = self.droppable is None or name in self.droppable
        if in_key or (use is not None and (is_unwanted or name in self.keys)):
            reason = use or "is part of a map's key"
            self.problems.append(
                f"column {name!r} of the table {reason} and is missing in the stream"
            )
        elif is_unwanted and not self._holds(name):
            self.changes.append(DropColumn(path))
        elif wanted.required:
            self.changes.append(MakeOptional(path, is_missing=True))

    def _holds(self, name: str) -> bool:
        inside = f"{name}."
        return any(each == name or each.startswith(inside) for each in (*self.held, *self.needed))

    def types(
        self, path: Path, found: IcebergType, wanted: IcebergType, *, in_key: bool = False
    ) -> None:
        if isinstance(found, StructType) and isinstance(wanted, StructType):
            self.structs(path, found, wanted, in_key=in_key)
        elif isinstance(found, ListType) and isinstance(wanted, ListType):
            self.field((*path, "element"), found.element_field, wanted.element_field, in_key=in_key)
        elif isinstance(found, MapType) and isinstance(wanted, MapType):
            self.types((*path, "key"), found.key_type, wanted.key_type, in_key=True)
            self.field((*path, "value"), found.value_field, wanted.value_field, in_key=in_key)
        elif can_widen(wanted, found) and not in_key:
            self.changes.append(UpdateType(path, wanted, found))
        elif not fits(found, wanted):
            self.problems.append(
                f"column {_name(path)!r} is {wanted} in the table and {found} in the stream"
            )


def fits(found: IcebergType, wanted: IcebergType) -> bool:
    """Tell whether every value of `found` can be written as `wanted`."""
    if found == wanted:
        return True
    if not isinstance(found, PrimitiveType) or not isinstance(wanted, PrimitiveType):
        return False
    if isinstance(found, BinaryType) and isinstance(wanted, StringType):
        return False  # PyIceberg would take any bytes for text.
    if isinstance(found, DecimalType) and isinstance(wanted, DecimalType):
        # PyIceberg looks at the precision alone.
        return found.scale == wanted.scale and found.precision <= wanted.precision
    try:
        return promote(found, wanted) == wanted
    except ResolveError:
        return False


def _path_of(schema: Schema, name: str) -> Path:
    """Return the parts of a full name; a dot may be part of a column's own name."""
    field_id = schema.find_field(name).field_id
    parent_id = schema._lazy_id_to_parent.get(field_id)
    own = schema.find_field(field_id).name
    if parent_id is None:
        return (own,)
    return (*_path_of(schema, str(schema.find_column_name(parent_id))), own)


def _name(path: Path) -> str:
    return ".".join(path)
