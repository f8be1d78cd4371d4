"""The same file on a real standalone Spark cluster: a master and two workers of another user."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.fixtures.command_line import Ended, run_icestream

from icestream.catalogs.jdbc import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import Postgres
    from tests.fixtures.spark_cluster import SparkCluster

ROWS = 20_000
FILE = """
sources:
  events: {{connector: datagen, config: {{rows: {rows}}}}}
  shop:
    connector: postgres-cdc
    config:
      {{host: {host}, port: {port}, database: {database}, user: {user},
       password: "${{POSTGRES_PASSWORD}}"}}
sinks:
  appended:
    connector: iceberg
    config: {{namespace: lake, table: appended, partitioning: ['bucket(4, event_id)']}}
  upserted:
    connector: iceberg
    config:
      {{namespace: lake, table: upserted, commit_mode: upsert, key_fields: [quantity],
       batch_size: 7000, max_batch_rows: 7000}}
  by_quantity: {{connector: iceberg, config: {{namespace: fan, route_by: "concat('q', quantity)"}}}}
  mirror: {{connector: iceberg}}
pipelines:
  appended: {{source: events, sink: appended, transforms: [{{filter: "quantity > 0"}}]}}
  upserted: {{source: events, sink: upserted}}
  by_quantity: {{source: events, sink: by_quantity}}
  mirror: {{source: shop, sink: mirror}}
metrics: {{port: 0}}
spark:
  master: {master}
  conf:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 1g
    spark.cores.max: "2"
    # Hadoop's own umask: the workers write into folders of tables that the driver makes.
    spark.hadoop.fs.permissions.umask-mode: "000"
"""
TABLE = """
CREATE TABLE orders (id int PRIMARY KEY, what text);
INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 100) AS n;
"""
CHANGES = "UPDATE orders SET what = 'new' WHERE id <= 10; DELETE FROM orders WHERE id > 90"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can get to, and write to in what is made there."""
    with tempfile.TemporaryDirectory(prefix="icestream-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def writable_by_all() -> Iterator[None]:
    """Let files and folders be writable by all users: the driver's and the workers'."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def executors(cluster: SparkCluster) -> set[Path]:
    """Return what each worker keeps of every executor that it started."""
    return set(cluster.folder.rglob("app-*/*/stdout"))


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    loaded = embedded(folder / "lake").client().load_table(table)
    found: list[dict[str, Any]] = loaded.scan().to_arrow().to_pylist()
    return found


@pytest.mark.timeout(600)
def test_same_file_runs_on_a_cluster_whose_workers_have_another_user(
    folder: Path, spark_cluster: SparkCluster, postgres: Postgres
) -> None:
    database = postgres.new_database()
    text = FILE.format(
        rows=ROWS,
        host=postgres.host,
        port=postgres.port,
        database=database,
        user=postgres.user,
        master=spark_cluster.master,
    )
    (folder / "icestream.yaml").write_text(text, encoding="utf-8")
    before = executors(spark_cluster)

    def run(change: str) -> Ended:
        with psycopg.connect(postgres.dsn_of(database), autocommit=True) as connection:
            connection.execute(change.encode())
        env = {**os.environ, "POSTGRES_PASSWORD": postgres.password}
        with writable_by_all():
            ended = run_icestream("run", "--once", folder=folder, env=env, secs=280)
        assert ended.code == 0, ended.err
        return ended

    run(TABLE)
    # Indexes of keys are on the workers, and can be lost there.
    for cache in spark_cluster.folder.glob("worker*/tmp/icestream-*"):
        shutil.rmtree(cache)
    run(CHANGES)

    assert (folder / ".icestream").stat().st_mode & 0o777 == 0o700
    assert len(executors(spark_cluster) - before) == 4
    appended = rows(folder, "lake.appended")
    assert sorted(row["event_id"] for row in appended) == list(range(ROWS))
    newest = {row["quantity"]: row["event_id"] for row in appended}
    for row in appended:
        newest[row["quantity"]] = max(newest[row["quantity"]], row["event_id"])
    assert {row["quantity"]: row["event_id"] for row in rows(folder, "lake.upserted")} == newest
    fanned = [row for quantity in newest for row in rows(folder, f"fan.q{quantity}")]
    assert sorted(row["event_id"] for row in fanned) == list(range(ROWS))
    mirrored = {row["id"]: row["what"] for row in rows(folder, "public.orders")}
    assert mirrored == {n: "new" if n <= 10 else "old" for n in range(1, 91)}
    owners = {path.stat().st_uid for path in spark_cluster.folder.glob("worker*/tmp/icestream-*")}
    assert owners == {65534 if os.getuid() == 0 else os.getuid()}
