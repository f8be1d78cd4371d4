"""Python as Spark starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.spark.workers import without_spark_archives, worker_python

if TYPE_CHECKING:
    import pytest

LOOK = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['PYTHONPATH']]))"


def test_only_spark_archives_are_removed_from_the_path() -> None:
    environment = {
        "SPARK_HOME": "/opt/spark",
        "PYTHONPATH": "/opt/spark/python/lib/pyspark.zip:/opt/spark/jars/core.jar::/mine/all.zip",
        "OTHER": "1",
    }
    assert without_spark_archives(environment) == {**environment, "PYTHONPATH": "/mine/all.zip"}
    assert without_spark_archives({"PYTHONPATH": "/mine"}) == {"PYTHONPATH": "/mine"}


def test_worker_command_runs_python_without_spark_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    env = {**os.environ, "SPARK_HOME": "/opt/spark", "PYTHONPATH": "/opt/spark/a.zip:/mine"}
    done = subprocess.run(
        [worker_python(), "-c", LOOK, "x", "y z"], env=env, capture_output=True, check=True
    )
    assert Path(worker_python()).name == "icestream-worker"
    assert json.loads(done.stdout) == [["x", "y z"], "/mine"]


def test_python_without_the_worker_command_is_used_directly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert worker_python() == sys.executable


def test_spark_home_keeps_plain_python_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_python() == sys.executable
