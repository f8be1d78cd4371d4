"""How fast the commands answer that a person types."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bench.cases.case import Case, Choices
from bench.contenders.icestream_run import icestream_versions
from bench.results import Result
from bench.short_command import time_command

if TYPE_CHECKING:
    from bench.results import Run

COMMANDS = {
    "icestream --help": ("--help",),
    "icestream check": ("check",),
    "icestream check --offline": ("check", "--offline", "--config", "with_sql.yaml"),
    "icestream plan": ("plan",),
    "icestream status": ("status",),
    "icestream snapshots": ("snapshots",),
}
CONFIG = """\
version: "1.0"
sources:
  shop: {connector: datagen, config: {rows: 1000}}
sinks:
  lake: {connector: iceberg, config: {namespace: shop, table: events}}
pipelines:
  events: {source: shop, sink: lake}
metrics: {port: 0}
"""

# Its columns and SQL are bound without Spark.
WITH_SQL = """\
version: "1.0"
sources:
  shop: {connector: datagen, config: {rows: 1000}}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: shop
      table: orders
      commit_mode: upsert
      key_fields: [event_id]
      partitioning: ["days(event_time)", "bucket(16, customer_id)"]
      expect: [{name: positive, expr: amount > 0, on_fail: drop}]
pipelines:
  orders:
    source: shop
    sink: lake
    transforms:
      - filter: event_type = 'purchase' AND quantity > 0
      - select: [event_id, event_time, customer_id, "price * quantity AS amount", country]
      - cast: {amount: "decimal(12,2)"}
"""


class CliStartup(Case):
    """Each command of a pipeline that ran once, from its start to its end."""

    name = "cli_startup"
    rounds: ClassVar[int] = 7

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        icestream = str(Path(sys.executable).with_name("icestream"))
        (folder / "icestream.yaml").write_text(CONFIG)
        (folder / "with_sql.yaml").write_text(WITH_SQL)
        time_command([icestream, "run", "--once"], folder)
        chosen = {
            name: words
            for name, words in COMMANDS.items()
            if not choices.only or name in choices.only
        }
        runs: dict[str, list[Run]] = {name: [] for name in chosen}
        for _ in range(choices.rounds or self.rounds):
            for name, words in chosen.items():
                runs[name].append(time_command([icestream, *words], folder))
        versions = icestream_versions()
        return [Result.of_runs(self.name, name, each, versions) for name, each in runs.items()]
