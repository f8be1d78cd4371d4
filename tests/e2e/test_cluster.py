"""The same file on a real standalone Spark cluster: a master and two workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fixtures.command_line import run_icestream

from icestream.catalogs.jdbc import embedded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.spark_cluster import SparkCluster

FILE = """
sources:
  events: {{connector: datagen, config: {{rows: 20000}}}}
sinks:
  lake: {{connector: iceberg, config: {{namespace: shop, table: events, {more}}}}}
pipelines:
  events: {{source: events, sink: lake, transforms: [{{filter: "quantity > 0"}}]}}
metrics: {{port: 0}}
spark:
  master: {master}
  conf:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 1g
    spark.cores.max: "2"
"""


def executors(cluster: SparkCluster) -> set[Path]:
    """Return what each worker keeps of every executor that it started."""
    return set(cluster.folder.rglob("app-*/*/stdout"))


@pytest.mark.timeout(400)
def test_the_same_file_runs_on_a_cluster(tmp_path: Path, spark_cluster: SparkCluster) -> None:
    file = FILE.format(master=spark_cluster.master, more="partitioning: ['bucket(4, event_id)']")
    (tmp_path / "icestream.yaml").write_text(file)
    before = executors(spark_cluster)
    ended = run_icestream("run", "--once", folder=tmp_path)

    assert ended.code == 0, ended.err
    table = embedded(tmp_path / "lake").client().load_table(("shop", "events"))
    ids = table.scan(selected_fields=("event_id",)).to_arrow()["event_id"].to_pylist()
    assert sorted(ids) == list(range(20_000))
    assert len(executors(spark_cluster) - before) == 2
