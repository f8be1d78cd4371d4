"""The installed command, from a file to rows that other engines read."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest
from pyiceberg.catalog import load_catalog
from tests.fixtures.command_line import COMMAND, Ended, run_icestream
from tests.fixtures.waiting import wait_until

from icestream.engine.state import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

FILE = """\
version: "1.0"
sources:
  shop: {{connector: datagen, config: {source}}}
sinks:
  lake:
    connector: iceberg
    config: {{namespace: demo, table: events, batch_size: 500, flush_interval_secs: 1}}
pipelines:
  shop: {{source: shop, sink: lake}}
metrics: {{port: {port}}}
"""
NO_JVM = (
    ["check"],
    ["plan"],
    ["status"],
    ["snapshots"],
    ["query", "SELECT count(*) FROM demo.events"],
    ["json-schema"],
)


def write_file(folder: Path, source: str, port: int = 0) -> Path:
    path = folder / "icestream.yaml"
    path.write_text(FILE.format(source=source, port=port), encoding="utf-8")
    return path


def table_of(folder: Path) -> Table:
    lake = load_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{folder}/lake/catalog.db",
        warehouse=f"file://{folder}/lake",
    )
    return lake.load_table("demo.events")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A folder in which `icestream run --once` wrote a thousand rows, its metrics port taken."""
    folder = tmp_path_factory.mktemp("once")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        write_file(folder, "{rows: 1000}", taken.getsockname()[1])
        return folder, run_icestream("run", "--once", "--output", "json", folder=folder)


def test_run_once_reports_every_row(ran: tuple[Path, Ended]) -> None:
    _, ended = ran
    assert ended.code == 0, ended.err
    (pipeline,) = ended.document["pipelines"]
    assert (pipeline["state"], pipeline["rows"], pipeline["table"]) == (
        "finished",
        1000,
        "lake.demo.events",
    )
    assert ended.document["exit_code"] == 0
    lines = [line for line in ended.err.splitlines() if "shop: batch 0, 1,000 rows" in line]
    assert len(lines) == 1


def test_metrics_port_in_use_is_a_warning(ran: tuple[Path, Ended]) -> None:
    _, ended = ran
    assert "warning: metrics.port: port" in ended.err
    assert "is in use, so the metrics endpoint cannot listen there" in ended.err


def test_rows_are_read_by_pyiceberg_duckdb_and_polars(
    ran: tuple[Path, Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Polars warns when it plans a scan without a package of its own.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    folder, _ = ran
    table = table_of(folder)
    rows = table.scan().to_arrow()
    assert sorted(rows["event_id"].to_pylist()) == list(range(1000))
    connection = duckdb.connect()
    connection.register("events", rows)
    found = connection.execute("SELECT count(DISTINCT event_id) FROM events").fetchone()
    assert found == (1000,)
    assert pl.scan_iceberg(table).select(pl.col("event_id").n_unique()).collect().item() == 1000


def test_commands_report_the_same_snapshot(ran: tuple[Path, Ended]) -> None:
    folder, ended = ran
    snapshot_id = ended.document["pipelines"][0]["snapshot_id"]
    (status,) = run_icestream("status", "--output", "json", folder=folder).document["pipelines"]
    history = run_icestream("snapshots", "--output", "json", folder=folder).document
    assert (status["state"], status["snapshot_id"]) == ("finished", snapshot_id)
    assert (status["table_rows"], status["mark"]["epoch"]) == (1000, 0)
    assert [one["snapshot_id"] for one in history["snapshots"]] == [snapshot_id]
    assert history["snapshots"][0]["pipeline"] == "shop"


@pytest.mark.parametrize("arguments", NO_JVM, ids=lambda arguments: arguments[0])
def test_command_without_a_jvm_never_loads_pyspark(
    ran: tuple[Path, Ended], arguments: list[str]
) -> None:
    folder, _ = ran
    script = (
        "import sys\n"
        "from icestream.cli.main import run_command\n"
        f"code = run_command({arguments!r})\n"
        "assert not [name for name in ('pyspark', 'py4j') if name in sys.modules]\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_sigterm_finishes_the_batch_and_leaves_a_clean_checkpoint(tmp_path: Path) -> None:
    write_file(tmp_path, "{rows_per_second: 1000}")
    checkpoint = tmp_path / ".icestream" / "checkpoints" / "shop"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [COMMAND, "run", "--output", "json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            wait_until(
                lambda: process.poll() is not None or read_checkpoint(checkpoint).done >= 1,
                "the second batch",
                secs=150,
            )
            os.kill(process.pid, signal.SIGTERM)
            out, _ = process.communicate(timeout=100)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (tmp_path / "log").read_text(encoding="utf-8")
    document = json.loads(out)
    assert document["pipelines"][0]["state"] == "stopped"
    found = read_checkpoint(checkpoint)
    assert found.planned == found.done
    ids = table_of(tmp_path).scan().to_arrow()["event_id"].to_pylist()
    assert sorted(ids) == list(range(found.end_of(found.done)["row"]))
    assert len(ids) == document["pipelines"][0]["rows"]


def test_failed_pipeline_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    write_file(tmp_path, "{rows: 10}")
    (tmp_path / "lake").write_text("a file where a folder should be", encoding="utf-8")
    ended = run_icestream("run", "--once", "--output", "json", folder=tmp_path)
    error = ended.document["error"]
    assert ended.code == error["exit_code"] != 0
    assert ended.document["pipelines"][0]["error"] == error
    assert error["where"].startswith("catalog 'lake'")
