"""A table of PostgreSQL, changes made to it, and what a mirror of it must hold."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.lake import Lake, WrongRowsError
from bench.table_files import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import Postgres

TABLE = "orders"
SEED = 20_240_501
CREATE = """\
CREATE TABLE orders (
  id bigint PRIMARY KEY,
  quantity int NOT NULL,
  price numeric(12,2) NOT NULL,
  note text NOT NULL,
  changed_at timestamptz NOT NULL
)"""
ROW = """\
n, (n * 7919 + {salt}) % 1000, ((n * 104729 + {salt}) % 10000000) / 100.0,
'order number ' || n || ' of lot ' || {salt} % 64,
timestamptz '2024-05-01 00:00:00+00' + n * interval '1.234567 s' + {salt} * interval '1 s'"""
UPDATE = f"""\
UPDATE orders o SET quantity = r.quantity, price = r.price, changed_at = r.changed_at
FROM (SELECT {ROW} FROM unnest(%(ids)s::bigint[]) n) r (id, quantity, price, note, changed_at)
WHERE o.id = r.id"""  # noqa: S608 - our own words
INSERT = f"INSERT INTO orders SELECT {ROW} FROM unnest(%(ids)s::bigint[]) n"  # noqa: S608
DELETE = "DELETE FROM orders WHERE id = ANY(%(ids)s)"
UPDATES, INSERTS, DELETES = 700, 200, 100
ROWS_A_TRANSACTION = UPDATES + INSERTS + DELETES
# Ids of the last transaction, which only inserts: who has them all has everything.
LAST = 1_000_000_000
MIXED = 1_000_003  # a prime: ids modulo it weigh the prices, so that no two rows can swap theirs
SUMS = (
    "count(*), count(DISTINCT id), sum(quantity), sum((price * 100)::bigint), "
    f"sum(id % {MIXED} * (price * 100)::bigint), sum(length(note)), "
)
# Within a day: the sum of whole moments is more than a number holds.
SUM_OF_TIMESTAMPS = "sum({micros} % 86400000000)"


def _percents(statement: str) -> str:
    """Escape the signs of modulo, where other ones mark parameters."""
    return statement.replace("% ", "%% ")


class OrdersDatabase:
    """Databases that each hold the table as it was filled, made from one template."""

    def __init__(self, server: Postgres, rows: int) -> None:
        self.server = server
        self.rows = rows
        self._made: list[str] = []
        self._template = server.new_database()
        with self._connect(self._template) as connection:
            connection.execute(CREATE)
            fill = INSERT.format(salt=0).replace(
                "unnest(%(ids)s::bigint[])", f"generate_series(1::bigint, {rows})"
            )
            connection.execute(fill)
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")

    def new(self) -> str:
        """Make a database with the table, and return its name; the one before is dropped."""
        while self._made:
            self._forget(self._made.pop())
        name = f"d_{uuid.uuid4().hex[:12]}"
        self._made.append(name)
        with self._connect("postgres") as connection:
            connection.execute(
                f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY file_copy"
            )
        return name

    def change(self, database: str, changes: int) -> None:
        """Change rows in transactions of a thousand: updates, inserts, deletes; inserts last."""
        draw = np.random.default_rng(SEED)
        is_there = np.zeros(self.rows + changes + 1, dtype=bool)
        is_there[1 : self.rows + 1] = True
        end = self.rows + 1
        with self._connect(database) as connection:
            for number in range(1, changes // ROWS_A_TRANSACTION):
                known = np.flatnonzero(is_there)
                drawn = draw.choice(known, UPDATES + DELETES, replace=False)
                inserted = np.arange(end, end + INSERTS)
                is_there[drawn[UPDATES:]] = False
                is_there[inserted] = True
                end += INSERTS
                with connection.transaction():
                    for statement, ids in (
                        (UPDATE, drawn[:UPDATES]),
                        (INSERT, inserted),
                        (DELETE, drawn[UPDATES:]),
                    ):
                        _execute(connection, statement, number, ids.tolist())
            _execute(connection, INSERT, 0, list(range(LAST, LAST + ROWS_A_TRANSACTION)))
            # So that a slot need not wait for the server to write its next summary of itself.
            connection.execute("SELECT pg_switch_wal()")

    def sums(self, database: str) -> tuple[int, ...]:
        """Return what the table holds, summed up as `MirrorLake` does."""
        timestamps = SUM_OF_TIMESTAMPS.format(
            micros="(extract(epoch FROM changed_at) * 1000000)::bigint"
        )
        with self._connect(database) as connection:
            query = f"SELECT {SUMS}{timestamps} FROM orders"  # noqa: S608
            row = connection.execute(query).fetchone()
        assert row is not None  # noqa: S101 - a sum always returns one row
        return tuple(map(int, row))

    def _forget(self, database: str) -> None:
        """Drop a database, and the slots left behind in it."""
        with self._connect(database) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database() AND NOT active"
            )
        with self._connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)")

    @contextmanager
    def _connect(self, database: str) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(self.server.dsn_of(database), autocommit=True) as connection:
            yield connection


def _execute(connection: Any, statement: str, salt: int, ids: list[int]) -> None:
    done = connection.execute(_percents(statement.format(salt=salt)), {"ids": ids})
    if done.rowcount != len(ids):
        raise RuntimeError(f"{done.rowcount} rows changed, not {len(ids)}")


@dataclass(frozen=True)
class MirrorLake(Lake):
    """A lake with a mirror of the table, whose rows stand under the mirror's own column names."""

    expected: tuple[int, ...]
    events: int

    table: ClassVar[str] = TABLE
    rows: ClassVar[str] = "written"

    def commits(self) -> list[tuple[float, int]]:
        table = self.catalog().load_table((NAMESPACE, self.table))
        return [(each.timestamp_ms / 1000, 0) for each in table.snapshots()]

    def completed_at(self, rows: int) -> float | None:  # noqa: ARG002 - the stream has ended
        """Return when the last commit happened."""
        return self.commits()[-1][0]

    def verify(self, rows: int) -> None:  # noqa: ARG002 - what counts is what became of them
        import duckdb

        read = self.catalog().load_table((NAMESPACE, self.table)).scan().to_arrow_batch_reader()
        timestamps = SUM_OF_TIMESTAMPS.format(micros="epoch_us(changed_at)")
        with duckdb.connect() as connection:
            connection.register("written", read)
            query = f"SELECT {SUMS}{timestamps} FROM {self.rows}"  # noqa: S608
            row = connection.execute(query).fetchone()
        found = tuple(int(each or 0) for each in row or ())
        if found != self.expected:
            raise WrongRowsError(f"the sums of the mirror are {found}, not {self.expected}")


@dataclass(frozen=True)
class TextLake(MirrorLake):
    """A lake whose prices and moments are texts."""

    rows = """(
      SELECT id, quantity, price::DECIMAL(12,2) AS price, note,
        changed_at::TIMESTAMPTZ AS changed_at
      FROM written
    )"""


@dataclass(frozen=True)
class LogLake(MirrorLake):
    """A lake with every version of every row, appended; the mirror is what is newest of it."""

    table = "orders_public_orders"
    rows = """(
      SELECT id, newest.quantity AS quantity, newest.price::DECIMAL(12,2) AS price,
        newest.note AS note, newest.changed_at::TIMESTAMPTZ AS changed_at
      FROM (SELECT id, arg_max(w, w.__lsn) AS newest FROM written w GROUP BY id)
      WHERE newest.__deleted = 'false'
    )"""

    def verify(self, rows: int) -> None:
        super().verify(rows)
        snapshot = self.catalog().load_table((NAMESPACE, self.table)).current_snapshot()
        summary = None if snapshot is None else snapshot.summary
        found = 0 if summary is None else int(summary["total-records"] or 0)
        if found != self.events:
            raise WrongRowsError(f"the table has {found} events, not {self.events}")
