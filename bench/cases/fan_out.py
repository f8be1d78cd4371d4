"""One stream into a hundred tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench import lake
from bench.cases.case import Case, Choices
from bench.cases.kafka_json import kafka
from bench.contenders.contender import Command, Contender
from bench.contenders.icestream_run import IcestreamRun
from bench.contenders.pyspark_job import kafka_connector, pyspark_versions
from bench.contenders.upserters import spark_settings
from bench.harness import race
from bench.lake import Lake, WrongRowsError
from bench.stream import fill_topic
from bench.table_files import ROOT, job_command, read_answer

if TYPE_CHECKING:
    from pathlib import Path

    from bench.results import Result
    from bench.stream import Stream

TABLES = tuple(f"shop_{number:03}" for number in range(100))
JOB = "pyspark_fan_out"


@dataclass(frozen=True)
class FanLake(Lake):
    """A lake in which the field `kind` of a row names its table."""

    def commits(self) -> list[tuple[float, int]]:
        """Return the last commit of each table, and the rows in all that came up to it."""
        catalog = self.catalog()
        last = []
        for _, table in catalog.list_tables(lake.NAMESPACE):
            snapshot = catalog.load_table((lake.NAMESPACE, table)).current_snapshot()
            if snapshot is not None and snapshot.summary is not None:
                rows = int(snapshot.summary["total-records"] or 0)
                last.append((snapshot.timestamp_ms / 1000, rows))
        last.sort()
        return [
            (moment, sum(rows for _, rows in last[: index + 1]))
            for index, (moment, _) in enumerate(last)
        ]

    def verify(self, rows: int) -> None:
        catalog = self.catalog()
        found = sorted(table for _, table in catalog.list_tables(lake.NAMESPACE))
        if found != sorted(TABLES):
            raise WrongRowsError(f"the tables are {found}")
        ids: set[int] = set()
        count = 0
        for table in TABLES:
            read = catalog.load_table((lake.NAMESPACE, table)).scan().to_arrow()
            if read.column("kind").unique().to_pylist() != [table]:
                raise WrongRowsError(f"table {table!r} has rows of another one")
            ids.update(read.column("id").to_pylist())
            count += read.num_rows
        if (count, len(ids), min(ids), max(ids)) != (rows, rows, 0, rows - 1):
            raise WrongRowsError(f"{count} rows and {len(ids)} ids, not {rows} of each")


class IcestreamFanOut(IcestreamRun):
    """`route_by: kind`, every table made on the way."""

    table = None

    def __init__(self) -> None:
        self.sink_options = {"route_by": "kind"}

    def lake(self, folder: Path) -> FanLake:
        return FanLake(folder)


class PysparkAppends(Contender):
    """`bench/jobs/pyspark_fan_out.py`, with a driver of 4 GB."""

    name = "pyspark_appends"

    def versions(self) -> dict[str, str]:
        return pyspark_versions()

    def lake(self, folder: Path) -> FanLake:
        return FanLake(folder)

    def prepare(self, stream: Stream, folder: Path) -> Command:
        mine = self.lake(folder)
        mine.warehouse.mkdir(parents=True)
        found = spark_settings(mine)
        settings: dict[str, Any] = {
            **found,
            "jars": [*found["jars"], *kafka_connector()],
            "bootstrap": stream.bootstrap,
            "topic": stream.topic,
            "schema": lake.SCHEMA,
            "codec": lake.CODEC,
            "namespace": f"{lake.CATALOG}.{lake.NAMESPACE}",
            "tables": TABLES,
            "checkpoint": str(folder / "checkpoint"),
        }
        return Command(job_command(JOB, settings, folder), {"PYTHONPATH": str(ROOT)})

    def started_at(self, folder: Path) -> float:
        return float(read_answer(JOB, folder)["started"])


class FanOut(Case):
    """A million records of six fields into a hundred tables that are made on the way."""

    name = "fan_out"
    rows: ClassVar[int] = 1_000_000
    rounds: ClassVar[int] = 3

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        contenders: list[Contender] = [IcestreamFanOut(), PysparkAppends()]
        with kafka(folder / "services") as broker:
            stream = fill_topic(broker, choices.rows or self.rows, TABLES)
            return race(
                self.name,
                choices.chosen(contenders),
                stream,
                folder,
                rounds=choices.rounds or self.rounds,
                keeps_tables=choices.keeps_tables,
            )
