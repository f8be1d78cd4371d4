"""Parses `pgoutput` messages, protocol version 1, into blocks of changes, many rows at once."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from icestream.contracts.changes import with_nulled_counts
from icestream.errors import ConnectorError
from icestream.sources.postgres_cdc.blocks import changes_block, truncate_block
from icestream.sources.postgres_cdc.tables import PgColumn, Relation, replica_key
from icestream.sources.postgres_cdc.tuples import ByteView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from icestream.sources.postgres_cdc.tuples import Int64Array, Mask, Messages
    from icestream.sources.postgres_cdc.types import TypeCatalog


@dataclass(frozen=True)
class Visibility:
    """Which transactions a snapshot sees.

    Attributes:
        xmin: all earlier transactions had ended.
        xmax: no transaction from this id on had started.
        running: transactions between the two that were still open.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, snapshot: str) -> Visibility:
        """Parse the text of a `pg_snapshot`."""
        xmin, xmax, running = snapshot.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell for each 32-bit transaction id whether the snapshot sees it."""
        ahead = (xids - self.xmax) & 0xFFFFFFFF
        full = self.xmax + np.where(ahead >= 1 << 31, ahead - (1 << 32), ahead)
        seen: npt.NDArray[np.bool_] = full < self.xmax
        if self.running:
            seen &= ~np.isin(full, np.fromiter(self.running, np.int64, len(self.running)))
        return seen


def is_visible(xid: int, snapshot: str) -> bool:
    """Tell whether a snapshot, as text, sees a transaction, by the lower 32 bits of its id."""
    return bool(Visibility.parse(snapshot).sees(np.array([xid], np.int64))[0])


# The replica identity and the number of columns; the type and modifier of a column.
_TABLE, _COLUMN = struct.Struct(">ch"), struct.Struct(">Ii")
# pgoutput sends an empty namespace for this one.
_OWN_NAMESPACE = "pg_catalog"


def parse_relation(data: ByteView, start: int) -> Relation:
    """Parse a Relation message: a table without its column numbers."""
    offset = start + 5
    namespace, offset = _read_string(data, offset)
    name, offset = _read_string(data, offset)
    identity, count = _TABLE.unpack_from(data.buffer, offset)
    offset += _TABLE.size
    columns = []
    for _ in range(count):
        is_key = bool(data.bytes[offset] & 1)
        column, offset = _read_string(data, offset + 1)
        oid, typmod = _COLUMN.unpack_from(data.buffer, offset)
        offset += _COLUMN.size
        columns.append(PgColumn(column, oid, typmod, is_key))
    replica_identity = identity.decode()
    return Relation(
        id=_read_oid(data, start + 1),
        namespace=namespace or _OWN_NAMESPACE,
        name=name,
        identity=replica_identity,
        columns=tuple(columns),
        key=replica_key(replica_identity, columns),
    )


def parse_truncate(data: ByteView, start: int) -> list[int]:
    """Parse a Truncate message: the oids of the emptied tables."""
    count = int(data.int32[start + 1])
    return [_read_oid(data, start + 6 + 4 * index) for index in range(count)]


def _read_oid(data: ByteView, offset: int) -> int:
    return int(data.int32[offset]) & 0xFFFFFFFF


def _read_string(data: ByteView, offset: int) -> tuple[str, int]:
    view = memoryview(data.buffer)
    length = 0
    while view[offset + length]:
        length += 1
    return bytes(view[offset : offset + length]).decode("utf-8", "replace"), offset + length + 1


BEGIN, RELATION, TRUNCATE = ord("B"), ord("R"), ord("T")
# Insert, Update, Delete.
ROW_KINDS = np.isin(np.arange(256), np.frombuffer(b"IUD", np.uint8))
# Begin, Commit, Origin, Relation, Type, Message, Truncate, and the three above.
KNOWN_KINDS = np.isin(np.arange(256), np.frombuffer(b"BCORYMTIUD", np.uint8))
# Arrow's string arrays hold 2 GiB at most, a message 1 GiB.
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class ChangeFilter:
    """Which changes to return.

    Attributes:
        start: transactions whose commit record begins here or later, as `final_lsn` of Begin says.
        end: transactions whose commit record begins before.
        has_table: whether a table, such as `("public", "orders")`, is replicated.
        snapshots: by table, a snapshot that already contains the transactions it sees.
    """

    start: int
    end: int
    has_table: Callable[[tuple[str, str]], bool] = lambda _: True
    snapshots: Mapping[tuple[str, str], Visibility] = field(default_factory=dict)


class CatalogReader(Protocol):
    """Looks up in the database what the log does not contain."""

    def describe(self, relation: Relation) -> Relation | None:
        """Return a table with its column numbers and its key (see `replica_key`).

        Called when a change needs a Relation message that differs from the previous one or comes
        with a later transaction. The implementation adds missing types to the parser's type
        catalog. None skips the changes of the table.

        Args:
            relation: from the message: without numbers, with the flags `is_key` and the key that
                they imply (none for identity `f`).
        """

    def current_values(
        self, relation: Relation, columns: Sequence[str], keys: Sequence[tuple[str, ...]]
    ) -> Sequence[tuple[str | None, ...] | None]:
        """Return the current values of rows, as PostgreSQL prints them.

        Called for large (TOASTed) values that an update of the key did not send.

        Args:
            relation: the table.
            columns: the columns to fetch.
            keys: for each row, the values of `relation.key` as text.

        Returns:
            For each key its values in the order of `columns`; None for a deleted row.
        """


@dataclass
class _KnownTable:
    relation: Relation
    is_wanted: bool
    described: Relation | None = None
    is_described: bool = False


@dataclass(frozen=True)
class _MessageBatch:
    """Messages, with the transaction of each.

    Attributes:
        data: the buffer.
        starts: byte offset of each message.
        kinds: the first byte of each.
        xids: the transaction of each.
        lsns: the commit LSN of that transaction.
        is_wanted: whether that transaction is in the range.
    """

    data: ByteView
    starts: Int64Array
    kinds: npt.NDArray[np.uint8]
    xids: Int64Array
    lsns: Int64Array
    is_wanted: Mask


class ChangeParser:
    """Parses one stream of messages; keeps the known tables and the current transaction.

    Args:
        changes: which changes to return.
        types: the types of the database.
        catalog: looks up what the log does not contain.

    Attributes:
        rows: how many rows the blocks had so far.
    """

    def __init__(self, changes: ChangeFilter, types: TypeCatalog, catalog: CatalogReader) -> None:
        self.rows = 0
        self._filter = changes
        self._types = types
        self._catalog = catalog
        self._tables: dict[int, _KnownTable] = {}
        self._final_lsn = self._xid = -1

    def parse(self, messages: Messages) -> list[pa.RecordBatch]:
        """Return the blocks of the next messages, with the columns of `block_schema`.

        Rows of one table are in the order of the log; the order between tables is arbitrary.

        Raises:
            ConnectorError: the messages violate the protocol.
        """
        if not len(messages):
            return []
        if len(messages.data) > MAX_BYTES and len(messages) > 1:
            first, second = messages.split()
            return self.parse(first) + self.parse(second)
        batch = self._assign_transactions(messages)
        blocks: list[pa.RecordBatch] = []
        begin = 0
        is_truncate = (batch.kinds == TRUNCATE) & batch.is_wanted
        for index in np.flatnonzero((batch.kinds == RELATION) | is_truncate).tolist():
            relation = None if is_truncate[index] else self._read_relation(batch, index)
            # Earlier changes must be parsed with the columns they were written with.
            is_changed = relation is not None and self._is_changed(relation)
            if relation is None or is_changed:
                blocks += self._change_blocks(batch, slice(begin, index))
                begin = index + 1
            if relation is None:
                blocks += self._truncate_blocks(batch, index)
            else:
                self._remember(relation, is_changed=is_changed)
        blocks += self._change_blocks(batch, slice(begin, len(messages)))
        self.rows += sum(block.num_rows for block in blocks)
        return blocks

    def _assign_transactions(self, messages: Messages) -> _MessageBatch:
        """Find the transaction of each message."""
        data = ByteView(messages.data)
        starts = messages.starts
        kinds = data.bytes[starts]
        if not KNOWN_KINDS[kinds].all():
            unknown = chr(kinds[~KNOWN_KINDS[kinds]][0])
            raise ConnectorError(f"the log has a message of unknown kind {unknown!r}")
        begins = starts[kinds == BEGIN]
        lsns = np.concatenate([[self._final_lsn], data.int64[begins + 1]])
        xids = np.concatenate([[self._xid], data.int32[begins + 17].astype(np.int64) & 0xFFFFFFFF])
        transaction = np.cumsum(kinds == BEGIN)
        self._final_lsn, self._xid = int(lsns[-1]), int(xids[-1])
        if lsns[0] < 0 and ROW_KINDS[kinds[transaction == 0]].any():
            raise ConnectorError("the log has a change outside of a transaction")
        is_wanted = (lsns >= self._filter.start) & (lsns < self._filter.end)
        own = (xids[transaction], lsns[transaction], is_wanted[transaction])
        return _MessageBatch(data, starts, kinds, *own)

    def _read_relation(self, batch: _MessageBatch, index: int) -> Relation:
        relation = parse_relation(batch.data, int(batch.starts[index]))
        return replace(relation, version=int(batch.lsns[index]), xid=int(batch.xids[index]))

    def _is_changed(self, relation: Relation) -> bool:
        known = self._tables.get(relation.id)
        if known is None or known.relation != relation:
            return known is not None
        # The server repeats a Relation message whenever its cache was invalidated; usually nothing
        # is new. But a column that was dropped and recreated looks the same.
        if not known.is_wanted or known.relation.xid == relation.xid:
            return False
        return self._catalog.describe(relation) != self._describe(known)

    def _remember(self, relation: Relation, *, is_changed: bool) -> None:
        if is_changed or relation.id not in self._tables:
            self._tables[relation.id] = _KnownTable(
                relation, self._filter.has_table(relation.table)
            )

    def _truncate_blocks(self, batch: _MessageBatch, index: int) -> list[pa.RecordBatch]:
        """Return a block for each table that a Truncate message empties."""
        blocks = []
        for relation_id in parse_truncate(batch.data, int(batch.starts[index])):
            table = self._table(relation_id)
            snapshot = self._filter.snapshots.get(table.relation.table)
            xid = batch.xids[index : index + 1]
            is_seen = snapshot is not None and bool(snapshot.sees(xid)[0])
            described = self._describe(table) if table.is_wanted and not is_seen else None
            if described is not None:
                blocks.append(truncate_block(described, self._types))
        return blocks

    def _change_blocks(self, batch: _MessageBatch, part: slice) -> list[pa.RecordBatch]:
        """Return the rows of some messages, one block per table."""
        is_row = ROW_KINDS[batch.kinds[part]] & batch.is_wanted[part]
        starts, xids = batch.starts[part][is_row], batch.xids[part][is_row]
        relation_ids = batch.data.int32[starts + 1].astype(np.int64) & 0xFFFFFFFF
        blocks = []
        for relation_id in np.unique(relation_ids).tolist():
            table = self._table(relation_id)
            if not table.is_wanted:
                continue
            chosen = relation_ids == relation_id
            snapshot = self._filter.snapshots.get(table.relation.table)
            if snapshot is not None:
                chosen &= ~snapshot.sees(xids)
            described = self._describe(table) if chosen.any() else None
            if described is not None:
                blocks.append(self._block(described, batch.data, starts[chosen]))
        return blocks

    def _block(self, relation: Relation, data: ByteView, starts: Int64Array) -> pa.RecordBatch:
        block, nulled = changes_block(
            relation, self._types, data, starts, self._catalog.current_values
        )
        return with_nulled_counts(block, nulled)

    def _table(self, relation_id: int) -> _KnownTable:
        try:
            return self._tables[relation_id]
        except KeyError:
            raise ConnectorError(
                f"the log has a change to relation {relation_id} before its Relation message"
            ) from None

    def _describe(self, table: _KnownTable) -> Relation | None:
        if not table.is_described:
            table.described, table.is_described = self._catalog.describe(table.relation), True
        return table.described
