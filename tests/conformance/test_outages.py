"""The catalog's server, or the store's, goes away for a while under a running pipeline.

It is waited for by the policy of a file that says nothing about restarts.

`ICESTREAM_OUTAGE_SECS=30` for as long as `make chaos` takes it away; a few seconds else.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.fixtures.spark import Lake, configure_spark
from tests.fixtures.steady_pipeline import ROWS_A_SECOND, SteadyPipeline

from icestream.contracts import registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

OUTAGE_SECS = float(os.environ.get("ICESTREAM_OUTAGE_SECS", "2"))


@dataclass(frozen=True)
class Outage:
    """A catalog block, and how its server goes away and comes back."""

    block: dict[str, Any]
    go_away: Callable[[], object]
    come_back: Callable[[], object]


def _killed(block: dict[str, Any], server: Any) -> Outage:
    return Outage(block, server.kill, server.start)


def _cut(request: pytest.FixtureRequest, port: int) -> Any:
    return request.getfixturevalue("fault_proxy")(port)


def _jdbc(kind: str, fixture: str) -> Callable[[pytest.FixtureRequest, Path], Outage]:
    def outage(request: pytest.FixtureRequest, folder: Path) -> Outage:
        server = request.getfixturevalue(fixture)
        uri = f"jdbc:{kind}://127.0.0.1:{server.port}/{server.new_database()}"
        jdbc = {"uri": uri, "user": server.user, "password": server.password}
        block = {"type": "jdbc", "jdbc": jdbc, "warehouse": str(folder / "warehouse")}
        return _killed(block, server)

    return outage


def _rest(request: pytest.FixtureRequest, _: Path) -> Outage:
    server = request.getfixturevalue("rest_catalog_own")
    return _killed({"type": "rest", "rest": {"uri": server.uri}}, server)


def _hive(request: pytest.FixtureRequest, _: Path) -> Outage:
    server = request.getfixturevalue("hive_metastore_own")
    hive = {"uri": server.uri, "warehouse": server.warehouse}
    return _killed({"type": "hive", "hive": hive}, server)


def _nessie(request: pytest.FixtureRequest, _: Path) -> Outage:
    server = request.getfixturevalue("nessie_own")
    nessie = {"uri": server.uri, "warehouse": server.warehouse}
    return _killed({"type": "nessie", "nessie": nessie}, server)


def _glue(request: pytest.FixtureRequest, _: Path) -> Outage:
    """Keeps everything in memory, so it is not killed: connections to it are cut."""
    request.getfixturevalue("aws_environment")
    server, store = request.getfixturevalue("glue_server"), request.getfixturevalue("s3_store")
    proxy = _cut(request, urlsplit(server.endpoint).port or 0)
    glue = {"region": server.region, "endpoint": f"http://127.0.0.1:{proxy.port}"}
    block = {"type": "glue", "glue": glue, "s3": _s3(store)}
    return Outage(block, proxy.cut, proxy.restore)


def _on_s3(request: pytest.FixtureRequest, folder: Path) -> Outage:
    store = request.getfixturevalue("s3_store_own")
    jdbc = {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}"}
    return _killed({"type": "jdbc", "jdbc": jdbc, "s3": _s3(store)}, store)


def _s3(store: Any) -> dict[str, Any]:
    return {
        "bucket": store.new_bucket(),
        "endpoint": store.endpoint,
        "path_style_access": True,
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key,
    }


OUTAGES = {
    "jdbc, PostgreSQL": _jdbc("postgresql", "postgres_own"),
    "jdbc, MariaDB": _jdbc("mariadb", "mariadb_own"),
    "rest": _rest,
    "hive": _hive,
    "nessie": _nessie,
    "glue": _glue,
    "S3": _on_s3,
}


@pytest.mark.parametrize("name", OUTAGES)
def test_pipeline_resumes_after_a_server_outage(
    name: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    outage = OUTAGES[name](request, tmp_path)
    kind = registry.find("catalogs", outage.block["type"])
    options = kind.options_type.model_validate(outage.block)
    catalog = kind(f"lake_{uuid.uuid4().hex[:8]}", options)
    catalog.client()
    configure_spark(spark, catalog)
    lake = Lake(spark, tmp_path, catalog, namespace=(f"n{uuid.uuid4().hex[:12]}",))
    pipeline = SteadyPipeline(lake, ROWS_A_SECOND * 6)

    with pipeline.running():
        outage.go_away()
        outage_start = time.monotonic()
        error = pipeline.wait_until_waiting()["error"]
        time.sleep(max(outage_start + OUTAGE_SECS - time.monotonic(), 0))
        outage.come_back()
        pipeline.wait_for_end()

    assert pipeline.written() == list(range(pipeline.rows))
    assert error["needs_person"] is False
    assert error["type"] in ("UnreachableError", "TransientError", "CommitUnknownError"), error
    catalog.close()
