"""`verify` where only the packages of some sources are installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icestream.errors import DependencyError
from icestream.sources.kafka.database import DatabaseOptions
from icestream.verify.mysql_server import MySqlServer

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_CLIENTS = """
import sys
for name in ("psycopg", "pymysql", "confluent_kafka"):
    sys.modules[name] = None
from icestream.config import load
from icestream.plan.planner import build
from icestream.verify.verify import verify
from icestream.verify.pipelines import skipped_pipelines
plan = build(load("icestream.yaml"))
print([report.status for report in verify(plan, None)], skipped_pipelines(plan))
"""
FILE = """\
sources: {events: {connector: datagen, config: {rows: 10}}}
sinks: {events: {connector: iceberg, config: {namespace: d, table: events}}}
pipelines: {events: {source: events, sink: events}}
"""


def test_tables_are_verified_without_clients_of_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "icestream.yaml").write_text(FILE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CLIENTS], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("['not compared'] {}\n", "")


def test_missing_client_of_mysql_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    options = DatabaseOptions(type="mysql", host="db", user="me")
    with pytest.raises(DependencyError) as caught, MySqlServer(options).connect():
        pass
    assert str(caught.value) == (
        "verifying tables of 'mysql' needs the package pymysql, which is not installed\n"
        "  pip install 'icestream[mysql]'"
    )
