"""Tombstones: deleted keys, kept for a while so that a late change can't restore a row.

A row in the table has its sequence; a deleted row has none. So if changes may arrive out of order,
the sequence of each delete is kept in a separate table, for `tombstone_days`. It is written before
the table itself: a tombstone without its delete does no harm, since the same batch is replayed.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.reports import run_in_tasks
from icestream.sinks.iceberg.commit import TableChange
from icestream.sinks.iceberg.java import LiveFiles
from icestream.sinks.iceberg.properties import TOMBSTONES
from icestream.sinks.iceberg.table import TargetTable
from icestream.sinks.iceberg.upsert.key_index import (
    IndexSettings,
    KeyMatches,
    concatenate_ints,
    find_keys,
    remove_stale_indexes,
)
from icestream.sinks.iceberg.upsert.latest_changes import OLDEST
from icestream.sinks.iceberg.upsert.matching import balance_files
from icestream.sinks.iceberg.upsert.staging import read_staged_rows
from icestream.sinks.iceberg.writer import types_by_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.java import LiveFile
    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.upsert.latest_changes import BatchKeys, LatestChanges
    from icestream.sinks.iceberg.upsert.staging import StagedChunk
    from icestream.sinks.iceberg.writer import IcebergWriter


SEQUENCE = "__sequence"
DELETED_AT = "__deleted_at"
EXPIRY_EVERY_SECS = 3600.0
MANY_FILES = 100


class Tombstones:
    """The table of deleted keys of a table.

    Args:
        options: the sink's options.
        target: the sink's table.
    """

    def __init__(self, options: IcebergOptions, target: TargetTable) -> None:
        self._options = options
        self._main = target
        tombstone_options = type(options)(
            namespace=options.namespace,
            table=f"{target.table}{TOMBSTONES}",
            format_version=options.format_version,
            partitioning=(f"days({DELETED_AT})",),
        )
        self._target = TargetTable(
            tombstone_options, target.catalog, f"{target.sink_name}.tombstones"
        )
        self._live: LiveFiles | None = None
        self._expired_at = float("-inf")

    def sequences(self, batch: LatestChanges) -> npt.NDArray[np.int64]:
        """Return for each key the sequence of its last known delete, `OLDEST` for none."""
        newest = np.full(len(batch), OLDEST, np.int64)
        if not self._open():
            return newest
        assert self._live is not None  # noqa: S101 - set by `_open`
        session = self._target.session
        files = self._live.refresh()
        index = self._index()
        remove_stale_indexes(index, files)
        pieces = balance_files(files, session.sparkContext.defaultParallelism)
        for keys, sequence in run_in_tasks(session, pieces, _TombstoneLookup(batch.keys(), index)):
            np.maximum.at(newest, keys, sequence)
        return newest

    def record(
        self,
        batch: LatestChanges,
        chunks: Sequence[StagedChunk],
        late: npt.NDArray[np.bool_],
        mark: BatchMark | None,
    ) -> None:
        """Store the keys that the batch deletes."""
        keys = np.flatnonzero(batch.deletes & ~late)
        if not len(keys):
            return
        self._open(create=True)
        held = self._target.last_mark()
        if mark is not None and held is not None and _same_batch(held, mark):
            return
        # In one file: every later batch looks up keys in each file.
        piece = [
            (int(number), batch.address.row[keys[batch.address.chunk[keys] == number]])
            for number in np.unique(batch.address.chunk[keys])
        ]
        task = _TombstoneWrite(
            chunks=tuple(chunk.path for chunk in chunks),
            keys=self._names,
            sequences=tuple(chunk.sequence for chunk in chunks if chunk.sequence is not None),
            writer=self._target.writer(),
            io_properties=self._target.io_properties(),
        )
        (written,) = run_in_tasks(self._target.session, [piece], task)
        change = TableChange(added=[file.metadata for file in written])
        # Stopping here would not restore earlier tombstones that somebody removed.
        self._target.mark_snapshot = None
        self._target.commit(change, mark, rows=len(keys))
        self._expire()
        self._compact()

    def _open(self, *, create: bool = False) -> bool:
        """Open the table if it exists, or create it; return whether it exists."""
        target = self._target
        if not target.is_open or not target.exists:
            target.open(self._main.session, self._main.pipeline)
        if create or target.exists:
            target.prepare(self._columns())
        if target.exists:
            self._track_files(target.handle)
        return target.exists

    def _track_files(self, handle: JavaTable) -> None:
        """Follow the current handle of the table: a new one has new credentials."""
        if self._live is None or self._live.table is not handle:
            self._live = LiveFiles(handle, "main", list(self._names.values()))

    def _columns(self) -> pa.Schema:
        from icestream.schemas.comparison import iceberg_to_arrow

        columns = iceberg_to_arrow(self._main.state.schema)
        return pa.schema(
            [
                *(pa.field(ours, columns.field(name).type) for name, ours in self._names.items()),
                pa.field(SEQUENCE, pa.int64()),
                pa.field(DELETED_AT, pa.timestamp("us", tz="UTC")),
            ]
        )

    @property
    def _names(self) -> dict[str, str]:
        """The key columns, each with a name that stays when the table's column is renamed."""
        schema = self._main.state.schema
        return {
            name: f"key_{schema.find_field(name).field_id}" for name in self._options.key_fields
        }

    def _index(self) -> IndexSettings:
        schema = self._target.state.schema
        return IndexSettings(
            key_ids=tuple(schema.find_field(name).field_id for name in self._names.values()),
            sequence_id=schema.find_field(SEQUENCE).field_id,
            folder=self._target.handle.uuid(),
            io_properties=self._target.io_properties(),
            types=types_by_id(schema),
        )

    def _expire(self) -> None:
        """Delete the tombstones of days that are past `tombstone_days`."""
        if time.monotonic() - self._expired_at < EXPIRY_EVERY_SECS:
            return
        self._expired_at = time.monotonic()
        oldest = datetime.now(tz=timezone.utc) - timedelta(days=self._options.tombstone_days)
        midnight = oldest.replace(hour=0, minute=0, second=0, microsecond=0)
        self._target.handle.delete_where(
            json.dumps({"type": "lt", "term": DELETED_AT, "value": midnight.isoformat()})
        )

    def _compact(self) -> None:
        """Compact the small files of many batches, and expire their snapshots.

        No reader needs older snapshots of this table, and it has no other writer.
        """
        assert self._live is not None  # noqa: S101 - set by `_open`
        if len(self._live.refresh()) < MANY_FILES:
            return
        target = self._target
        name = ".".join(quote_for_spark(part) for part in (*target.namespace, target.table))
        call = f"CALL {quote_for_spark(target.catalog.name)}.system."
        argument = name.replace("'", "\\'")
        target.session.sql(
            f"{call}rewrite_data_files(table => '{argument}', "
            "options => map('min-input-files', '2'))"
        ).collect()
        now = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        target.session.sql(
            f"{call}expire_snapshots(table => '{argument}', retain_last => 1, "
            f"older_than => timestamp '{now}')"
        ).collect()


