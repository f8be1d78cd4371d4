"""Writes blocks of changes to the tables that they are for, in a task."""

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
from icestream.sinks.iceberg.multi.mirror_columns import as_changes, as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from icestream.contracts.catalog import Identifier
    from icestream.sinks.iceberg.multi.mirror_columns import Cover


# Rows of many tables come mixed, and each table wants few files: they wait in memory up to here.
WAITING_BYTES = 64 << 20


@dataclass(frozen=True)
class TableWriters:
    """How the rows of one table are written.

    Attributes:
        table: its identifier.
        cover: what it is ready for.
        snapshot: writes rows that were read as they are; None where they go by key, as changes do.
        changes: writes changes, or rows to append where `appends`.
        appends: whether every change becomes a row.
        keeps_rows: whether rows stay although the source took all of them away.
    """

    table: Identifier
    cover: Cover
    snapshot: TaskWriter | None
    changes: TaskWriter
    appends: bool
    keeps_rows: bool


@dataclass
class _Waiting:
    """What a task has for one table.

    Attributes:
        files: closed files.
        blocks: what is not written yet.
        void: closed files with rows that the source took away, all at once, later on.
        is_emptied: whether it did.
        nulled: how many values are null, by column, because the table's types can't hold them.
    """

    files: list[WrittenFile] = field(default_factory=list)
    blocks: list[pa.RecordBatch] = field(default_factory=list)
    void: list[WrittenFile] = field(default_factory=list)
    is_emptied: bool = False
    nulled: Counter[str] = field(default_factory=Counter)

    def empty(self) -> None:
        self.void += self.files
        self.files, self.blocks, self.is_emptied = [], [], True


class MirrorWriter(TaskWriter):
    """Writes each block with the writers of its table.

    Args:
        tables: by the names that the source has for them.
        absent: names of tables that are not there, and need not be for a tombstone.
    """

    def __init__(
        self,
        tables: Mapping[tuple[str, ...], TableWriters],
        absent: frozenset[tuple[str, ...]] = frozenset(),
    ) -> None:
        self._tables = dict(tables)
        self._absent = absent

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write every block.

        Raises:
            NewChangeSchemasError: some had columns that their table is not ready for.
        """
        needed = (block for block in batches if not self._is_void(block.schema))
        return _Writing(self._tables).write(needed)

    def _is_void(self, columns: pa.Schema) -> bool:
        shape = change_schema_of(columns)
        return shape.is_tombstones and shape.table in self._absent


class _Writing:
    def __init__(self, tables: dict[tuple[str, ...], TableWriters]) -> None:
        self._tables = tables
        self._waiting: dict[tuple[str, ...], _Waiting] = {}
        self._bytes = 0
        self._unknown: dict[tuple[tuple[str, ...], str], pa.Schema] = {}
        self._is_known: dict[int, tuple[pa.Schema, bool]] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        for (table, is_snapshot), blocks in groupby(batches, key=_of):
            known = self._known(table, blocks)
            entry = self._tables.get(table)
            if is_snapshot and entry is not None and entry.snapshot is not None:
                rows = (entry.cover.as_rows(block) for block in known)
                self._waiting.setdefault(table, _Waiting()).files += entry.snapshot.write(rows)
            else:
                for block in known:
                    self._add(table, as_changes(block) if is_snapshot else block)
        if not self._unknown:
            self._flush()
        files = [one for table, each in self._waiting.items() for one in self._named(table, each)]
        if self._unknown:
            raise NewChangeSchemasError(list(self._unknown.values()), files)
        return files

    def _known(
        self, table: tuple[str, ...], blocks: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the blocks that can be written, as their table wants them; note the others."""
        for block in blocks:
            if not self._takes(table, block.schema):
                self._unknown.setdefault((table, as_text(block.schema)), block.schema)
            elif not self._unknown:
                nulled = nulled_counts(block.schema)
                self._waiting.setdefault(table, _Waiting()).nulled.update(nulled)
                yield self._tables[table].cover.conformed(block)

    def _takes(self, table: tuple[str, ...], columns: pa.Schema) -> bool:
        seen = self._is_known.get(id(columns))
        if seen is not None and seen[0] is columns:
            return seen[1]
        entry = self._tables.get(table)
        takes = entry is not None and entry.cover.takes(columns)
        self._is_known[id(columns)] = (columns, takes)
        return takes

    def _add(self, table: tuple[str, ...], block: pa.RecordBatch) -> None:
        waiting = self._waiting.setdefault(table, _Waiting())
        ops = block.column(OP)
        emptied = pc.fill_null(pc.equal(ops, TRUNCATE), False)
        if emptied.true_count:
            block = self._without_emptied(table, waiting, block, emptied)
        if not block.num_rows:
            return
        waiting.blocks.append(block)
        self._bytes += block.nbytes
        if self._bytes >= WAITING_BYTES:
            self._flush()

    def _without_emptied(
        self,
        table: tuple[str, ...],
        waiting: _Waiting,
        block: pa.RecordBatch,
        emptied: pa.Array,
    ) -> pa.RecordBatch:
        """Leave out everything that came before the table was emptied for the last time."""
        if self._tables[table].keeps_rows:
            return block.filter(pc.invert(emptied))
        last = len(emptied) - 1 - pc.index(emptied[::-1], True).as_py()
        waiting.empty()
        return block.slice(last + 1)

    def _flush(self) -> None:
        for table, waiting in self._waiting.items():
            if waiting.blocks:
                entry, blocks = self._tables[table], waiting.blocks
                if entry.appends:
                    blocks = [entry.cover.as_rows(_without_tombstones(one)) for one in blocks]
                else:
                    blocks = [_with_tombstones_as_deletes(one) for one in blocks]
                waiting.files += entry.changes.write(blocks)
                waiting.blocks = []
        self._bytes = 0

    def _named(self, table: tuple[str, ...], waiting: _Waiting) -> Iterator[WrittenFile]:
        """Yield the files of a table; an empty one says that what comes before it is void."""
        name = self._tables[table].table
        for file in waiting.void:
            yield WrittenFile(0, 0, {"table": name, "of": file})
        if waiting.is_emptied:
            yield WrittenFile(0, 0, {"table": name, "of": None})
        for place, file in enumerate(waiting.files):
            told = {"nulled": dict(waiting.nulled)} if place == 0 else {}
            yield WrittenFile(file.rows, file.bytes, {"table": name, "of": file, **told})


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


def _of(block: pa.RecordBatch) -> tuple[tuple[str, ...], bool]:
    shape = change_schema_of(block.schema)
    return shape.table, shape.is_snapshot
