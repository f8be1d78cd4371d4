"""`icestream prepare`, and what the next start makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fixtures.command_line import Ended, run_icestream
from tests.fixtures.spark import spark_jars

FILE = """\
sources:
  shop: {connector: datagen, config: {rows: 100}}
sinks:
  lake: {connector: iceberg, config: {namespace: demo, table: events}}
pipelines:
  shop: {source: shop, sink: lake}
metrics: {port: 0}
spark:
  master: "local[2]"
  conf: {spark.driver.extraJavaOptions: "-Xlog:class+load:file=classes.log"}
"""
MAPPED = "source: shared objects file (top)"
OF_THE_ARCHIVE = 10_000


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a space in its path, filled by `icestream prepare`; the jars are ours."""
    folder = tmp_path_factory.mktemp("my cache")
    (folder / "icestream").mkdir()
    (folder / "icestream" / "jars").symlink_to(spark_jars()[0].parent)
    env = {**os.environ, "XDG_CACHE_HOME": str(folder)}

    ended = run_icestream("prepare", "--output", "json", folder=folder, env=env)

    assert ended.code == 0, ended.err
    archive = Path(ended.document["class_archive"])
    assert [*(folder / "icestream" / "classes").iterdir()] == [archive]
    assert archive.stat().st_size == ended.document["bytes"]
    return folder


def run_once(folder: Path, **variables: str) -> tuple[Ended, list[str]]:
    """Run to the end; return how it ended, and the classes that Java mapped."""
    (folder / "icestream.yaml").write_text(FILE, encoding="utf-8")
    ended = run_icestream(
        *("run", "--once", "--output", "json"), folder=folder, env={**os.environ, **variables}
    )
    loaded = (folder / "classes.log").read_text(encoding="utf-8").splitlines()
    return ended, [line for line in loaded if MAPPED in line]


def test_start_maps_the_classes_of_spark_and_iceberg(cache: Path, tmp_path: Path) -> None:
    ended, mapped = run_once(tmp_path, XDG_CACHE_HOME=str(cache))

    assert ended.document["exit_code"] == ended.code == 0
    assert len(mapped) > OF_THE_ARCHIVE
    assert any("org.apache.iceberg.spark.SparkCatalog " in line for line in mapped)


def test_mismatched_archive_is_silently_ignored(cache: Path, tmp_path: Path) -> None:
    settings = tmp_path / "hadoop"
    settings.mkdir()
    (settings / "core-site.xml").write_text("<configuration/>")

    ended, mapped = run_once(tmp_path, XDG_CACHE_HOME=str(cache), HADOOP_CONF_DIR=str(settings))

    # What Java would say of it stands on standard output, where our document is.
    assert ended.document["exit_code"] == ended.code == 0
    assert not mapped
