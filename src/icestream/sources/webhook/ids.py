"""Remembers event ids for days, to recognise duplicates: the newest in memory, others in SQLite.

New ids stay in memory until there are enough for a batch write. The spool serves as their log:
after a crash, they are read from it again. So the database need not keep up with the server, and
memory use does not depend on the number of days.

Ids age by their own clock, since the system clock may jump: one reading years ahead must not make
every id look old. While the server runs, this clock follows the monotonic one. Between two runs, it
follows the system clock, forward only and by at most a day; ids are kept for a day longer, so that
one such jump is harmless.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

from icestream.errors import CorruptStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

DAY_US = 86_400_000_000
# Parameters per query; SQLite allows at least 999.
QUERY_BATCH = 500
MAX_IN_MEMORY = 20_000
# How much the system clock may advance the age of ids between two runs.
MAX_JUMP_US = DAY_US


def id_key(stream: bytes, event_id: bytes, *, is_number: bool = False) -> bytes:
    """Return the 16-byte hash of an id; the number 1 and the text "1" have different ones."""
    separator = b"\1" if is_number else b"\0"
    return blake2b(stream + separator + event_id, digest_size=16).digest()


class SeenIds:
    """The ids of one spool. Used by one thread at a time.

    Args:
        path: the database; created if it does not exist.
        remember_days: the minimum number of days to remember ids.
        monotonic: returns the seconds of a monotonic clock.
        wall: returns the epoch seconds of the system clock.
    """

    def __init__(
        self,
        path: Path,
        remember_days: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._remember_days = remember_days
        self._monotonic, self._wall = monotonic, wall
        self._began_at = monotonic()
        self._recent: dict[bytes, int] = {}
        with self._translate_errors():
            # SQLite gives its other files the permissions of this one.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("CREATE TABLE IF NOT EXISTS kept (up_to INTEGER NOT NULL)")
            clock = "clock (age_us INTEGER NOT NULL, wall_us INTEGER NOT NULL)"
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {clock}")
            self._days = self._tables()
            row = self._db.execute("SELECT up_to FROM kept").fetchone()
            self._began_us = self._age_at_start()
        self.flushed_up_to: int = row[0] if row else 0
        """The number of the event before which every id is in the database."""

    def find_seen(self, keys: Collection[bytes]) -> set[bytes]:
        """Return the keys that were seen before."""
        seen = {key for key in keys if key in self._recent}
        unknown = [key for key in keys if key not in seen]
        with self._translate_errors():
            for start in range(0, len(unknown), QUERY_BATCH):
                batch = unknown[start : start + QUERY_BATCH]
                placeholders = ",".join("?" * len(batch))
                for day in self._days:
                    query = f"SELECT key FROM day_{day} WHERE key IN ({placeholders})"  # noqa: S608
                    seen.update(row[0] for row in self._db.execute(query, batch))
        return seen

    def add(self, key: bytes) -> None:
        """Remember an id whose record is durable in the spool."""
        self._recent[key] = self._age_us() // DAY_US

    def is_full(self) -> bool:
        """Tell whether there are enough ids in memory to flush them."""
        return len(self._recent) >= MAX_IN_MEMORY

    def flush(self, up_to: int) -> None:
        """Write all ids durably, and delete those that have expired.

        Args:
            up_to: the number of the next event; the ids of all earlier events were added.
        """
        age_us = self._age_us()
        by_day: dict[int, list[tuple[bytes]]] = {}
        for key, day in self._recent.items():
            by_day.setdefault(day, []).append((key,))
        oldest = age_us // DAY_US - self._remember_days - MAX_JUMP_US // DAY_US
        with self._translate_errors(), self._transaction():
            for day, keys in by_day.items():
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS day_{day} (key BLOB PRIMARY KEY) WITHOUT ROWID"
                )
                # Sorted, so that the pages of the B-tree are written in order.
                insert = f"INSERT OR IGNORE INTO day_{day} VALUES (?)"  # noqa: S608
                self._db.executemany(insert, sorted(keys))
            for day in self._days:
                if day < oldest:
                    self._db.execute(f"DROP TABLE day_{day}")
            self._db.execute("DELETE FROM kept")
            self._db.execute("INSERT INTO kept VALUES (?)", (up_to,))
            self._db.execute("DELETE FROM clock")
            self._db.execute("INSERT INTO clock VALUES (?, ?)", (age_us, self._wall_us()))
            days = self._tables()
        self._days = days
        self.flushed_up_to = up_to
        self._recent.clear()

    def close(self) -> None:
        """Close the database; ids in memory are also in the spool."""
        self._db.close()

    def _age_us(self) -> int:
        """Return the ids' own clock in microseconds, from an arbitrary origin."""
        return self._began_us + int((self._monotonic() - self._began_at) * 1_000_000)

    def _age_at_start(self) -> int:
        row = self._db.execute("SELECT age_us, wall_us FROM clock").fetchone()
        if row is not None:
            age_us, wall_us = row
            return int(age_us + min(max(self._wall_us() - wall_us, 0), MAX_JUMP_US))
        # A new database, or one of an earlier version, whose days follow the system clock.
        return min([self._wall_us(), *(day * DAY_US for day in self._days[:1])])

    def _wall_us(self) -> int:
        return int(self._wall() * 1_000_000)

    def _tables(self) -> list[int]:
        """Return the days that have a table, newest first, since most duplicates arrive soon."""
        query = "SELECT name FROM sqlite_master WHERE name LIKE 'day\\_%' ESCAPE '\\'"
        names = [row[0] for row in self._db.execute(query)]
        days = [name.removeprefix("day_") for name in names]
        return sorted((int(day) for day in days if day.isdigit()), reverse=True)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as exc:
            # A full or faulty disk: the same class as for the spool's other files.
            raise OSError(f"{self._path}: {exc}") from exc
        except sqlite3.DatabaseError as exc:
            raise CorruptStateError(
                f"cannot read {self._path}: {exc}",
                todo="Restore it from a backup. If you delete it instead, retried events may be "
                "duplicated.",
            ) from exc
