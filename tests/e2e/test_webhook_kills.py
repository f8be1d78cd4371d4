"""Senders continue while the process is killed: every acknowledged event is in the table once."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.ports import free_port
from tests.fixtures.short_lived import SHORT_LIVED
from tests.fixtures.waiting import wait_until
from tests.fixtures.webhook_sender import Sender

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import POINTS, RunProcess

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = int(os.environ.get("ICESTREAM_WEBHOOK_EVENTS", "5000"))
KILLS = int(os.environ.get("ICESTREAM_WEBHOOK_KILLS", "1"))
FILE = (
    """
sources:
  hook:
    connector: webhook
    config:
      port: {port}
      path: /orders
      schema: "id bigint, name string, amount double"
      max_spool_mb: {spool_mb}
      spool: spool
sinks:
  lake:
    connector: iceberg
    config:
      namespace: shop
      table: orders
      batch_size: 500
      flush_interval_secs: 0.3
      max_batch_rows: {rows}
pipelines:
  orders: {{source: hook, sink: lake}}
"""
    + SHORT_LIVED
)


class Hook:
    def __init__(self, folder: Path, *, max_batch_rows: int = 100_000) -> None:
        self.folder = folder
        self.port = free_port()
        # Small, so that segments are removed all the time.
        text = FILE.format(port=self.port, spool_mb=16, rows=max_batch_rows)
        (folder / "icestream.yaml").write_text(text)

    def sender(self, events: int, *, first: int = 0, twice_every: int = 20) -> Sender:
        numbers = range(first, first + events)
        return Sender(self.port, "/orders", numbers, twice_every=twice_every)

    def ids(self) -> list[int]:
        table: Any = embedded(self.folder / "lake").client().load_table(("shop", "orders"))
        found: list[int] = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        return sorted(found)

    def finish(self) -> None:
        with RunProcess(self.folder, "--once") as run:
            assert run.wait() == 0, run.output


def _await_answers(sender: Sender, count: float, run: RunProcess) -> None:
    wait_until(
        lambda: sender.answered >= count or run.process.poll() is not None,
        f"{count:.0f} events to be answered",
        secs=120 + EVENTS / 200,
        pause=0.002,
    )


@pytest.mark.timeout(400 + 60 * KILLS + EVENTS // 200)
def test_every_acknowledged_event_arrives_once_whenever_the_process_is_killed(
    tmp_path: Path,
) -> None:
    hook = Hook(tmp_path)
    seed = random.randrange(1 << 30)  # noqa: S311 - shown when the test fails
    rng = random.Random(seed)  # noqa: S311
    began = time.monotonic()
    sender = hook.sender(EVENTS)
    for kill in range(KILLS):
        with RunProcess(hook.folder) as run:
            until = EVENTS * rng.uniform(kill, kill + 1) / (KILLS + 1)
            _await_answers(sender, until, run)
            time.sleep(rng.uniform(0, 0.5))
            assert run.process.poll() is None, run.output
            run.kill()
    with RunProcess(hook.folder) as run:
        sender.wait(120 + EVENTS / 200)
        run.kill()
    sent_again = hook.sender(100, first=EVENTS // 2, twice_every=0)
    with RunProcess(hook.folder) as run:
        sent_again.wait(120)
        run.kill()
    hook.finish()

    assert hook.ids() == list(range(EVENTS)), f"seed {seed}"
    assert sender.answered == EVENTS
    assert sent_again.already_had == 100
    print(  # noqa: T201 - the figures of a long run
        f"{EVENTS} events, {KILLS + 2} kills, {sender.repeated} sent again, "
        f"{sender.already_had} known, {time.monotonic() - began:.0f} s"
    )


@pytest.mark.timeout(600)
def test_every_acknowledged_event_arrives_once_when_killed_at_each_crash_point(
    tmp_path: Path,
) -> None:
    hook = Hook(tmp_path, max_batch_rows=500)
    senders = []
    for number, point in enumerate(POINTS):
        senders.append(hook.sender(1_500, first=1_500 * number))
        with RunProcess(hook.folder, crash_at=(point, 2)) as run:
            assert run.wait() == -signal.SIGKILL, run.output
    with RunProcess(hook.folder) as run:
        for sender in senders:
            sender.wait(120)
        run.kill()
    hook.finish()

    assert hook.ids() == list(range(1_500 * len(POINTS)))
