"""Compares the webhook spool with a SQLite database that keeps the same promise.

Both append groups of events with ids, and return once the group is durable; both refuse an id that
they hold. SQLite runs with `journal_mode=WAL` and `synchronous=FULL`, one transaction a group.

Run it with `python -m bench.spool_trial`.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from icestream.sources.webhook.segments import Arrival, make_splits, read_slices
from icestream.sources.webhook.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EVENT = b'{"order": 17, "amount": "12.50", "note": "%s"}' % (b"x" * 250)
GROUPS = {1: 2_000, 10: 1_000, 100: 300, 1_000: 60}


class Store(Protocol):
    def append(self, arrivals: Sequence[Arrival]) -> list[bool]: ...

    def read(self) -> int: ...


class OwnSpool:
    """The spool as the webhook source uses it."""

    def __init__(self, folder: Path) -> None:
        self._spool = Spool(folder)

    def append(self, arrivals: Sequence[Arrival]) -> list[bool]:
        return self._spool.append(arrivals)

    def read(self) -> int:
        spool = self._spool
        splits = make_splits(spool.segments, spool.first, spool.end, 1)
        return sum(len(block.values) for split in splits for block in read_slices(split.what, ()))


class SqliteSpool:
    """Events and ids in one table each, in one transaction a group."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._database = sqlite3.connect(folder / "spool.db", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE ids (key BLOB PRIMARY KEY, received_us INTEGER) WITHOUT ROWID",
            "CREATE TABLE events (number INTEGER PRIMARY KEY, stream BLOB, received_us INTEGER, "
            "event_id BLOB, headers BLOB, event BLOB)",
        ):
            self._database.execute(statement)

    def append(self, arrivals: Sequence[Arrival]) -> list[bool]:
        run, is_new = self._database.execute, []
        run("BEGIN IMMEDIATE")
        for each in arrivals:
            added = run("INSERT OR IGNORE INTO ids VALUES (?, ?)", (each.key, each.received_us))
            is_new.append(added.rowcount == 1)
            if is_new[-1]:
                self._database.executemany(
                    "INSERT INTO events (stream, received_us, event_id, headers, event) "
                    "VALUES (?, ?, ?, ?, ?)",
                    [
                        (each.stream, each.received_us, each.event_id, each.headers, event)
                        for event in each.events
                    ],
                )
        run("COMMIT")
        return is_new

    def read(self) -> int:
        rows = self._database.execute("SELECT number, event FROM events")
        return sum(len(pa.array([event for _, event in block])) for block in _blocks(rows))


def _blocks(rows: sqlite3.Cursor) -> Iterator[list[tuple[int, bytes]]]:
    while block := rows.fetchmany(10_000):
        yield block


def _arrival(number: int) -> Arrival:
    event_id = b"evt-%d" % number
    key = blake2b(event_id, digest_size=16).digest()
    return Arrival(b"orders", 1_700_000_000_000_000 + number, key, event_id, b"", [EVENT])


def _measure(store: Store, size: int, count: int) -> tuple[float, float]:
    groups = [[_arrival(size * group + one) for one in range(size)] for group in range(count)]
    started = time.perf_counter()
    for group in groups:
        store.append(group)
    written = time.perf_counter()
    rows = store.read()
    if rows != size * count:
        raise RuntimeError(f"{size * count} events were written, {rows} were read")
    return rows / (written - started), rows / (time.perf_counter() - written)


def main() -> None:
    """Print events a second for each size of group, in turns."""
    kinds: dict[str, Callable[[Path], Store]] = {"spool": OwnSpool, "SQLite": SqliteSpool}
    print("events in a group, store: events/s written durably, events/s read", file=sys.stdout)
    for size, count in GROUPS.items():
        for name, kind in (*kinds.items(), *reversed(kinds.items())):
            with tempfile.TemporaryDirectory() as folder:
                wrote, read = _measure(kind(Path(folder, "spool")), size, count)
            print(f"{size:>5}, {name}: {wrote:>9,.0f} {read:>11,.0f}", file=sys.stdout)


if __name__ == "__main__":
    main()
