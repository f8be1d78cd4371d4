"""What those have in common that mirror a table of PostgreSQL, and icestream's own way of it."""

from __future__ import annotations

import sys
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contenders.contender import Command, Contender
from bench.contenders.icestream_run import icestream_versions, started_pipeline
from bench.harness import running
from bench.orders import MirrorLake
from bench.table_files import NAMESPACE

if TYPE_CHECKING:
    from bench.orders import OrdersDatabase
    from bench.stream import Stream

PIPELINE = "orders"
CONFIG = """\
version: "1.0"
sources:
  shop:
    connector: postgres-cdc
    config:
      host: {host}
      port: {port}
      database: {database}
      user: {user}
      password: {password}
      tables: [public.orders]
sinks:
  lake:
    connector: iceberg
    config:
      namespace: {namespace}
      profile: high_throughput
pipelines:
  {pipeline}: {{source: shop, sink: lake}}
spark:
  master: "local[2]"
  conf: {{spark.driver.memory: 2g}}
metrics: {{port: 0}}
"""
MEASURED = "measured"


@dataclass(frozen=True)
class Part:
    """One of the runs of a contender: of which database, where, and how many rows it takes."""

    database: str
    folder: Path
    name: str
    events: int

    @property
    def own_folder(self) -> Path:
        return self.folder / self.name


class PostgresMirror(Contender):
    """Mirrors a table as it is, or the changes of one that it mirrored before.

    Args:
        orders: the databases.
        changes: how many rows change between the first run, which is not measured, and the
            second, which is; none if the first run is the one to measure.
    """

    lake_type: type[MirrorLake] = MirrorLake

    def __init__(self, orders: OrdersDatabase, changes: int = 0) -> None:
        self.orders = orders
        self.changes = changes
        self._databases: dict[Path, str] = {}

    def prepare(self, stream: Stream, folder: Path) -> Command:
        database = self._databases[folder] = self.orders.new()
        if self.changes:
            command = self.command(stream, Part(database, folder, "first", self.orders.rows))
            with running(command.arguments, folder, command.env) as measured:
                measured.wait_for_success(f"{self.name}, first run")
            self.orders.change(database, self.changes)
        return self.command(stream, Part(database, folder, MEASURED, stream.rows))

    @abstractmethod
    def command(self, stream: Stream, part: Part) -> Command:
        """Return what takes the next rows of a database and then ends."""

    def lake(self, folder: Path) -> MirrorLake:
        sums = self.orders.sums(self._databases[folder])
        return self.lake_type(folder, sums, self.orders.rows + self.changes)


class IcestreamPostgres(PostgresMirror):
    """`postgres-cdc` into the embedded lake by `run --once`: high throughput, a driver of 2 GB."""

    name = "icestream"

    def versions(self) -> dict[str, str]:
        return icestream_versions()

    def command(self, stream: Stream, part: Part) -> Command:  # noqa: ARG002
        server = self.orders.server
        config = CONFIG.format(
            host=server.host,
            port=server.port,
            database=part.database,
            user=server.user,
            password=server.password,
            namespace=NAMESPACE,
            pipeline=PIPELINE,
        )
        (part.folder / "icestream.yaml").write_text(config)
        return Command([str(Path(sys.executable).with_name("icestream")), "run", "--once"])

    def started_at(self, folder: Path) -> float:
        return started_pipeline(folder, PIPELINE)
