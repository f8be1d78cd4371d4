"""Tables in HDFS, through Hadoop's client in Spark and WebHDFS in Python."""

from __future__ import annotations

import json
import os
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from tests.fixtures.command_line import run_icestream
from tests.fixtures.hdfs import write_hadoop_file
from tests.fixtures.ports import free_port
from tests.fixtures.shared_catalog import shared_both_ways

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import RefusedError
from icestream.storage.hdfs import HdfsOptions, HdfsStorage
from icestream.storage.webhdfs import HdfsOutput
from icestream.testing.catalog_suite import CatalogSuite
from icestream.testing.storage_suite import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.hdfs import Hdfs
    from tests.fixtures.hive_metastore import HiveMetastore

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.storage import Storage

FILE = """\
version: "1.0"
catalogs:
  lake: {catalog}
sources:
  shop: {{connector: datagen, config: {{rows: 500}}}}
sinks:
  events:
    connector: iceberg
    config: {{catalog: lake, namespace: {namespace}, table: events{more}}}
pipelines:
  events: {{source: shop, sink: events, restart: {{max: 0}}}}
metrics: {{port: 0}}
"""
UPSERT = ", commit_mode: upsert, key_fields: [event_id]"


def new_folder(hdfs: Hdfs, host: str | None = None) -> str:
    return f"hdfs://{host or hdfs.address}/lake/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def hdfs_catalog(hdfs: Hdfs, tmp_path: Path) -> Iterator[JdbcCatalog]:
    block = {
        "jdbc": {"uri": f"jdbc:sqlite:{tmp_path / 'catalog.db'}"},
        "warehouse": new_folder(hdfs),
        "hdfs": {"web": hdfs.web},
    }
    name = f"lake_{uuid.uuid4().hex[:8]}"
    catalog = JdbcCatalog(name, JdbcCatalogOptions.model_validate(block))
    yield catalog
    catalog.close()


class TestCatalogInHdfs(CatalogSuite):
    target = "jdbc, SQLite, on HDFS"

    @pytest.fixture
    def catalog(self, hdfs_catalog: JdbcCatalog) -> Catalog[Any]:
        return hdfs_catalog


class TestHdfsStorage(StorageSuite):
    @pytest.fixture
    def storage(self, hdfs_catalog: JdbcCatalog) -> Storage:
        return hdfs_catalog.files

    @pytest.fixture
    def warehouse(self, hdfs_catalog: JdbcCatalog) -> str:
        return hdfs_catalog.warehouse


def test_catalog_in_hdfs_is_shared_with_spark(
    hdfs_catalog: JdbcCatalog, spark: SparkSession
) -> None:
    shared_both_ways(hdfs_catalog, spark)


def storage_at(*web: str, **options: Any) -> HdfsStorage:
    return HdfsStorage(HdfsOptions.model_validate({"web": web, **options}))


def test_large_file_is_written_in_one_request_and_read_in_ranges(hdfs: Hdfs) -> None:
    path = f"{new_folder(hdfs)}/day=2024-01-01 %41/a b.parquet"
    io = load_file_io(storage_at(hdfs.web).pyiceberg_properties(), path)
    table = pa.table({"id": range(3_000_000)})

    with io.new_output(path).create() as stream:
        pq.write_table(table, stream, compression="none")

    assert len(io.new_input(path)) > 16 << 20
    with io.new_input(path).open() as stream:
        assert pq.read_table(stream).equals(table)


class _Standby(BaseHTTPRequestHandler):
    """A name node that waits until the active one fails."""

    def do_GET(self) -> None:
        fault = {"exception": "StandbyException", "message": "READ is not supported in state"}
        body = json.dumps({"RemoteException": fault}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def standby() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Standby)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_name_node_that_is_down_or_on_standby_is_passed_over(hdfs: Hdfs, standby: str) -> None:
    storage = storage_at(f"http://127.0.0.1:{free_port()}", standby, hdfs.web)

    for step in storage.check(new_folder(hdfs)):
        assert step.run()


