"""A table that mirrors a source table, and the options derived from its key and columns."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.catalog import shorten
from icestream.contracts.changes import OP
from icestream.errors import AttentionError, SchemaMismatchError
from icestream.schemas.changes import DropColumn, RenameColumn
from icestream.schemas.column_names import refuse_reserved
from icestream.schemas.mirror_columns import column_ids
from icestream.sinks.iceberg.commit import EVERY_ROW, TableChange, written_paths
from icestream.sinks.iceberg.multi.mirror_writer import TableWriters
from icestream.sinks.iceberg.multi.table_names import TableNameRules
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.properties import FILTERED, SOURCE_COLUMNS, SOURCE_TABLE
from icestream.sinks.iceberg.sink import MODES, IcebergTableSink
from icestream.sinks.iceberg.upsert.mode import Upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.changes import ChangeSchema
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, WrittenFile
    from icestream.schemas.changes import SchemaChange
    from icestream.schemas.mirror_columns import MirrorSchema
    from icestream.sinks.iceberg.commit import Mode
    from icestream.sinks.iceberg.options import IcebergOptions


# The column with the operation, in a table that has a row for every change.
OP_NAME = "_op"

# About a bucket for each GB of the source's table, which is less as Parquet. The key index finds
# rows without buckets; those of a large table only limit what a compaction rewrites at once.
BYTES_PER_BUCKET = 1_000_000_000
MAX_BUCKETS = 256


def identifier_of(
    options: IcebergOptions, change_schema: ChangeSchema, catalog: Catalog[Any]
) -> Identifier:
    """Return the target of a source table: the same name, unless the file sets another.

    Raises:
        SchemaMismatchError: it is not a valid table name.
    """
    namespace = tuple(options.namespace) or change_schema.table[:-1]
    table = options.table or change_schema.table[-1]
    try:
        return TableNameRules.of(options, catalog).identifier(namespace, table)
    except ValueError as exc:
        target = shorten(".".join((*namespace, table)))
        raise SchemaMismatchError(
            f"table {shorten('.'.join(change_schema.table))!r} of the source cannot be mirrored: "
            f"{target!r} {exc}",
            todo="Rename it at the source, or leave it out of the tables that the source reads. "
            "If it is the only one, name its target with `namespace` and `table`.",
        ) from None


def shared_target_error(
    table: Identifier, owner: tuple[str, ...], source: tuple[str, ...]
) -> SchemaMismatchError:
    """Return the error for two tables of the source that have one target."""
    return SchemaMismatchError(
        f"two tables of the source would fill {'.'.join(table)!r}: {'.'.join(owner)!r} and "
        f"{'.'.join(source)!r}",
        todo="Leave `namespace` and `table` out, so that each has its own names, or read only one "
        "of them. The catalog may ignore case: rename one of them at the source.",
    )


def op_name_of(options: IcebergOptions) -> str | None:
    """Return the column with the operation of a change; None if rows are mirrored."""
    return OP_NAME if _is_set(options, "commit_mode") and options.commit_mode == "append" else None


def table_options(
    options: IcebergOptions, mirror_schema: MirrorSchema, *, keeps_spec: bool = False
) -> IcebergOptions:
    """Return the options of one mirrored table.

    Args:
        options: the sink's options.
        mirror_schema: the table's columns and key.
        keeps_spec: whether it exists, and keeps its partitioning unless the file sets another.

    Raises:
        SchemaMismatchError: the mode is `upsert`, and the table has no key.
    """
    key = _key(options, mirror_schema.change_schema)
    derived: dict[str, Any] = {"key_fields": key, "schema_evolution": evolution_of(options)}
    if _commit_mode(options, key, mirror_schema.change_schema) == "upsert":
        derived |= {"commit_mode": "upsert", "op_field": OP}
    else:
        derived |= {"commit_mode": "append", "key_fields": ()}
    if isinstance(options.partitioning, str) and not options.partition_fields:
        size = mirror_schema.change_schema.source_bytes
        derived |= _partitioning(
            options, key, mirror_schema.columns, size=size, keeps_spec=keeps_spec
        )
    return options.model_copy(update=derived)


def _key(options: IcebergOptions, change_schema: ChangeSchema) -> tuple[str, ...]:
    if (
        options.key_fields
        and change_schema.key
        and set(options.key_fields) != set(change_schema.key)
    ):
        name = ".".join(change_schema.table)
        raise SchemaMismatchError(
            f"`key_fields` are {', '.join(options.key_fields)}, and the key of table {name!r} of "
            f"the source is {', '.join(change_schema.key)}, the only columns in its deletes",
            todo="Remove `key_fields`.",
        )
    return options.key_fields or change_schema.key


def evolution_of(options: IcebergOptions) -> str:
    """Return the `schema_evolution` of a mirror, whose default is `full`."""
    return options.schema_evolution if _is_set(options, "schema_evolution") else "full"


def _commit_mode(options: IcebergOptions, key: tuple[str, ...], change_schema: ChangeSchema) -> str:
    if _is_set(options, "commit_mode") and options.commit_mode == "append":
        return "append"
    if not key and _is_set(options, "commit_mode"):
        name = ".".join(change_schema.table)
        raise SchemaMismatchError(
            f"commit_mode 'upsert' needs a key, and table {name!r} of the source has none",
            todo=f"Give it a primary key, or `ALTER TABLE {name} REPLICA IDENTITY FULL`, or name "
            "the columns that identify a row in `key_fields`. Without `commit_mode`, tables "
            "without a key are appended to.",
        )
    # For a table without a key, a database only sends inserts.
    return "upsert" if key else "append"


def _partitioning(
    options: IcebergOptions,
    key: tuple[str, ...],
    columns: pa.Schema,
    *,
    size: int | None,
    keeps_spec: bool,
) -> dict[str, Any]:
    if _is_set(options, "partitioning") and options.partitioning != "bucket":
        return {}
    is_set = _is_set(options, "partitioning") or _is_set(options, "num_buckets")
    if keeps_spec and not is_set:
        return {"partitioning": "table_default"}
    buckets = options.num_buckets if is_set else default_buckets(size)
    for name in (name for name in key if buckets and name in columns.names):
        if _can_be_bucketed(columns.field(name).type):
            chosen = {"partition_fields": (name,), "num_buckets": buckets}
            return {"partitioning": "bucket", **chosen}
    return {"partitioning": "none"}


def default_buckets(size: int | None) -> int:
    """Return how many buckets a new mirror of a table of `size` bytes gets; 0 for none."""
    if not size:
        return 0
    buckets = 2 ** max(round(math.log2(size / BYTES_PER_BUCKET)), 0)
    return min(buckets, MAX_BUCKETS) if buckets > 1 else 0


def _can_be_bucketed(kind: pa.DataType) -> bool:
    return not (pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_nested(kind))


def source_renames(
    schema: Schema, properties: Mapping[str, str], pipeline: str, columns: pa.Schema
) -> dict[str, str]:
    """Return the columns of a mirror whose name in the source differs from that in the table.

    Args:
        schema: the table's columns.
        properties: the table's properties.
        pipeline: the pipeline that mirrors it.
        columns: the source's columns.
    """
    names = {field.field_id: field.name for field in schema.fields}
    stored_ids = _read_ids(properties.get(SOURCE_COLUMNS + pipeline))
    renames = {}
    for name, source_id in column_ids(columns).items():
        old = names.get(stored_ids.get(source_id, -1))
        if old is not None and old != name:
            renames[old] = name
    return renames


def table_columns(mirror_schema: MirrorSchema, mode: Mode) -> pa.Schema:
    """Return the columns of a mirrored table."""
    columns = pa.schema([column.remove_metadata() for column in mirror_schema.row_columns])
    return mode.table_columns(columns)


def _is_set(options: IcebergOptions, name: str) -> bool:
    return name in options.model_fields_set


class MirrorTable(IcebergTableSink):
    """A table that follows a source table.

    Attributes:
        mirror_schema: the schema that it is prepared for; None until its first blocks are expected.
        replaces_all: whether the rows of the batch replace all rows of the table.
        is_first: whether they are the first rows of a snapshot of the source table.
    """

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        super().__init__(options, catalog, name)
        self._given = options
        self.mirror_schema: MirrorSchema | None = None
        self.replaces_all = False
        self.is_first = False

    @property
    def identifier(self) -> tuple[str, ...]:
        return (*self.namespace, self.table)

    def follow(self, mirror_schema: MirrorSchema) -> None:
        """Prepare the table for rows: create it, or change and rename its columns."""
        keeps_spec = self._keeps_spec(mirror_schema.columns)
        options = table_options(self._given, mirror_schema, keeps_spec=keeps_spec)
        if options != self.options:
            self._adopt(options)
        self.is_first = mirror_schema.change_schema.is_first
        self.replaces_all = self.is_first and not _keeps_rows(options, mirror_schema)
        self.mirror_schema = mirror_schema
        columns = mirror_schema.row_columns
        self._free_names(columns)
        self.target.prepare(
            table_columns(mirror_schema, self.mode),
            declared=mirror_schema.change_schema.is_whole,
            renames=self._renames(columns),
        )
        self._store_source(mirror_schema, columns)
        if isinstance(self.mode, Upsert):
            self.mode.is_filtered = self._lacks_rows(mirror_schema.change_schema)

    def _lacks_rows(self, change_schema: ChangeSchema) -> bool:
        """Tell whether the table may lack rows of the source, now or since an earlier batch.

        The table remembers it until its rows are replaced: a row that was left out may come back
        without some of its values, also after the transform was removed from the file.

        Raises:
            AttentionError: it lacks rows, and `delete_mode` keeps those that are deleted.
        """
        stored = self.target.state.properties.get(self._filtered_key) == "true"
        lacks = change_schema.is_filtered or (stored and not self.replaces_all)
        if lacks != stored:
            self.target.handle.set_properties({self._filtered_key: str(lacks).lower()})
            self.target.refresh()
        if lacks and self.options.delete_mode != "hard":
            raise AttentionError(
                f"delete_mode {self.options.delete_mode!r} can't be used: a `filter`, an "
                "expectation or `on_error` has left out rows of the source",
                where=f"table {self.identity()}",
                todo="Use `delete_mode: hard`, or read the tables again without these: `icestream "
                "run --start-over`.",
            )
        return lacks

    @property
    def _filtered_key(self) -> str:
        return FILTERED + self.target.pipeline

    def _keeps_spec(self, columns: pa.Schema) -> bool:
        """Tell whether the table is partitioned by columns that the source still has, or by none.

        One that lost such a column is partitioned like a new table.
        """
        if not self.target.exists:
            return False
        state, renames = self.target.state, self._renames(columns)
        source_ids = _read_ids(state.properties.get(self._ids_key)).values()
        partitioned_by = {each.source_id for each in state.spec.fields}
        names = {
            field.name
            for field in state.schema.fields
            if field.field_id in partitioned_by and field.field_id in source_ids
        }
        return {renames.get(name, name) for name in names} <= set(columns.names)

    def _adopt(self, options: IcebergOptions) -> None:
        self.options = options
        self.target.change_options(options)
        self.mode = MODES[options.commit_mode](options, self.target)
        self.mode.reset()

    def writers(self) -> TableWriters:
        """Return how tasks write the table's rows."""
        assert self.mirror_schema is not None  # noqa: S101 - `follow` comes first
        appends = not isinstance(self.mode, Upsert)
        keeps_rows = _keeps_rows(self.options, self.mirror_schema)
        return TableWriters(
            table=self.identifier,
            mirror_schema=self.mirror_schema,
            # A second snapshot may contain rows that the table has kept.
            snapshot=self.target.writer(in_order=False) if appends or not keeps_rows else None,
            changes=self.mode.writer(),
            appends=appends,
            keeps_rows=keeps_rows,
        )

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        """Commit what the tasks wrote for this table."""
        branch = self.options.branch
        mark = mark if branch == MAIN else replace(mark, branch=branch)
        void, remaining, is_emptied = _apply_truncate(files)
        replaces = is_emptied or self.replaces_all
        if any("keys-path" in file.metadata for file in remaining):
            assert isinstance(self.mode, Upsert)  # noqa: S101 - only its writer stages rows
            commit = self.mode.commit(remaining, mark, replaces=replaces)
        else:
            commit = self._add(remaining, mark, replaces=replaces)
        self.discard(void)
        return commit

    def _add(self, files: list[WrittenFile], mark: BatchMark, *, replaces: bool) -> Commit:
        change = TableChange(
            added=[file.metadata for file in files],
            overwrite_filter=EVERY_ROW if replaces else None,
            branch=self.options.branch,
        )
        return self.target.commit(change, mark, rows=sum(file.rows for file in files))

    def discard(self, files: list[WrittenFile]) -> None:
        """Remove what tasks wrote: staged rows or data files."""
        inner = [file.metadata.get("of", file) for file in files]
        self.target.delete_files(written_paths(file for file in inner if file is not None))

    @property
    def _ids_key(self) -> str:
        return SOURCE_COLUMNS + self.target.pipeline

    def _renames(self, columns: pa.Schema) -> dict[str, str]:
        if not self.target.exists:
            return {}
        state = self.target.state
        return source_renames(state.schema, state.properties, self.target.pipeline, columns)

    def _free_names(self, columns: pa.Schema) -> None:
        """Free column names that the source has given to other columns.

        A column that the source dropped is dropped: its values must not become those of the new
        column. Columns that swapped names are renamed in one commit, since no order of single
        renames would work.
        """
        if not self.target.exists or self.options.schema_evolution != "full":
            return
        state, ids = self.target.state, column_ids(columns)
        stored_ids = _read_ids(state.properties.get(self._ids_key))
        if not stored_ids.keys() & set(ids.values()):
            return  # another table of that name: match its columns by name
        owners = {field_id: source_id for source_id, field_id in stored_ids.items()}
        dropped: list[SchemaChange] = [
            DropColumn((field.name,))
            for field in state.schema.fields
            if field.name in ids and owners.get(field.field_id, ids[field.name]) not in ids.values()
        ]
        renames = self._renames(columns)
        swapped: list[SchemaChange] = []
        if any(new in renames for new in renames.values()):
            refuse_reserved(renames.values())
            swapped += [RenameColumn((old,), new) for old, new in renames.items()]
        for changes in (dropped, swapped):
            if changes:
                from icestream.sinks.iceberg.java_table import change_columns

                change_columns(self.target.handle, changes)
                self.target.refresh()

    def _store_source(self, mirror_schema: MirrorSchema, columns: pa.Schema) -> None:
        """Store in the table which source table it mirrors, and the source's ids of its columns.

        Renames need the ids; tombstones, which do not name their table, need its name.
        """
        state = self.target.state
        properties: dict[str, str] = {}
        fields = {field.name: field.field_id for field in state.schema.fields}
        ids = column_ids(columns).items()
        current_ids = {source_id: fields[name] for name, source_id in ids if name in fields}
        if current_ids and current_ids != _read_ids(state.properties.get(self._ids_key)):
            properties[self._ids_key] = json.dumps(
                current_ids, sort_keys=True, separators=(",", ":")
            )
        if (
            mirror_schema.change_schema.table != self.source()
            and not mirror_schema.change_schema.is_tombstones
        ):
            properties[SOURCE_TABLE + self.target.pipeline] = json.dumps(
                mirror_schema.change_schema.table
            )
        if properties:
            self.target.handle.set_properties(properties)
            self.target.refresh()

    def source(self) -> tuple[str, ...] | None:
        """Return the source table that this one mirrors, if it was stored."""
        text = self.target.state.properties.get(SOURCE_TABLE + self.target.pipeline)
        return tuple(json.loads(text)) if text else None


def _keeps_rows(options: IcebergOptions, mirror_schema: MirrorSchema) -> bool:
    """Tell whether the table keeps rows that the source has deleted."""
    return mirror_schema.op_name is not None or (
        options.commit_mode == "upsert" and options.delete_mode != "hard"
    )


def _apply_truncate(
    files: list[WrittenFile],
) -> tuple[list[WrittenFile], list[WrittenFile], bool]:
    """Return the files that a truncate voids, the remaining ones, and whether there was one."""
    inner = [file.metadata["of"] for file in files]
    if None not in inner:
        return [], inner, False
    last = len(inner) - 1 - inner[::-1].index(None)
    return [file for file in inner[:last] if file is not None], inner[last + 1 :], True


def _read_ids(text: str | None) -> dict[str, int]:
    try:
        return {str(key): int(value) for key, value in json.loads(text or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}  # without it a rename adds a new column, and it is stored again
