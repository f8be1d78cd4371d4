"""One mirrored table: rows of a snapshot join it, changes are applied to it by key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icestream.schemas.changes import DropColumn, RenameColumn
from icestream.schemas.column_names import refuse_reserved
from icestream.sinks.iceberg.mirror.columns import column_ids
from icestream.sinks.iceberg.mirror.defaults import table_options
from icestream.sinks.iceberg.mirror.writer import TableWriters
from icestream.sinks.iceberg.modes.mode import EVERY_ROW, paths_of
from icestream.sinks.iceberg.modes.registry import MODES
from icestream.sinks.iceberg.modes.upsert.mode import Upsert
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.properties import SOURCE_COLUMNS, SOURCE_TABLE
from icestream.sinks.iceberg.sink import IcebergSink

if TYPE_CHECKING:
    import pyarrow as pa

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, WrittenFile
    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.mirror.columns import Cover
    from icestream.sinks.iceberg.options import IcebergOptions


class MirrorTable(IcebergSink):
    """A table that follows one of the source.

    Attributes:
        cover: what it is ready for; None until blocks of it are expected.
        replaces_all: whether the rows of the batch take the place of all that it holds.
        is_first: whether they are the first ones of the table as the source has it now.
    """

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        super().__init__(options, catalog, name)
        self._given = options
        self.cover: Cover | None = None
        self.replaces_all = False
        self.is_first = False

    @property
    def identifier(self) -> tuple[str, ...]:
        return (*self.namespace, self.table)

    def follow(self, cover: Cover) -> None:
        """Make the table ready for rows: create it, give it their columns and names."""
        options = table_options(self._given, cover)
        if options != self.options:
            self._adopt(options)
        self.is_first = cover.shape.is_first
        self.replaces_all = self.is_first and not _keeps_rows(options, cover)
        self.cover = cover
        columns = cover.columns
        if cover.op_name is not None:
            import pyarrow as pa

            columns = columns.append(pa.field(cover.op_name, pa.string()))
        self._make_room(columns)
        self.target.prepare(
            self.mode.table_columns(_plain(columns)),
            declared=cover.shape.is_whole,
            renames=self._renames(columns),
        )
        self._note_source(cover, columns)

    def _adopt(self, options: IcebergOptions) -> None:
        self.options = options
        self.target.adopt(options)
        self.mode = MODES[options.commit_mode](options, self.target)
        self.mode.opened()

    def writers(self) -> TableWriters:
        """Return how tasks write the table's rows."""
        assert self.cover is not None  # noqa: S101 - `follow` comes first
        appends = not isinstance(self.mode, Upsert)
        keeps_rows = _keeps_rows(self.options, self.cover)
        return TableWriters(
            table=self.identifier,
            cover=self.cover,
            # Read a second time, rows meet those that were kept.
            snapshot=self.target.writer(in_order=False) if appends or not keeps_rows else None,
            changes=self.mode.writer(),
            appends=appends,
            keeps_rows=keeps_rows,
        )

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        """Commit what the tasks wrote for this table."""
        branch = self.options.branch
        mark = mark if branch == MAIN else replace(mark, branch=branch)
        void, kept, is_emptied = _sorted_out(files)
        replaces = is_emptied or self.replaces_all
        if any("keys-path" in file.what for file in kept):
            assert isinstance(self.mode, Upsert)  # noqa: S101 - only its writer stages rows
            commit = self.mode.commit(kept, mark, replaces=replaces)
        else:
            commit = self._add(kept, mark, replaces=replaces)
        self.discard(void)
        return commit

    def _add(self, files: list[WrittenFile], mark: BatchMark, *, replaces: bool) -> Commit:
        from icestream.sinks.iceberg.java_table import Change

        change = Change(
            added=[file.what for file in files],
            over=EVERY_ROW if replaces else None,
            branch=self.options.branch,
        )
        return self.target.commit(change, mark, rows=sum(file.rows for file in files))

    def discard(self, files: list[WrittenFile]) -> None:
        """Remove what tasks wrote, be it rows put aside or data files."""
        inner = [file.what.get("of", file) for file in files]
        self.target.remove(paths_of(file for file in inner if file is not None))

    @property
    def _ids_key(self) -> str:
        return SOURCE_COLUMNS + self.target.pipeline

    def _renames(self, columns: pa.Schema) -> dict[str, str]:
        """Return the columns that the source calls by another name than the table does."""
        if not self.target.exists:
            return {}
        state = self.target.state
        names = {field.field_id: field.name for field in state.schema.fields}
        kept = _read_ids(state.properties.get(self._ids_key))
        renames = {}
        for name, source_id in column_ids(columns).items():
            old = names.get(kept.get(source_id, -1))
            if old is not None and old != name:
                renames[old] = name
        return renames

    def _make_room(self, columns: pa.Schema) -> None:
        """Take names from columns that the source gave to others.

        One that it dropped goes: its values must not become those of the new one. Those that
        changed names with each other do so in one commit, since no order of renames would do.
        """
        if not self.target.exists or self.options.schema_evolution != "full":
            return
        state, ids = self.target.state, column_ids(columns)
        kept = _read_ids(state.properties.get(self._ids_key))
        if not kept.keys() & set(ids.values()):
            return  # another table of that name, which has its columns by their names
        owners = {field_id: source_id for source_id, field_id in kept.items()}
        gone: list[SchemaChange] = [
            DropColumn((field.name,))
            for field in state.schema.fields
            if field.name in ids and owners.get(field.field_id, ids[field.name]) not in ids.values()
        ]
        renames = self._renames(columns)
        swapped: list[SchemaChange] = []
        if any(new in renames for new in renames.values()):
            refuse_reserved(renames.values())
            swapped += [RenameColumn((old,), new) for old, new in renames.items()]
        for changes in (gone, swapped):
            if changes:
                from icestream.sinks.iceberg.java_schema import change_columns

                change_columns(self.target.handle, changes)
                self.target.look()

    def _note_source(self, cover: Cover, columns: pa.Schema) -> None:
        """Keep in the table which of the source it mirrors, and which column is which there.

        Renames need the columns; tombstones, which do not name their table, need its name.
        """
        state = self.target.state
        noted: dict[str, str] = {}
        fields = {field.name: field.field_id for field in state.schema.fields}
        ids = column_ids(columns).items()
        found = {source_id: fields[name] for name, source_id in ids if name in fields}
        if found and found != _read_ids(state.properties.get(self._ids_key)):
            noted[self._ids_key] = json.dumps(found, sort_keys=True, separators=(",", ":"))
        if cover.shape.table != self.source() and not cover.shape.is_tombstones:
            noted[SOURCE_TABLE + self.target.pipeline] = json.dumps(cover.shape.table)
        if noted:
            self.target.handle.set_properties(noted)
            self.target.look()

    def source(self) -> tuple[str, ...] | None:
        """Return the table of the source that fills this one, if that was noted."""
        text = self.target.state.properties.get(SOURCE_TABLE + self.target.pipeline)
        return tuple(json.loads(text)) if text else None


def _keeps_rows(options: IcebergOptions, cover: Cover) -> bool:
    """Tell whether rows stay that the source has no more: deleted ones, or all that ever were."""
    return cover.op_name is not None or (
        options.commit_mode == "upsert" and options.delete_mode != "hard"
    )


def _sorted_out(
    files: list[WrittenFile],
) -> tuple[list[WrittenFile], list[WrittenFile], bool]:
    """Return the files that a truncate made void, those that count, and whether there was one."""
    inner = [file.what["of"] for file in files]
    if None not in inner:
        return [], inner, False
    last = len(inner) - 1 - inner[::-1].index(None)
    return [file for file in inner[:last] if file is not None], inner[last + 1 :], True


def _plain(columns: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([column.remove_metadata() for column in columns])


def _read_ids(text: str | None) -> dict[str, int]:
    try:
        return {str(key): int(value) for key, value in json.loads(text or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}  # without it a rename is a new column, and it is written anew
