"""What an upsert costs as the table grows."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from bench import keyed_rows, lake
from bench.cases.case import Case, Choices
from bench.contenders.upserters import CONTENDERS, Upserter, spark_settings
from bench.harness import running
from bench.lake import Lake, WrongRowsError
from bench.results import Result, now
from bench.table_files import (
    NAMESPACE,
    ROOT,
    job_command,
    make_tables,
    read_answer,
    run_job,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.keyed_rows import Expected
    from bench.process_tree import Usage
    from bench.table_files import Files

MB = 1 << 20
UNTOUCHED = "untouched"
WARM_UP_ROWS = 100_000
WARM_UP_BATCHES = 4
READS = 3


@dataclass
class Baseline:
    """What the contenders of one kind of key work on: the same files, the same changes."""

    kind: str
    folder: Path
    files: dict[int, Files]
    expected: dict[int, Expected] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        return Lake(self.folder)

    def changes(self, rows: int) -> Path:
        return self.folder / "changes" / str(rows)

    def write_changes(self, batches: int, changed: int) -> None:
        """Write each batch of changes for each table to a file, and record the expected result."""
        for rows in self.files:
            expected = self.expected[rows] = keyed_rows.Expected(rows)
            self.changes(rows).mkdir(parents=True)
            count = WARM_UP_BATCHES if rows == min(self.files) else batches
            for number in range(count):
                which, values = keyed_rows.random_changes(rows, number, changed)
                batch = keyed_rows.rows(self.kind, which, values)
                path = self.changes(rows) / f"{number:03}.parquet"
                pq.write_table(pa.Table.from_batches([batch]), path)
                expected.upsert(which, values)


@dataclass(frozen=True)
class Timing:
    """What one contender did with one kind of key."""

    batches: dict[str, list[dict[str, Any]]]
    index_bytes: dict[str, int]
    wall_s: float
    usage: Usage


class UpsertGrowth(Case):
    """10,000 changed rows with random keys, half of them updates, into tables of several sizes.

    Contenders work on tables that share their data files, a process each for a kind of key, and
    go round the tables batch by batch. The first batch of each table is separate (`first_s`):
    icestream makes its index of keys then. `seconds` are those of the batches after it.
    `read_mb` is what read calls returned, the median of these batches; an index of keys is mapped
    and comes on top, with at most `index_mb`. `select_s` is `select sum(value)` by Spark after
    all batches, `select_before_s` the same on a table that nobody changed.
    """

    name = "upsert_growth"
    sizes: ClassVar[tuple[int, ...]] = (1_000_000, 5_000_000, 20_000_000, 100_000_000)
    changed: ClassVar[int] = 10_000
    batches: ClassVar[int] = 3  # after the first

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        sizes = _scaled(self.sizes, choices.rows)
        chosen = choices.chosen(CONTENDERS)
        results: list[Result] = []
        for number, kind in enumerate(keyed_rows.KEYS):
            place = folder / kind
            order = chosen if number % 2 == 0 else chosen[::-1]
            batches = (choices.rounds or self.batches) + 1
            results += self._race(kind, sizes, order, place, batches)
            if not choices.keeps_tables:
                shutil.rmtree(place, ignore_errors=True)
        return results

    def _race(
        self, kind: str, sizes: Sequence[int], order: Sequence[Upserter], place: Path, batches: int
    ) -> list[Result]:
        began = time.monotonic()
        warm = min(WARM_UP_ROWS, sizes[0] // 2)
        baseline = Baseline(kind, place, write_files(kind, [warm, *sizes], place / "files"))
        baseline.write_changes(batches, self.changed)
        _make(baseline, order, sizes, warm)
        took = time.monotonic() - began
        print(f"{self.name}, {kind}: tables made in {took:.0f} s", file=sys.stderr, flush=True)
        timings: dict[str, Timing] = {}
        for contender in order:
            mine = [rows for rows in sizes if contender.takes(rows, sizes)]
            timings[contender.name] = _run(contender, baseline, mine, warm, batches)
        read = _read(baseline, order, sizes)
        return [
            self._result(contender, baseline, rows, timings[contender.name], read)
            for rows in sizes
            for contender in order
            if contender.takes(rows, sizes)
        ]

    def _result(
        self,
        contender: Upserter,
        baseline: Baseline,
        rows: int,
        timing: Timing,
        read: dict[str, Any],
    ) -> Result:
        first, *later = timing.batches[str(rows)]
        seconds = [each["seconds"] for each in later]
        totals = read[_table(contender.name, rows)]
        figures = {
            "table_rows": rows,
            "first_s": first["seconds"],
            "first_read_mb": first["read_bytes"] / MB,
            "read_mb": median(each["read_bytes"] for each in later) / MB,
            "index_mb": timing.index_bytes.get(str(rows), 0) / MB,
            "select_s": median(totals["seconds"]),
            "select_before_s": median(read[_table(UNTOUCHED, rows)]["seconds"]),
        }
        _verify(f"{contender.name}, {baseline.kind}, {rows}", totals, baseline.expected[rows])
        result = Result(
            case=f"{self.name}_{baseline.kind}_{label(rows)}",
            contender=contender.name,
            rows=self.changed,
            seconds=[round(each, 3) for each in seconds],
            rows_per_s=round(self.changed / median(seconds)),
            wall_s=[round(timing.wall_s, 3)],
            cpu_s=round(median(each["cpu_s"] for each in later), 2),
            peak_rss_mb=round(timing.usage.peak_rss_mb),
            versions=dict(sorted(contender.versions().items())),
            when=now(),
            figures={name: round(value, 3) for name, value in figures.items()},
        )
        print(
            f"{result.case}, {result.contender}: {median(seconds):.2f} s, {result.figures}",
            file=sys.stderr,
            flush=True,
        )
        return result


def label(rows: int) -> str:
    """Return a number of rows in short: `20m`, `50k`."""
    for unit, name in ((1_000_000, "m"), (1_000, "k")):
        if rows % unit == 0:
            return f"{rows // unit}{name}"
    return str(rows)


def _scaled(sizes: Sequence[int], largest: int | None) -> list[int]:
    if largest is None:
        return list(sizes)
    return [size * largest // max(sizes) for size in sizes]


def _table(contender: str, rows: int) -> str:
    return f"{contender}_{rows}"


def _make(baseline: Baseline, order: Sequence[Upserter], sizes: Sequence[int], warm: int) -> None:
    tables = {_table(UNTOUCHED, rows): baseline.files[rows] for rows in sizes}
    for contender in order:
        mine = [warm, *(rows for rows in sizes if contender.takes(rows, sizes))]
        tables |= {_table(contender.name, rows): baseline.files[rows] for rows in mine}
    make_tables(baseline.kind, tables, baseline.lake.warehouse, baseline.folder)


def _run(
    contender: Upserter, baseline: Baseline, sizes: Sequence[int], warm: int, batches: int
) -> Timing:
    place = baseline.folder / contender.name
    paths = {
        rows: sorted(str(path) for path in baseline.changes(rows).iterdir())
        for rows in (warm, *sizes)
    }
    settings = {
        **contender.settings(baseline.kind, baseline.lake, {r: baseline.changes(r) for r in paths}),
        "changes": {str(rows): files for rows, files in paths.items()},
        "tables": [str(rows) for rows in sizes],
        "batches": batches,
        "warm_up": str(warm),
        "warm_up_batches": WARM_UP_BATCHES,
    }
    arguments = job_command(contender.job, settings, place)
    began = time.monotonic()
    with running(arguments, place / contender.job, {"PYTHONPATH": str(ROOT)}) as measured:
        measured.wait_for_success(contender.name)
        wall = time.monotonic() - began
        usage = measured.watch.finish()
    answer = read_answer(contender.job, place)
    return Timing(answer["batches"], answer["index_bytes"], wall, usage)


def _read(baseline: Baseline, order: Sequence[Upserter], sizes: Sequence[int]) -> dict[str, Any]:
    names = [_table(UNTOUCHED, rows) for rows in sizes]
    names += [
        _table(contender.name, rows)
        for rows in sizes
        for contender in order
        if contender.takes(rows, sizes)
    ]
    settings = {
        **spark_settings(baseline.lake),
        "prefix": f"{lake.CATALOG}.{NAMESPACE}.",
        "tables": names,
        "reads": READS,
    }
    read: dict[str, Any] = run_job("read_tables", settings, baseline.folder)
    return read


def _verify(what: str, totals: dict[str, Any], expected: Expected) -> None:
    found = (totals["count"], int(totals["total"]))
    if found != (expected.count, expected.total):
        raise WrongRowsError(
            f"{what}: the table has {found[0]} rows with a sum of {found[1]}, not "
            f"{expected.count} with {expected.total}"
        )
