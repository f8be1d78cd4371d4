"""How long the commit of a small batch takes."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, ClassVar

from bench.cases.case import Case, Choices
from bench.contenders.icestream_run import icestream_versions
from bench.harness import running
from bench.jobs import small_commits
from bench.results import Result, now

if TYPE_CHECKING:
    from pathlib import Path

    from bench.process_tree import Usage

ROWS_A_COMMIT = 100
CONFIG = """\
version: "1.0"
sources:
  shop: {{connector: datagen, config: {{rows: {rows}}}}}
sinks:
  lake:
    connector: iceberg
    config: {{namespace: shop, table: events, batch_size: 1, max_batch_rows: {most}}}
pipelines:
  events: {{source: shop, sink: lake}}
metrics: {{port: 0}}
"""


class CommitLatency(Case):
    """Commits of 100 rows each, one after the other, into the embedded catalog.

    The first one is left out: it also loads what later ones find loaded.
    """

    name = "commit_latency"
    commits: ClassVar[int] = 31

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        commits = (choices.rounds or self.commits - 1) + 1
        rows = commits * ROWS_A_COMMIT
        (folder / "icestream.yaml").write_text(CONFIG.format(rows=rows, most=ROWS_A_COMMIT))
        wall, usage = self._run_job(folder)
        seconds = json.loads((folder / "commits.json").read_text())
        return [
            Result(
                case=self.name,
                contender="icestream",
                rows=ROWS_A_COMMIT,
                seconds=[round(each, 3) for each in seconds[1:]],
                rows_per_s=None,
                wall_s=[round(wall, 3)],
                cpu_s=round(usage.cpu_s, 2),
                peak_rss_mb=round(usage.peak_rss_mb),
                versions=icestream_versions(),
                when=now(),
            )
        ]

    def _run_job(self, folder: Path) -> tuple[float, Usage]:
        files = [str(folder / name) for name in ("icestream.yaml", "commits.json")]
        began = time.monotonic()
        with running([sys.executable, str(small_commits.__file__), *files], folder) as measured:
            measured.wait_for_success(self.name)
            return time.monotonic() - began, measured.watch.finish()
