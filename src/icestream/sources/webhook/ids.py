"""Which ids were taken, over days: newest in memory, all others in a small database.

The spool is the log of this: an id is in memory until so many are there that writing them is
worth it, and after a crash those are read from the spool again. So the database never has to keep
up with the endpoint, and memory stays small however many days are remembered.

Ids age by a clock of their own, since the system's may jump: a reading years ahead must not make
every id look old. While the endpoint runs, the clock follows the monotonic one. Between two runs
it follows the system's, forward only, and by a day at most; ids are kept for a day longer, so that
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
# A number of them is asked for at once; SQLite takes at least 999.
QUERY_BATCH = 500
MAX_IN_MEMORY = 20_000
# How far the system's clock may move the age of ids between two runs.
MAX_JUMP_US = DAY_US


def id_key(stream: bytes, event_id: bytes, *, is_number: bool = False) -> bytes:
    """Return the 16 bytes that an id is remembered by; the number 1 is not the text "1"."""
    separator = b"\1" if is_number else b"\0"
    return blake2b(stream + separator + event_id, digest_size=16).digest()


class SeenIds:
    """The ids of one spool. Used by one thread at a time.

    Args:
        path: the database; made if it is not there.
        remember_days: how long ids are remembered, at least.
        monotonic: tells the seconds that pass, from any beginning.
        wall: tells the seconds since 1970, as the system has them.
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
            found = self._db.execute("SELECT up_to FROM kept").fetchone()
            self._began_us = self._age_at_start()
        self.flushed_up_to: int = found[0] if found else 0
        """The number of the event before which every id is in the database."""

    def find_seen(self, keys: Collection[bytes]) -> set[bytes]:
        """Return those of the keys that were taken."""
        found = {key for key in keys if key in self._recent}
        asked = [key for key in keys if key not in found]
        with self._translate_errors():
            for place in range(0, len(asked), QUERY_BATCH):
                part = asked[place : place + QUERY_BATCH]
                marks = ",".join("?" * len(part))
                for day in self._days:
                    query = f"SELECT key FROM day_{day} WHERE key IN ({marks})"  # noqa: S608
                    found.update(row[0] for row in self._db.execute(query, part))
        return found

    def add(self, key: bytes) -> None:
        """Remember an id whose record is safe in the spool."""
        self._recent[key] = self._age_us() // DAY_US

    def is_full(self) -> bool:
        """Tell whether it is time to write down what is in memory."""
        return len(self._recent) >= MAX_IN_MEMORY

    def flush(self, up_to: int) -> None:
        """Write every id down, durably, and forget those that are old enough.

        Args:
            up_to: the number of the next event; all before it were added.
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
                # Sorted, so that pages of the tree are met one after the other.
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
        """Close the database; what is in memory is in the spool as well."""
        self._db.close()

    def _age_us(self) -> int:
        """Return the time by which ids age, in microseconds of no particular beginning."""
        return self._began_us + int((self._monotonic() - self._began_at) * 1_000_000)

    def _age_at_start(self) -> int:
        kept = self._db.execute("SELECT age_us, wall_us FROM clock").fetchone()
        if kept is not None:
            age_us, wall_us = kept
            return int(age_us + min(max(self._wall_us() - wall_us, 0), MAX_JUMP_US))
        # A new database, or one whose days are those of the system's clock.
        return min([self._wall_us(), *(day * DAY_US for day in self._days[:1])])

    def _wall_us(self) -> int:
        return int(self._wall() * 1_000_000)

    def _tables(self) -> list[int]:
        """Return the days that have a table, newest first: most repeats come soon."""
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
            # A full or a broken disk, in the class that the spool's other files give it.
            raise OSError(f"{self._path}: {exc}") from exc
        except sqlite3.DatabaseError as exc:
            raise CorruptStateError(
                f"the file {self._path} can't be read: {exc}",
                todo="Restore it from a backup. Without it, events that are sent again would be "
                "taken a second time: removing it accepts that.",
            ) from exc
