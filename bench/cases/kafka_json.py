"""Kafka JSON into an Iceberg table, append only."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from tests.fixtures.kafka import KafkaBroker
from tests.fixtures.service_run import ServiceRun

from bench.cases.case import Case, Choices
from bench.contenders.icestream_run import BaselineRun, IcestreamRun
from bench.contenders.kafka_connect import KafkaConnect
from bench.contenders.pyspark_job import PysparkJob
from bench.harness import race
from bench.stream import fill_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.contenders.contender import Contender
    from bench.results import Result


@contextmanager
def kafka(folder: Path) -> Iterator[KafkaBroker]:
    """A broker while the block runs; its watchdog ends it if we are killed."""
    run = ServiceRun(folder)
    folder.mkdir(parents=True)
    with run.begin():
        try:
            yield KafkaBroker.create(run, "kafka")
        finally:
            run.end()


class KafkaJsonAppend(Case):
    """Three million records of six fields, in four partitions, by three contenders."""

    name = "kafka_json_append"
    rows: ClassVar[int] = 3_000_000
    rounds: ClassVar[int] = 3

    def contenders(self, broker: KafkaBroker) -> list[Contender]:
        return [IcestreamRun(), PysparkJob(), KafkaConnect(broker)]

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        rows = choices.rows or self.rows
        with kafka(folder / "services") as broker:
            began = time.monotonic()
            stream = fill_topic(broker, rows)
            took = time.monotonic() - began
            print(f"{self.name}: {rows:,} records sent in {took:.0f} s", file=sys.stderr)
            contenders = self.contenders(broker)
            if choices.baseline is not None:
                contenders.append(BaselineRun(choices.baseline))
            return race(
                self.name,
                choices.chosen(contenders),
                stream,
                folder,
                rounds=choices.rounds or self.rounds,
                keeps_tables=choices.keeps_tables,
            )


class KafkaJsonBacklog(KafkaJsonAppend):
    """Ten million records that waited, by icestream with a driver of 2 GB."""

    name = "kafka_json_backlog"
    rows = 10_000_000
    rounds = 1

    def contenders(self, broker: KafkaBroker) -> list[Contender]:  # noqa: ARG002
        return [IcestreamRun()]
