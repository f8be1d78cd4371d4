"""A run of many small batches: its memory, files and descriptors stay what they were."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.accumulators import _accumulatorRegistry
from tests.spark.test_expectations import steps

from icestream.metrics.events import BatchWritten
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.spark import Lake

# Ten thousand in `make chaos`. An upsert keeps an index and an entry for each data file, and its
# table gets one with every batch, until a compaction joins them.
BATCHES = int(os.environ.get("ICESTREAM_BATCHES", "60"))
UPSERTS = min(BATCHES, 45)
OBJECTS_A_FILE = 50
# As maintenance would: without it, each commit rewrites the list of all snapshots so far.
EXPIRED_EVERY = min(BATCHES // 4, 200)
RETAINED = "spark.sql.streaming.minBatchesToRetain"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass(frozen=True)
class Footprint:
    """What a run holds at one time, after a garbage collection."""

    objects: int
    reports: int
    accumulators: int
    memory_kib: int
    heap_kib: int
    descriptors: int
    descriptors_of_java: int
    threads: int
    state_files: int
    temporary_files: int


class Watch(list[object]):
    """Takes the events of a run, and looks at it after some of its batches."""

    def __init__(self, lake: Lake, *after: int) -> None:
        super().__init__()
        self.seen = 0
        self.found: list[Footprint] = []
        self._lake = lake
        self._after = after

    def append(self, event: object) -> None:
        if isinstance(event, BatchWritten):
            self.seen += 1
            if self.seen % EXPIRED_EVERY == 0:
                self._lake.sql(
                    "CALL lake.system.expire_snapshots(table => 'db.events', older_than => now())"
                )
            if self.seen in self._after:
                self.found.append(footprint(self._lake))


def footprint(lake: Lake) -> Footprint:
    java: Any = lake.spark._jvm
    pid = int(java.java.lang.ProcessHandle.current().pid())
    for _ in range(2):
        gc.collect()
        java.java.lang.System.gc()
    runtime = java.java.lang.Runtime.getRuntime()
    reports = [
        each.value
        for each in _accumulatorRegistry.values()
        if isinstance(each.value, dict) and each.value
    ]
    return Footprint(
        objects=len(gc.get_objects()),
        reports=len(reports),
        accumulators=len(_accumulatorRegistry),
        memory_kib=resident_kib(),
        heap_kib=int(runtime.totalMemory() - runtime.freeMemory()) >> 10,
        descriptors=descriptors(os.getpid()),
        descriptors_of_java=descriptors(pid),
        threads=threading.active_count(),
        state_files=sum(
            path.is_file() and path.suffix != ".keys" for path in lake.state.rglob("*")
        ),
        temporary_files=len(list(Path(tempfile.gettempdir()).iterdir())),
    )


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test a temporary folder of its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.fixture
def few_retained(lake: Lake) -> Iterator[None]:
    """Let Spark keep the files of ten batches in a checkpoint, not of a hundred."""
    before = lake.spark.conf.get(RETAINED)
    lake.spark.conf.set(RETAINED, "10")
    yield
    lake.spark.conf.set(RETAINED, str(before))


@pytest.mark.timeout(300 + 5 * BATCHES)
@pytest.mark.usefixtures("few_retained", "temporary")
@pytest.mark.parametrize(
    ("way", "batches"), [("append through Spark SQL", BATCHES), ("upsert", UPSERTS)]
)
def test_many_batches_use_no_more_memory_than_few(way: str, batches: int, lake: Lake) -> None:
    source = ScriptedSource(schema=SCHEMA)
    source.append_rows([{"id": n % 7, "name": f"row {n}"} for n in range(batches)])
    options: dict[str, Any] = {}
    most = dict(MOST_GROWN)
    if way == "upsert":
        options = {"commit_mode": "upsert", "key_fields": ("id",)}
        most["objects"] += batches * OBJECTS_A_FILE
    plan = lake.plan(source, batching=Batching(1, 0.01, 1), **options)
    if way != "upsert":
        plan = replace(plan, transforms=steps(("filter", "id >= 0")))
    watch = lake.events = Watch(lake, batches // 3, batches)
    lake.run(plan)

    assert watch.seen == batches
    first, last = watch.found
    grown = {name: value - getattr(first, name) for name, value in asdict(last).items()}
    assert (last.reports, grown["accumulators"]) == (0, 0)
    too_much = {name: value for name, value in grown.items() if value > most.get(name, 0)}
    assert not too_much, f"of {first}, after {batches} batches"


# Whatever the number of batches: about what one batch more or less has in hand.
MOST_GROWN = {
    "objects": 500,
    "memory_kib": 50 << 10,
    "heap_kib": 50 << 10,
    "descriptors": 10,
    "descriptors_of_java": 20,
    "threads": 5,
    "state_files": 10,
    "temporary_files": 3,
}
