"""Runs icestream and a Kafka Connect worker with Debezium until a mirror has all rows.

Run as a module: bench.jobs.debezium_kafka SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchTableError

from bench.contenders.icestream_run import started_pipeline
from bench.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table

PAUSE_SECS = 0.3
ENDING_SECS = 60


@contextmanager
def running(arguments: Sequence[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log of its own, asked to end when the block does."""
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(ENDING_SECS)


def pipeline_runs(folder: Path, name: str, since: float) -> bool:
    try:
        return started_pipeline(folder, name) >= since
    except FileNotFoundError:
        return False


def has_all(table: Table, job: dict[str, Any]) -> bool:
    """Tell whether the table has every row, or every row of the last transaction."""
    if job["last_id"] is not None:
        found = table.scan(row_filter=f"id >= {job['last_id']}", selected_fields=("id",))
        return int(found.to_arrow().num_rows) >= int(job["last_rows"])
    snapshot = table.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    return summary is not None and int(summary["total-records"] or 0) >= int(job["events"])


def wait_for_all(job: dict[str, Any], processes: Sequence[subprocess.Popen[bytes]]) -> None:
    lake, seen = Lake(Path(job["folder"])), None
    while True:
        for process in processes:
            if process.poll() is not None:
                sys.exit(f"{process.args!r} ended with {process.returncode}: see its log")
        try:
            table = lake.catalog().load_table(job["table"])
        except NoSuchTableError:
            table = None
        if table is not None and table.metadata.current_snapshot_id != seen:
            seen = table.metadata.current_snapshot_id
            if has_all(table, job):
                return
        time.sleep(PAUSE_SECS)


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(job["folder"])
    began = time.time()
    logs = Path(job["logs"])
    with running(job["icestream"], folder, logs / "icestream.log") as icestream:
        while not pipeline_runs(folder, job["pipeline"], began):
            if icestream.poll() is not None:
                sys.exit(f"icestream ended with {icestream.returncode}: see its log")
            time.sleep(PAUSE_SECS)
        with running(job["connect"], folder, logs / "connect.log") as connect:
            wait_for_all(job, [icestream, connect])
    Path(sys.argv[2]).write_text("{}")


if __name__ == "__main__":
    main()
