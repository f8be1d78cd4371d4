"""`icestream prepare`, and what the next start makes of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.class_archive import class_archive
from tests.fixtures.command_line import run_icestream
from tests.fixtures.missing import MissingError

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    try:
        class_archive()
    except MissingError as exc:
        pytest.fail(f"`icestream prepare` failed: {exc}")


def run_once(folder: Path, **variables: str) -> tuple[dict[str, int], list[str]]:
    """Run to the end; return what was printed, and the classes that Java mapped."""
    (folder / "icestream.yaml").write_text(FILE, encoding="utf-8")
    ended = run_icestream(
        *("run", "--once", "--output", "json"), folder=folder, env={**os.environ, **variables}
    )
    loaded = (folder / "classes.log").read_text(encoding="utf-8").splitlines()
    return json.loads(ended.out), [line for line in loaded if MAPPED in line]


def test_start_maps_the_classes_of_spark_and_of_iceberg(tmp_path: Path) -> None:
    printed, mapped = run_once(tmp_path)

    assert printed["exit_code"] == 0
    assert len(mapped) > OF_THE_ARCHIVE
    assert any("org.apache.iceberg.spark.SparkCatalog " in line for line in mapped)


def test_archive_that_does_not_fit_is_passed_over_in_silence(tmp_path: Path) -> None:
    settings = tmp_path / "hadoop"
    settings.mkdir()
    (settings / "core-site.xml").write_text("<configuration/>")

    printed, mapped = run_once(tmp_path, HADOOP_CONF_DIR=str(settings))

    assert printed["exit_code"] == 0
    assert not mapped
