"""The results file, and how results are shown."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.process_tree import Usage

WIDTH = 132
RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Run:
    """One run of a contender.

    Attributes:
        seconds: what the case times: where rows are moved, from the start of the stream to the
            commit of the last row.
        wall_s: from the start of the process to its end, or for one that never ends to the commit
            of the last row.
        usage: of the process and all that it started, from start to end.
    """

    seconds: float
    wall_s: float
    usage: Usage


@dataclass(frozen=True)
class Result:
    """What one contender did in one case.

    Attributes:
        case: name of the case.
        contender: who ran.
        rows: rows moved by each run; 0 where a case moves none.
        seconds: of each run, what the case times.
        rows_per_s: rows by the median of `seconds`; None where it would be meaningless.
        wall_s: of each run, seconds from start to end.
        cpu_s: CPU seconds, the median.
        peak_rss_mb: resident memory in MiB, the highest of all runs.
        versions: of what ran.
        when: when it ended, in UTC.
        figures: what else a case measures, by name; each case says what they are.
    """

    case: str
    contender: str
    rows: int
    seconds: list[float]
    rows_per_s: int | None
    wall_s: list[float]
    cpu_s: float
    peak_rss_mb: int
    versions: dict[str, str]
    when: str
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of_runs(
        cls,
        case: str,
        contender: str,
        runs: Sequence[Run],
        versions: dict[str, str],
        *,
        rows: int = 0,
    ) -> Result:
        """Sum up the runs of a contender, which have just ended."""
        return cls(
            case=case,
            contender=contender,
            rows=rows,
            seconds=[round(each.seconds, 3) for each in runs],
            rows_per_s=round(rows / median(each.seconds for each in runs)) if rows else None,
            wall_s=[round(each.wall_s, 3) for each in runs],
            cpu_s=round(median(each.usage.cpu_s for each in runs), 2),
            peak_rss_mb=round(max(each.usage.peak_rss_mb for each in runs)),
            versions=dict(sorted(versions.items())),
            when=now(),
        )


def now() -> str:
    """Return the timestamp in the format of the results."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results that are kept."""
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def keep(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Put results in the place of all that the same cases left before; others stay."""
    ran = {each.case for each in results}
    kept = [each for each in read(path) if each["case"] not in ran]
    rows = sorted(
        [*kept, *map(asdict, results)], key=lambda each: (each["case"], each["contender"])
    )
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def show(results: Sequence[Result]) -> None:
    """Print results as a table, each compared with the fastest of its case."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="median of each contender's runs")
    table.add_column("case")
    table.add_column("contender")
    for name in ("rows", "seconds", "wall s", "rows/s", "of the best", "CPU s", "peak RSS MiB"):
        table.add_column(name, justify="right")
    for each in results:
        rivals = [one.rows_per_s for one in results if one.case == each.case and one.rows_per_s]
        table.add_row(
            each.case,
            each.contender,
            f"{each.rows:,}" if each.rows else "-",
            f"{median(each.seconds):.2f}",
            f"{median(each.wall_s):.2f}",
            f"{each.rows_per_s:,}" if each.rows_per_s else "-",
            f"{each.rows_per_s / max(rivals):.0%}" if each.rows_per_s and rivals else "-",
            f"{each.cpu_s:.1f}",
            f"{each.peak_rss_mb:,}",
        )
    console = Console()
    # A pipe or a log has no width of its own; its lines may be as long as the table is wide.
    Console(width=None if console.is_terminal else WIDTH).print(table)
