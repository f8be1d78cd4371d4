"""Random transactions on PostgreSQL, a mirror killed again and again: both are equal in the end."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.command_line import run_icestream
from tests.fixtures.postgres_model import Model
from tests.fixtures.short_lived import SHORT_LIVED

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import AFTER_TABLE, POINTS, RunProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.postgres import Postgres
    from tests.fixtures.postgres_model import Row

logger = logging.getLogger(__name__)

KILLS = int(os.environ.get("ICESTREAM_KILLS", "3"))
# The start of a log line about a commit.
BATCH = "shop: batch "
FILE = (
    """
sources:
  shop:
    connector: postgres-cdc
    config:
      host: {server.host}
      port: {server.port}
      database: {database}
      user: {server.user}
      password: ${{POSTGRES_PASSWORD}}
      tables: ["public.*"]
      snapshot_chunk_rows: 100
      heartbeat_secs: 2
sinks:
  lake:
    connector: iceberg
    config: {{batch_size: 100, flush_interval_secs: 0.3, max_batch_rows: 300}}
pipelines:
  shop: {{source: shop, sink: lake}}
"""
    + SHORT_LIVED
)


class Mirror:
    """A lake that follows a database, by processes that are killed."""

    def __init__(self, folder: Path, server: Postgres, seed: int) -> None:
        self.folder = folder
        self.model = Model(server, seed)
        self.rng = random.Random(seed)  # noqa: S311
        text = FILE.format(server=server, database=self.model.database)
        (folder / "icestream.yaml").write_text(text, encoding="utf-8")

    def die_at(self, point: str) -> None:
        """Run until the process reaches a point, and is killed there."""
        times = self.rng.randint(1, 3)
        with (
            self.model.changing(),
            RunProcess(self.folder, crash_at=(point, times)) as run,
        ):
            assert run.wait() == -signal.SIGKILL, run.output
        self._note(f"at {point}:{times}", run)

    def die_at_random(self, batches: int, secs: float) -> None:
        """Run for so many batches and a random while, and kill the process."""
        with self.model.changing(), RunProcess(self.folder) as run:
            run.await_lines(BATCH, times=batches)
            time.sleep(self.rng.uniform(0, secs))
            assert run.process.poll() is None, run.output
            run.kill()
        self._note(f"after {batches} batches", run)

    def _note(self, moment: str, run: RunProcess) -> None:
        logger.info(
            "killed %s; %d batches, %d transactions so far",
            *(moment, run.count(BATCH), self.model.transactions),
        )

    def finish(self) -> None:
        """Run up to the database's end, in larger batches than those that were killed."""
        self.model.touch_all()
        file = self.folder / "icestream.yaml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("max_batch_rows: 300", "max_batch_rows: 100000"))
        with RunProcess(self.folder, "--once") as run:
            assert run.wait(600) == 0, run.output

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a mirrored table, read by PyIceberg alone."""
        loaded: Any = embedded(self.folder / "lake").client().load_table(("public", table))
        found: list[Row] = loaded.scan().to_arrow().to_pylist()
        return [_plain(row) for row in found]


def _plain(row: Row) -> Row:
    """Return a row without what the mirror adds, and an id as the database gives it."""
    kept = {name: value for name, value in row.items() if name != "_row_key"}
    if isinstance(kept.get("id"), bytes):
        kept["id"] = uuid.UUID(bytes=kept["id"])
    return kept


def _spelt(value: Any) -> str:
    """Return a value as text that includes its type; UTC has several names."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(timezone.utc)!r}"
    return repr(value)


def _sorted(rows: list[Row]) -> list[str]:
    """Return rows as texts that differ where a value or its type does, whatever their order."""
    return sorted(
        ", ".join(f"{name} = {_spelt(value)}" for name, value in sorted(row.items()))
        for row in rows
    )


@pytest.fixture
def mirror(tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("POSTGRES_PASSWORD", postgres.password)
    seed = int(os.environ.get("ICESTREAM_SEED", random.randrange(1 << 30)))  # noqa: S311
    logger.info("ICESTREAM_SEED=%d", seed)  # shown when the test fails
    mirror = Mirror(tmp_path, postgres, seed)
    yield mirror
    mirror.model.close()


@pytest.mark.timeout(900 + 90 * KILLS)
def test_mirror_equals_the_database_whenever_the_process_is_killed(mirror: Mirror) -> None:
    mirror.model.fill(200)
    # In the middle of the first snapshot, which takes several batches.
    mirror.die_at_random(batches=2, secs=0.5)
    # Any two of the named points in a test run, all of them where more kills are asked for.
    points = [*POINTS, AFTER_TABLE]
    mirror.rng.shuffle(points)
    for point in points[: max(2, KILLS - 1)]:
        mirror.die_at(point)
    for _ in range(KILLS - 1):
        mirror.die_at_random(batches=mirror.rng.randint(1, 4), secs=2)
    mirror.finish()

    tables = mirror.model.tables()
    for table in tables:
        assert _sorted(mirror.rows(table)) == _sorted(mirror.model.rows(table)), table
    verified = run_icestream("verify", "--output", "json", folder=mirror.folder)
    assert verified.code == 0, verified.out + verified.err
    compared = {each["source"]: each["status"] for each in verified.document["tables"]}
    assert compared == dict.fromkeys((f"public.{table}" for table in tables), "same")