def test_name_node_without_an_answer_is_not_a_missing_file() -> None:
    port = free_port()
    io = load_file_io(storage_at(f"http://127.0.0.1:{port}").pyiceberg_properties(), "hdfs://h/a")

    with pytest.raises(OSError, match="webhdfs/v1/a"):
        io.new_input("hdfs://h/a").exists()


def test_data_node_without_an_answer_is_named() -> None:
    port = free_port()

    with pytest.raises(OSError, match=f"WebHDFS data node 127.0.0.1:{port}: .*refused") as caught:
        HdfsOutput(f"http://127.0.0.1:{port}/webhdfs/v1/a?op=CREATE")

    error = storage_at("http://nn:9870").explain(exception_text(caught.value), "table n.t")
    assert str(error) == (
        "table n.t: connection to HDFS refused\n"
        "  Is the server running? Check the warehouse's address and `hdfs.web`."
    )


def test_user_without_permission_is_refused(hdfs: Hdfs) -> None:
    storage = storage_at(hdfs.web, user="nobody")
    steps = {step.name: step for step in storage.check(new_folder(hdfs))}

    with pytest.raises(RefusedError) as caught:
        steps["write an object"].run()

    assert str(caught.value) == (
        f"storage hdfs {hdfs.web}, user nobody: HDFS denies access\n"
        "  Give the user write permission on the warehouse's folder, or set `hdfs.user` to one "
        "that has it."
    )


def write_file(folder: Path, catalog: str, more: str = "") -> str:
    namespace = f"shop_{uuid.uuid4().hex[:8]}"
    text = FILE.format(catalog=catalog, namespace=namespace, more=more)
    (folder / "icestream.yaml").write_text(text)
    return namespace


def run_and_count(folder: Path, namespace: str, env: dict[str, str] | None = None) -> Any:
    """Check and run a file, and return how many rows its table has."""
    checked = run_icestream("check", folder=folder, env=env)
    assert checked.code == 0, checked.out
    done = run_icestream("run", "--once", folder=folder, env=env)
    assert done.code == 0, done.err
    query = f"SELECT count(*) AS n FROM {namespace}.events"  # noqa: S608 - our own name
    found = run_icestream("query", query, "--output", "json", folder=folder, env=env)
    return found.document["rows"]


def test_hive_tables_on_hdfs(hive_metastore: HiveMetastore, hdfs: Hdfs, tmp_path: Path) -> None:
    hive = f'{{uri: "{hive_metastore.uri}", warehouse: "{new_folder(hdfs)}"}}'
    catalog = f'{{type: hive, hive: {hive}, hdfs: {{web: "{hdfs.web}"}}}}'
    namespace = write_file(tmp_path, catalog)

    assert run_and_count(tmp_path, namespace) == [{"n": 500}]


@pytest.mark.parametrize("more", ["", UPSERT])
def test_pipeline_writes_to_a_nameservice_of_the_hadoop_configuration(
    hdfs: Hdfs, tmp_path: Path, more: str
) -> None:
    configuration = tmp_path / "hadoop"
    configuration.mkdir()
    down = f"127.0.0.1:{free_port()}"
    client = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    settings = {
        "dfs.nameservices": "lakes",
        "dfs.ha.namenodes.lakes": "nn1,nn2",
        "dfs.namenode.rpc-address.lakes.nn1": down,
        "dfs.namenode.rpc-address.lakes.nn2": hdfs.address,
        "dfs.namenode.http-address.lakes.nn1": down,
        "dfs.namenode.http-address.lakes.nn2": hdfs.web.removeprefix("http://"),
        "dfs.client.failover.proxy.provider.lakes": client,
    }
    write_hadoop_file(configuration / "hdfs-site.xml", settings)
    warehouse = new_folder(hdfs, "lakes")
    catalog = f'{{type: jdbc, jdbc: {{uri: "jdbc:sqlite:catalog.db"}}, warehouse: "{warehouse}"}}'
    namespace = write_file(tmp_path, catalog, more)
    env = {**os.environ, "HADOOP_CONF_DIR": str(configuration)}

    assert run_and_count(tmp_path, namespace, env) == [{"n": 500}]