def _same_batch(held: BatchMark, mark: BatchMark) -> bool:
    one, other = (replace(each, rows=0, records=0, bad=0, instance="") for each in (held, mark))
    return one == other


@dataclass(frozen=True)
class _TombstoneLookup:
    """Finds the deletes that matter: those of changes that are older, or lack some columns."""

    batch: BatchKeys
    index: IndexSettings

    def __call__(
        self, files: Sequence[LiveFile]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        parts = [self._relevant(find_keys(file, self.batch, self.index)) for file in files]
        return concatenate_ints([keys for keys, _ in parts]), concatenate_ints(
            [ages for _, ages in parts]
        )

    def _relevant(self, found: KeyMatches) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        assert found.sequence is not None  # noqa: S101 - the index keeps it
        assert self.batch.sequence is not None  # noqa: S101 - or there were no tombstones
        is_relevant = found.sequence > self.batch.sequence[found.keys]
        if self.batch.wants_table_row is not None:
            is_relevant |= self.batch.wants_table_row[found.keys]
        return found.keys[is_relevant], found.sequence[is_relevant]


@dataclass(frozen=True)
class _TombstoneWrite:
    chunks: tuple[str, ...]
    keys: Mapping[str, str]
    sequences: tuple[npt.NDArray[np.int64], ...]
    writer: IcebergWriter
    io_properties: Mapping[str, str]

    def __call__(self, piece: list[tuple[int, npt.NDArray[np.int64]]]) -> list[WrittenFile]:
        now = datetime.now(tz=timezone.utc)
        return self.writer.write(
            batch
            for number, rows in piece
            for keys in self._tombstone_rows(number, np.sort(rows), now)
            for batch in keys.to_batches()
        )

    def _tombstone_rows(
        self, number: int, rows: npt.NDArray[np.int64], now: datetime
    ) -> Iterator[pa.Table]:
        """Yield the keys of some staged rows, in pieces of bounded size."""
        staged = read_staged_rows(self.chunks[number], self.io_properties, list(self.keys))
        for first, columns in staged:
            start, stop = np.searchsorted(rows, (first, first + columns.num_rows))
            own = rows[start:stop]
            keys = columns.take(pa.array(own - first)).rename_columns(list(self.keys.values()))
            times = pa.array([now] * len(own), pa.timestamp("us", tz="UTC"))
            sequence = pa.array(self.sequences[number][own])
            yield keys.append_column(SEQUENCE, sequence).append_column(DELETED_AT, times)
