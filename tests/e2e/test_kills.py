"""The process is killed, at named points and at random; Kafka to Iceberg, each row once."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.e2e.kafka_pipeline import BATCH, KafkaPipeline

from icestream.testing.faults import POINTS, RunProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.kafka import KafkaBroker

KILLS = int(os.environ.get("ICESTREAM_KILLS", "5"))


@pytest.fixture
def pipeline(tmp_path: Path, kafka_broker: KafkaBroker) -> KafkaPipeline:
    return KafkaPipeline(tmp_path, kafka_broker)


@pytest.mark.timeout(200 + 60 * KILLS)
def test_every_row_arrives_once_whenever_the_process_is_killed(
    pipeline: KafkaPipeline,
) -> None:
    seed = random.randrange(1 << 30)  # noqa: S311 - shown when the test fails
    rng = random.Random(seed)  # noqa: S311
    for _ in range(KILLS):
        pipeline.produce(8_000)
        with RunProcess(pipeline.folder) as run:
            run.await_lines(BATCH, times=rng.randint(1, 3))
            time.sleep(rng.uniform(0, 2))
            run.kill()
    pipeline.finish()

    assert pipeline.ids() == list(range(pipeline.produced)), f"seed {seed}"


@pytest.mark.timeout(600)
def test_every_row_arrives_once_when_killed_at_each_crash_point(pipeline: KafkaPipeline) -> None:
    for point in POINTS:
        pipeline.produce(6_000)
        with RunProcess(pipeline.folder, crash_at=(point, 2)) as run:
            assert run.wait() == -signal.SIGKILL, run.output
    pipeline.finish()

    pipeline.assert_each_row_once()
