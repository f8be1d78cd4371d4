"""How long a call of each catalog takes: load, exists, list."""

from __future__ import annotations

import os
import resource
import time
import uuid
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
from tests.conformance.targets import TARGETS
from tests.fixtures.glue import GlueServer
from tests.fixtures.hive_metastore import HiveMetastore
from tests.fixtures.mariadb import MariaDb
from tests.fixtures.nessie import Nessie
from tests.fixtures.oauth_gateway import OAuthGateway
from tests.fixtures.postgres import Postgres
from tests.fixtures.rest_catalog import RestCatalog
from tests.fixtures.s3_store import S3Store
from tests.fixtures.service_run import ServiceRun

from bench.cases.case import Case, Choices
from bench.contenders.icestream_run import icestream_versions
from bench.results import Result, now
from bench.timing import timed
from icestream.contracts import registry

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.catalog import Catalog

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLES = 10
SERVERS: dict[str, type[Any]] = {
    "glue_server": GlueServer,
    "hive_metastore": HiveMetastore,
    "mariadb": MariaDb,
    "nessie": Nessie,
    "postgres": Postgres,
    "rest_catalog": RestCatalog,
    "s3_store": S3Store,
}
# A call of a catalog takes as long wherever files lie: each kind of server once.
CALLED = (
    "jdbc, SQLite",
    "jdbc, PostgreSQL",
    "jdbc, MariaDB",
    "rest",
    "rest, OAuth2",
    "hive",
    "nessie",
    "glue, on S3",
)


class CatalogCalls(Case):
    """Each call many times by the one client of a process, after a first one that connects.

    Figures: the median of each call, in milliseconds.
    """

    name = "catalog_calls"
    calls: ClassVar[int] = 50

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        # Servers that run as another user have folders of their own below.
        folder.chmod(0o755)
        run = ServiceRun(folder / "services")
        run.folder.mkdir(mode=0o755)
        held = run.begin()
        servers = _Servers(run)
        chosen = [each for each in choices.chosen(TARGETS) if each.name in CALLED]
        results = []
        try:
            for target in chosen:
                place = folder / target.name.replace(", ", "-")
                place.mkdir()
                block = target.block(servers, place)
                # The Glue client takes its keys from the environment alone.
                with patch.dict(os.environ, servers.environment):
                    results.append(self._time(target.name, block, choices.rounds or self.calls))
        finally:
            servers.close()
            run.end()
            held.close()
        return results

    def _time(self, name: str, block: dict[str, Any], calls: int) -> Result:
        kind = registry.find("catalogs", block["type"])
        catalog: Catalog[Any] = kind("bench", kind.options_type.model_validate(block))
        began, cpu = time.monotonic(), time.process_time()
        client = catalog.client()
        # Two of them may ask one server.
        namespace = f"calls_{uuid.uuid4().hex[:8]}"
        client.create_namespace(namespace)
        for number in range(TABLES):
            client.create_table((namespace, f"t{number}"), schema=COLUMNS)
        taken = {
            "load_ms": timed(lambda: catalog.find_table((namespace, "t5")), calls),
            "exists_ms": timed(lambda: client.table_exists((namespace, "t5")), calls),
            "list_ms": timed(lambda: client.list_tables(namespace), calls),
        }
        catalog.close()
        return Result(
            case=self.name,
            contender=name,
            rows=0,
            seconds=[round(each, 4) for each in taken["load_ms"]],
            rows_per_s=None,
            wall_s=[round(time.monotonic() - began, 3)],
            cpu_s=round(time.process_time() - cpu, 2),
            peak_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            versions=icestream_versions(),
            when=now(),
            figures={call: round(median(each) * 1000, 1) for call, each in taken.items()},
        )


class _Servers:
    """Starts each server when it is first asked for, under the name of its fixture."""

    def __init__(self, run: ServiceRun) -> None:
        self._run = run
        self._started: dict[str, Any] = {}
        self.environment: dict[str, str] = {}

    def __call__(self, name: str) -> Any:
        if name == "aws_environment":
            self.environment = self("glue_server").environment
            return None
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def _start(self, name: str) -> Any:
        if name == "oauth_gateway":
            gateway = OAuthGateway(self("rest_catalog").uri)
            gateway.start()
            return gateway
        return SERVERS[name].create(self._run, name)

    def close(self) -> None:
        """End what runs in this process; the run ends the others."""
        gateway = self._started.get("oauth_gateway")
        if gateway is not None:
            gateway.stop()
