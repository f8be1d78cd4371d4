"""Messages of `pgoutput`, protocol version 1, as blocks of changes: many rows at a step."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from icestream.contracts.changes import with_nulled_counts
from icestream.errors import ConnectorError
from icestream.sources.postgres_cdc.blocks import changes_block, truncate_block
from icestream.sources.postgres_cdc.tables import Column, Relation, key_of
from icestream.sources.postgres_cdc.tuples import Bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from icestream.sources.postgres_cdc.tuples import Mask, Messages, Places
    from icestream.sources.postgres_cdc.types import TypeCatalog


@dataclass(frozen=True)
class Visibility:
    """What a snapshot sees.

    Attributes:
        xmin: every transaction before it had ended.
        xmax: no transaction from it on had begun.
        running: those between the two that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, snapshot: str) -> Visibility:
        """Read the text of a `pg_snapshot`."""
        xmin, xmax, running = snapshot.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell of each 32-bit transaction id whether the snapshot sees what it did."""
        ahead = (xids - self.xmax) & 0xFFFFFFFF
        full = self.xmax + np.where(ahead >= 1 << 31, ahead - (1 << 32), ahead)
        seen: npt.NDArray[np.bool_] = full < self.xmax
        if self.running:
            seen &= ~np.isin(full, np.fromiter(self.running, np.int64, len(self.running)))
        return seen


def is_visible(xid: int, snapshot: str) -> bool:
    """Tell whether a snapshot, given as text, sees a transaction, given by 32 bits of its id."""
    return bool(Visibility.parse(snapshot).sees(np.array([xid], np.int64))[0])


# The replica identity and the number of columns; the type and modifier of a column.
_TABLE, _COLUMN = struct.Struct(">ch"), struct.Struct(">Ii")
# What an empty name of a namespace stands for.
_OWN_NAMESPACE = "pg_catalog"


def read_relation(data: Bytes, start: int) -> Relation:
    """Read a message Relation: a table without the numbers of its columns."""
    place = start + 5
    namespace, place = _name(data, place)
    name, place = _name(data, place)
    identity, count = _TABLE.unpack_from(data.buffer, place)
    place += _TABLE.size
    columns = []
    for _ in range(count):
        is_key = bool(data.bytes[place] & 1)
        column, place = _name(data, place + 1)
        oid, typmod = _COLUMN.unpack_from(data.buffer, place)
        place += _COLUMN.size
        columns.append(Column(column, oid, typmod, is_key))
    told = identity.decode()
    return Relation(
        id=_id(data, start + 1),
        namespace=namespace or _OWN_NAMESPACE,
        name=name,
        identity=told,
        columns=tuple(columns),
        key=key_of(told, columns),
    )


def read_truncate(data: Bytes, start: int) -> list[int]:
    """Read a message Truncate: the ids of the tables that are emptied."""
    count = int(data.int32[start + 1])
    return [_id(data, start + 6 + 4 * place) for place in range(count)]


def _id(data: Bytes, place: int) -> int:
    return int(data.int32[place]) & 0xFFFFFFFF


def _name(data: Bytes, place: int) -> tuple[str, int]:
    view = memoryview(data.buffer)
    length = 0
    while view[place + length]:
        length += 1
    return bytes(view[place : place + length]).decode("utf-8", "replace"), place + length + 1


BEGIN, RELATION, TRUNCATE = ord("B"), ord("R"), ord("T")
# Insert, Update, Delete.
ROW_KINDS = np.isin(np.arange(256), np.frombuffer(b"IUD", np.uint8))
# Begin, Commit, Origin, Relation, Type, Message, Truncate, and those.
KNOWN_KINDS = np.isin(np.arange(256), np.frombuffer(b"BCORYMTIUD", np.uint8))
# Arrow's strings end at 2 GiB; a message at 1 GiB.
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Wanted:
    """Which changes are asked for.

    Attributes:
        start: transactions whose commit record begins here or later, as `final_lsn` of Begin says.
        end: transactions whose commit record begins before.
        has_table: whether a table, such as `("public", "orders")`, is followed.
        seen: snapshots that hold, of a table, what transactions that they see have done.
    """

    start: int
    end: int
    has_table: Callable[[tuple[str, str]], bool] = lambda _: True
    seen: Mapping[tuple[str, str], Visibility] = field(default_factory=dict)


class Database(Protocol):
    """What the log does not tell, and the database is asked for."""

    def describe(self, relation: Relation) -> Relation | None:
        """Return a table with the numbers of its columns and, by `key_of`, with its key.

        Called for a Relation message that differs from the one before, or comes with a later
        transaction, when a change that is wanted needs it. Types that the parser's catalog
        does not know are to be added to it. None for a table whose changes are left out.

        Args:
            relation: as the message tells it: without numbers, with the flags `is_key`, and with
                the key that the flags tell (none for identity `f`).
        """

    def values_now(
        self, relation: Relation, columns: Sequence[str], keys: Sequence[tuple[str, ...]]
    ) -> Sequence[tuple[str | None, ...] | None]:
        """Return the values that rows have now, as PostgreSQL prints them.

        Asked for large values that an update of the key did not send.

        Args:
            relation: the table.
            columns: whose values are asked for.
            keys: texts of the values of `relation.key`, of each row.

        Returns:
            For each key its values in the order of `columns`; None for a row that is gone.
        """


@dataclass
class _Table:
    told: Relation
    is_wanted: bool
    described: Relation | None = None
    is_described: bool = False


@dataclass(frozen=True)
class _Stretch:
    """Messages, with what is known of each.

    Attributes:
        data: what they are in.
        starts: where each begins.
        kinds: the first byte of each.
        xids: the transaction of each.
        lsns: where that was committed.
        is_wanted: whether that transaction is asked for.
    """

    data: Bytes
    starts: Places
    kinds: npt.NDArray[np.uint8]
    xids: Places
    lsns: Places
    is_wanted: Mask


class ChangeParser:
    """Reads one stream of messages; it remembers tables, and the transaction it is in.

    Args:
        wanted: which changes are asked for.
        types: the types of the database.
        database: who knows the rest.

    Attributes:
        rows: how many rows the blocks had so far.
    """

    def __init__(self, wanted: Wanted, types: TypeCatalog, database: Database) -> None:
        self.rows = 0
        self._wanted = wanted
        self._types = types
        self._database = database
        self._tables: dict[int, _Table] = {}
        self._final_lsn = self._xid = -1

    def parse(self, messages: Messages) -> list[pa.RecordBatch]:
        """Return the blocks of the next messages, with the columns that `block_columns` tells.

        Rows of one table are in the order of the log; tables are in no order to each other.

        Raises:
            ConnectorError: the messages are not those of the protocol.
        """
        if not len(messages):
            return []
        if len(messages.data) > MAX_BYTES and len(messages) > 1:
            first, second = messages.halves()
            return self.parse(first) + self.parse(second)
        stretch = self._followed(messages)
        blocks: list[pa.RecordBatch] = []
        begin = 0
        is_truncate = (stretch.kinds == TRUNCATE) & stretch.is_wanted
        for place in np.flatnonzero((stretch.kinds == RELATION) | is_truncate).tolist():
            told = None if is_truncate[place] else self._read_relation(stretch, place)
            # What comes before must be told by the columns that it was written with.
            is_changed = told is not None and self._is_changed(told)
            if told is None or is_changed:
                blocks += self._changes(stretch, slice(begin, place))
                begin = place + 1
            if told is None:
                blocks += self._truncates(stretch, place)
            else:
                self._meet(told, is_changed=is_changed)
        blocks += self._changes(stretch, slice(begin, len(messages)))
        self.rows += sum(block.num_rows for block in blocks)
        return blocks

    def _followed(self, messages: Messages) -> _Stretch:
        """Tell of each message which transaction it is in."""
        data = Bytes(messages.data)
        starts = messages.starts
        kinds = data.bytes[starts]
        if not KNOWN_KINDS[kinds].all():
            unknown = chr(kinds[~KNOWN_KINDS[kinds]][0])
            raise ConnectorError(f"the log has a message of kind {unknown!r}, which is not known")
        begins = starts[kinds == BEGIN]
        lsns = np.concatenate([[self._final_lsn], data.int64[begins + 1]])
        xids = np.concatenate([[self._xid], data.int32[begins + 17].astype(np.int64) & 0xFFFFFFFF])
        transaction = np.cumsum(kinds == BEGIN)
        self._final_lsn, self._xid = int(lsns[-1]), int(xids[-1])
        if lsns[0] < 0 and ROW_KINDS[kinds[transaction == 0]].any():
            raise ConnectorError("the log has a change outside of any transaction")
        is_wanted = (lsns >= self._wanted.start) & (lsns < self._wanted.end)
        own = (xids[transaction], lsns[transaction], is_wanted[transaction])
        return _Stretch(data, starts, kinds, *own)

    def _read_relation(self, stretch: _Stretch, place: int) -> Relation:
        told = read_relation(stretch.data, int(stretch.starts[place]))
        return replace(told, version=int(stretch.lsns[place]), xid=int(stretch.xids[place]))

    def _is_changed(self, told: Relation) -> bool:
        known = self._tables.get(told.id)
        if known is None or known.told != told:
            return known is not None
        # The server tells a table again whenever it forgot that it has; mostly nothing is new. But
        # a column that was dropped and made anew looks as it did.
        if not known.is_wanted or known.told.xid == told.xid:
            return False
        return self._database.describe(told) != self._described(known)

    def _meet(self, told: Relation, *, is_changed: bool) -> None:
        if is_changed or told.id not in self._tables:
            self._tables[told.id] = _Table(told, self._wanted.has_table(told.table))

    def _truncates(self, stretch: _Stretch, place: int) -> list[pa.RecordBatch]:
        """Return a block for each table that a message Truncate empties."""
        blocks = []
        for relation_id in read_truncate(stretch.data, int(stretch.starts[place])):
            table = self._table(relation_id)
            seen = self._wanted.seen.get(table.told.table)
            is_seen = seen is not None and bool(seen.sees(stretch.xids[place : place + 1])[0])
            described = self._described(table) if table.is_wanted and not is_seen else None
            if described is not None:
                blocks.append(truncate_block(described, self._types))
        return blocks

    def _changes(self, stretch: _Stretch, part: slice) -> list[pa.RecordBatch]:
        """Return the rows of some messages, a block a table."""
        is_row = ROW_KINDS[stretch.kinds[part]] & stretch.is_wanted[part]
        starts, xids = stretch.starts[part][is_row], stretch.xids[part][is_row]
        relation_ids = stretch.data.int32[starts + 1].astype(np.int64) & 0xFFFFFFFF
        blocks = []
        for relation_id in np.unique(relation_ids).tolist():
            table = self._table(relation_id)
            if not table.is_wanted:
                continue
            chosen = relation_ids == relation_id
            seen = self._wanted.seen.get(table.told.table)
            if seen is not None:
                chosen &= ~seen.sees(xids)
            described = self._described(table) if chosen.any() else None
            if described is not None:
                blocks.append(self._block(described, stretch.data, starts[chosen]))
        return blocks

    def _block(self, relation: Relation, data: Bytes, starts: Places) -> pa.RecordBatch:
        block, nulled = changes_block(
            relation, self._types, data, starts, self._database.values_now
        )
        return with_nulled_counts(block, nulled)

    def _table(self, relation_id: int) -> _Table:
        try:
            return self._tables[relation_id]
        except KeyError:
            raise ConnectorError(
                f"the log has a change of relation {relation_id} before it tells its columns"
            ) from None

    def _described(self, table: _Table) -> Relation | None:
        if not table.is_described:
            table.described, table.is_described = self._database.describe(table.told), True
        return table.described
