"""Writes blocks of changes to the tables that they belong to, in a task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from icestream.contracts.changes import (
    DELETES,
    OP,
    TOMBSTONE,
    TRUNCATE,
    NewChangeSchemasError,
    change_schema_of,
    nulled_counts,
)
from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.schemas.mirror_columns import schema_text, snapshot_rows_to_changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from icestream.contracts.catalog import Identifier
    from icestream.schemas.mirror_columns import MirrorSchema


# Rows of many tables arrive interleaved, and each table should get few files: buffer this much.
PENDING_BYTES = 64 << 20


@dataclass(frozen=True)
class TableWriters:
    """The writers of one table.

    Attributes:
        table: its identifier.
        mirror_schema: the schema that it is prepared for.
        snapshot: writes rows of a snapshot; None if they are upserted like changes.
        changes: writes changes, or rows to append if `appends`.
        appends: whether every change becomes a row.
        keeps_rows: whether the table keeps its rows when the source truncates its table.
    """

    table: Identifier
    mirror_schema: MirrorSchema
    snapshot: TaskWriter | None
    changes: TaskWriter
    appends: bool
    keeps_rows: bool


@dataclass
class _PendingTable:
    """One table's blocks and files in this task.

    Attributes:
        files: closed files.
        blocks: blocks not yet written.
        void: closed files whose rows a later truncate of the source table removed.
        is_truncated: whether there was such a truncate.
        nulled: how many values are null, by column, because the table's types can't hold them.
    """

    files: list[WrittenFile] = field(default_factory=list)
    blocks: list[pa.RecordBatch] = field(default_factory=list)
    void: list[WrittenFile] = field(default_factory=list)
    is_truncated: bool = False
    nulled: Counter[str] = field(default_factory=Counter)

    def truncate(self) -> None:
        self.void += self.files
        self.files, self.blocks, self.is_truncated = [], [], True


class MirrorWriter(TaskWriter):
    """Writes each block with the writers of its table.

    Args:
        tables: the writers by the source's table names.
        absent: tables that do not exist; tombstones for them are skipped.
    """

    def __init__(
        self,
        tables: Mapping[tuple[str, ...], TableWriters],
        absent: frozenset[tuple[str, ...]] = frozenset(),
    ) -> None:
        self._tables = dict(tables)
        self._absent = absent
        self._reset()

    def _reset(self) -> None:
        self._pending: dict[tuple[str, ...], _PendingTable] = {}
        self._pending_bytes = 0
        self._new_schemas: dict[tuple[tuple[str, ...], str], pa.Schema] = {}
        self._accepted: dict[int, tuple[pa.Schema, bool]] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write every block.

        Raises:
            NewChangeSchemasError: some have columns that their table is not prepared for.
        """
        self._reset()
        needed = (block for block in batches if not self._is_void(block.schema))
        for (table, is_snapshot), blocks in groupby(needed, key=_table_and_kind):
            accepted = self._accepted_blocks(table, blocks)
            entry = self._tables.get(table)
            if is_snapshot and entry is not None and entry.snapshot is not None:
                rows = (entry.mirror_schema.as_rows(block) for block in accepted)
                self._pending_table(table).files += entry.snapshot.write(rows)
            else:
                for block in accepted:
                    self._add(table, snapshot_rows_to_changes(block) if is_snapshot else block)
        if not self._new_schemas:
            self._flush()
        files = [
            file
            for table, pending in self._pending.items()
            for file in self._with_table_name(table, pending)
        ]
        if self._new_schemas:
            raise NewChangeSchemasError(list(self._new_schemas.values()), files)
        return files

    def _is_void(self, columns: pa.Schema) -> bool:
        change_schema = change_schema_of(columns)
        return change_schema.is_tombstones and change_schema.table in self._absent

    def _pending_table(self, table: tuple[str, ...]) -> _PendingTable:
        return self._pending.setdefault(table, _PendingTable())

    def _accepted_blocks(
        self, table: tuple[str, ...], blocks: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the blocks that their table accepts, conformed to it; collect the other schemas."""
        for block in blocks:
            if not self._accepts(table, block.schema):
                self._new_schemas.setdefault((table, schema_text(block.schema)), block.schema)
            elif not self._new_schemas:
                nulled = nulled_counts(block.schema)
                self._pending_table(table).nulled.update(nulled)
                yield self._tables[table].mirror_schema.conform(block)

    def _accepts(self, table: tuple[str, ...], columns: pa.Schema) -> bool:
        cached = self._accepted.get(id(columns))
        if cached is not None and cached[0] is columns:
            return cached[1]
        entry = self._tables.get(table)
        accepts = entry is not None and entry.mirror_schema.accepts(columns)
        self._accepted[id(columns)] = (columns, accepts)
        return accepts

    def _add(self, table: tuple[str, ...], block: pa.RecordBatch) -> None:
        pending = self._pending_table(table)
        ops = block.column(OP)
        is_truncate = pc.fill_null(pc.equal(ops, TRUNCATE), False)
        if is_truncate.true_count:
            block = self._after_truncate(table, pending, block, is_truncate)
        if not block.num_rows:
            return
        pending.blocks.append(block)
        self._pending_bytes += block.nbytes
        if self._pending_bytes >= PENDING_BYTES:
            self._flush()

    def _after_truncate(
        self,
        table: tuple[str, ...],
        pending: _PendingTable,
        block: pa.RecordBatch,
        is_truncate: pa.Array,
    ) -> pa.RecordBatch:
        """Return the rows that follow the block's last truncate."""
        if self._tables[table].keeps_rows:
            return block.filter(pc.invert(is_truncate))
        last = len(is_truncate) - 1 - pc.index(is_truncate[::-1], True).as_py()
        pending.truncate()
        return block.slice(last + 1)

    def _flush(self) -> None:
        for table, pending in self._pending.items():
            if pending.blocks:
                entry, blocks = self._tables[table], pending.blocks
                if entry.appends:
                    blocks = [
                        entry.mirror_schema.as_rows(_without_tombstones(one)) for one in blocks
                    ]
                else:
                    blocks = [_with_tombstones_as_deletes(one) for one in blocks]
                pending.files += entry.changes.write(blocks)
                pending.blocks = []
        self._pending_bytes = 0

    def _with_table_name(
        self, table: tuple[str, ...], pending: _PendingTable
    ) -> Iterator[WrittenFile]:
        """Yield the files of a table; an entry without a file voids those before it."""
        name = self._tables[table].table
        for file in pending.void:
            yield WrittenFile(0, 0, {"table": name, "of": file})
        if pending.is_truncated:
            yield WrittenFile(0, 0, {"table": name, "of": None})
        for number, file in enumerate(pending.files):
            nulled = {"nulled": dict(pending.nulled)} if number == 0 else {}
            yield WrittenFile(file.rows, file.bytes, {"table": name, "of": file, **nulled})


def _without_tombstones(block: pa.RecordBatch) -> pa.RecordBatch:
    is_tombstone = _are_tombstones(block)
    return block.filter(pc.invert(is_tombstone)) if is_tombstone.true_count else block


def _with_tombstones_as_deletes(block: pa.RecordBatch) -> pa.RecordBatch:
    is_tombstone = _are_tombstones(block)
    if not is_tombstone.true_count:
        return block
    index = block.schema.get_field_index(OP)
    ops = pc.if_else(is_tombstone, DELETES[0], block.column(index))
    return block.set_column(index, block.schema.field(index), ops)


def _are_tombstones(block: pa.RecordBatch) -> pa.Array:
    return pc.fill_null(pc.equal(block.column(OP), TOMBSTONE), False)


def _table_and_kind(block: pa.RecordBatch) -> tuple[tuple[str, ...], bool]:
    change_schema = change_schema_of(block.schema)
    return change_schema.table, change_schema.is_snapshot
