"""Random histories against a list: changes, reorderings, new, renamed and widened columns,
compactions, crashes, kills and replays end in the same rows, in every commit mode, on v2 and v3.

Each run draws new ones. What a failing test prints says how to draw the same again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.spark import Lake, configure_spark
from tests.fixtures.table_history import (
    LOST_ANSWER,
    MODES,
    NO_COMMIT,
    Step,
    World,
    draw_history,
    worlds_of,
)
from tests.fixtures.waiting import wait_until

from icestream.catalogs.jdbc import embedded
from icestream.sinks.iceberg import commit as commits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from icestream.sinks.iceberg.commit import TableChange
    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.ledger import MarkSnapshot

HISTORIES = int(os.environ.get("ICESTREAM_HISTORIES", "2"))
KILLS = int(os.environ.get("ICESTREAM_KILLS", "1"))
ROOT = Path(__file__).parents[2]


class CrashError(BaseException):
    """The process ended here."""


def live(world: World, step: Step) -> None:
    """Let a step happen; a batch that crashes is replayed after a restart."""
    if step.kind in (LOST_ANSWER, NO_COMMIT):
        with pytest.MonkeyPatch.context() as patch:
            keyed = "upsert" in world.mode
            patch.setattr(
                commits, "apply_change", crash(keyed=keyed, after=step.kind == LOST_ANSWER)
            )
            with pytest.raises(CrashError):
                world.commit(step)
        world.sink = None
    world.live(step)


def crash(*, keyed: bool, after: bool) -> Callable[..., MarkSnapshot]:
    original = commits.apply_change

    def commit(table: JavaTable, change: TableChange, *arguments: Any) -> MarkSnapshot:
        if change.is_keyed != keyed:
            return original(table, change, *arguments)  # the tombstones beside the table
        if after:
            original(table, change, *arguments)
        raise CrashError

    return commit


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_any_history_ends_with_the_expected_rows(
    lake: Lake, mode: str, version: int, seed: int
) -> None:
    dice = random.Random(f"{seed} {mode} {version}")  # noqa: S311 - not for secrets
    for number in range(HISTORIES):
        world = World(lake, mode, version, f"t{number}")
        steps = draw_history(dice, dice.randint(3, 8))
        for step in steps:
            live(world, step)
        assert world.rows() == world.expected.result(), [step.kind for step in steps]


@pytest.mark.timeout(400 + 60 * KILLS)
def test_any_history_survives_kills_of_its_process(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    length = 3 + KILLS
    done = tmp_path / "done"

    def count() -> int:
        return len(done.read_text(encoding="utf-8").splitlines()) if done.exists() else 0

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.fixtures.table_history"]
        # A group of its own, so that the JVM can be killed with it.
        return subprocess.Popen(
            [*command, str(tmp_path), str(seed), str(length)], cwd=ROOT, start_new_session=True
        )

    for _ in range(KILLS):
        process, before = start(), count()
        turns = dice.randint(1, 2 * len(MODES))
        wait_until(
            lambda: process.poll() is not None or count() >= before + turns,  # noqa: B023
            f"{turns} steps",
        )
        time.sleep(dice.uniform(0, 0.5))
        # With its JVM, as a power cut; or alone: the JVM may then finish what it is about.
        dice.choice([os.killpg, os.kill])(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start().wait() == 0

    catalog = embedded(tmp_path / "lake", f"lake_{seed}")
    configure_spark(spark, catalog)
    for world, steps in worlds_of(Lake(spark, tmp_path, catalog), seed, length):
        for step in steps:
            world.expected.take(step)
        kinds = [step.kind for step in steps]
        assert world.rows() == world.expected.result(), (world.mode, world.version, kinds)
