"""Data files of large tables, written once; several tables then hold the same files.

No contender removes a data file, so none disturbs another. Files have the default size, and are
written without Spark, by as many processes as there are cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import keyed_rows
from bench.harness import running

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMESPACE = "bench"
ROOT = Path(__file__).parents[1]
# A range this long becomes a file of about the default size.
ROWS_A_FILE = 5_000_000

Files = list[dict[str, Any]]


def write_files(kind: str, sizes: Sequence[int], folder: Path) -> dict[int, Files]:
    """Write files for tables of several sizes; a larger one holds those of all smaller ones.

    Returns:
        By size, the table's files in the form that `make_tables` takes.
    """
    made: dict[int, Files] = {}
    before: Files = []
    begin = 0
    # Not forked: the parent may hold threads of a Kafka client.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for size in sorted(sizes):
            edges = [*range(begin, size, ROWS_A_FILE), size]
            jobs = [
                pool.submit(_write_range, kind, first, end, f"file://{folder}")
                for first, end in pairwise(edges)
            ]
            before = [*before, *(file for job in jobs for file in job.result())]
            made[size] = before
            begin = size
    return made


def _write_range(kind: str, first: int, end: int, location: str) -> Files:
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

    from icestream.schemas.comparison import arrow_to_iceberg
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.properties import write_settings
    from icestream.sinks.iceberg.writer import IcebergWriter

    writer = IcebergWriter(
        schema=arrow_to_iceberg(keyed_rows.schema(kind), 3).model_dump_json(),
        spec=UNPARTITIONED_PARTITION_SPEC.model_dump_json(),
        location=location,
        properties={},
        io_properties={},
        sort_order_id=0,
        settings=write_settings(IcebergOptions(), {}),
    )
    return [asdict(file) for file in writer.write(keyed_rows.batches(kind, first, end))]


def make_tables(kind: str, tables: Mapping[str, Files], warehouse: Path, folder: Path) -> None:
    """Make tables of format v3, merge-on-read, each holding some files, in a SQLite catalog."""
    settings = {"kind": kind, "tables": tables, "warehouse": str(warehouse)}
    run_job("make_tables", settings, folder)


def run_job(name: str, settings: Mapping[str, Any], folder: Path) -> Any:
    """Run a module of `bench.jobs` to its end, and return what it wrote.

    Raises:
        RunError: it ended with an error.
    """
    arguments = job_command(name, settings, folder)
    with running(arguments, folder / name, {"PYTHONPATH": str(ROOT)}) as measured:
        measured.wait_for_success(name)
    return read_answer(name, folder)


def job_command(name: str, settings: Mapping[str, Any], folder: Path) -> list[str]:
    """Write a job's settings into a folder of its own; return how it is started."""
    mine = folder / name
    mine.mkdir(parents=True)
    (mine / "job.json").write_text(json.dumps(settings))
    files = [str(mine / file) for file in ("job.json", "answer.json")]
    return [sys.executable, "-m", f"bench.jobs.{name}", *files]


def read_answer(name: str, folder: Path) -> Any:
    """Return what a job wrote; None if it had nothing to say."""
    answer = folder / name / "answer.json"
    return json.loads(answer.read_text()) if answer.exists() else None
