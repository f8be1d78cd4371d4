"""The process is killed around the commits of many tables; each row arrives once, in its table."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import AFTER_TABLE, RunProcess

if TYPE_CHECKING:
    from pathlib import Path

# Sixteen commits are under way at once, and those that Java has begun outlive us.
TABLES = 32
ROWS = 320
FILE = """
sources:
  events:
    connector: files
    config: {path: incoming, format: json, schema: "id bigint, kind string"}
sinks:
  lake:
    connector: iceberg
    config: {namespace: shop, route_by: kind, flush_interval_secs: 0.3, batch_size: 10}
pipelines:
  events: {source: events, sink: lake}
metrics: {port: 0}
spark:
  master: local[2]
  conf:
    spark.driver.memory: 1g
    # A process that lives for seconds starts faster so.
    spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


class FanOut:
    """Numbered rows in files, a new file for each run; row n belongs to table n modulo TABLES."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = embedded(folder / "lake")
        self.rows = 0
        (folder / "incoming").mkdir()
        (folder / "icestream.yaml").write_text(FILE)

    def add(self) -> None:
        numbers = range(self.rows, self.rows + ROWS)
        lines = [json.dumps({"id": n, "kind": f"kind_{n % TABLES}"}) for n in numbers]
        path = self.folder / "incoming" / f"{self.rows:06}.json"
        path.with_suffix(".part").write_text("\n".join(lines))
        path.with_suffix(".part").rename(path)
        self.rows += ROWS

    def die_at(self, point: str, times: int = 1) -> None:
        """Add rows and run until the process is killed."""
        self.add()
        with RunProcess(self.folder, "--once", crash_at=(point, times)) as run:
            assert run.wait() == -signal.SIGKILL, run.output

    def finish(self) -> None:
        with RunProcess(self.folder, "--once") as run:
            assert run.wait() == 0, run.output

    def ids(self, number: int) -> list[int]:
        """Return the ids in a table, read by PyIceberg; none while there is no table."""
        try:
            table: Any = self.catalog.client().load_table(("shop", f"kind_{number}"))
        except NoSuchTableError:
            return []
        return sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    def filled(self) -> int:
        """Return how many tables hold rows."""
        return sum(bool(self.ids(number)) for number in range(TABLES))


@pytest.mark.timeout(600)
def test_every_row_arrives_once_in_its_table_wherever_the_process_is_killed(
    tmp_path: Path,
) -> None:
    fan_out = FanOut(tmp_path)
    fan_out.die_at("before-commit")
    assert fan_out.filled() == 0
    fan_out.die_at(AFTER_TABLE, 3)
    assert 0 < fan_out.filled() < TABLES
    # The replay fills the tables that lack the first batch, and is killed in its turn.
    fan_out.die_at("after-commit")
    assert fan_out.filled() == TABLES
    # A replay of what every table holds, then a new batch that Spark never hears of.
    fan_out.die_at("after-batch", 2)
    fan_out.finish()

    for number in range(TABLES):
        assert fan_out.ids(number) == list(range(number, fan_out.rows, TABLES))
