"""A pipeline that was stopped, doubled, paused or robbed of its state; each row once."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from tests.e2e.kafka_pipeline import BATCH, KafkaPipeline
from tests.fixtures.waiting import wait_until

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import RunProcess

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.kafka import KafkaBroker


@pytest.fixture
def pipeline(tmp_path: Path, kafka_broker: KafkaBroker) -> KafkaPipeline:
    return KafkaPipeline(tmp_path, kafka_broker)


@pytest.mark.timeout(400)
def test_rows_stay_single_when_compacted_and_expired_while_the_pipeline_is_down(
    pipeline: KafkaPipeline, spark: SparkSession
) -> None:
    pipeline.produce(6_000)
    with RunProcess(pipeline.folder, crash_at=("after-commit", 2)) as run:
        assert run.wait() == -signal.SIGKILL, run.output
    catalog = embedded(pipeline.folder / "lake")
    # A session of its own: the store knows the catalog as `lake`, and so would every other test.
    tool = spark.newSession()
    tool.conf.set(f"spark.sql.catalog.{catalog.name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in catalog.spark_settings().items():
        tool.conf.set(f"spark.sql.catalog.{catalog.name}.{key}", value)
    tool.sql(
        f"CALL {catalog.name}.system.rewrite_data_files(table => 'shop.orders', "
        "options => map('rewrite-all', 'true'))"
    ).collect()
    tool.sql(
        f"CALL {catalog.name}.system.expire_snapshots(table => 'shop.orders', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    ).collect()
    pipeline.produce(1_000)
    pipeline.finish()

    pipeline.assert_each_row_once()


@pytest.mark.timeout(400)
def test_paused_instance_stops_with_an_error_after_a_take_over(
    pipeline: KafkaPipeline,
) -> None:
    pipeline.produce(2_000)
    with RunProcess(pipeline.folder) as paused:
        paused.await_lines(BATCH)
        paused.signal(signal.SIGSTOP)
        pipeline.produce(3_000)
        with RunProcess(pipeline.folder, "--once", "--take-over") as other:
            assert other.wait() == 0, other.output
        pipeline.produce(1_000)
        paused.signal(signal.SIGCONT)
        assert paused.wait() == 5, paused.output
        assert "another instance of this pipeline has taken over and wrote batch" in paused.output
    pipeline.finish()

    pipeline.assert_each_row_once()


@pytest.mark.timeout(400)
def test_second_instance_of_a_running_pipeline_commits_nothing_and_reports_it(
    pipeline: KafkaPipeline,
) -> None:
    pipeline.produce(1_000)
    with RunProcess(pipeline.folder) as first:
        first.await_lines(BATCH)
        with RunProcess(pipeline.folder) as second:
            assert second.wait() == 5, second.output
            assert (
                f"the pipeline is already running as process {first.process.pid} on"
                in second.output
            )
        pipeline.produce(1_000)
        wait_until(lambda: len(pipeline.ids()) == pipeline.produced, "the first to write all rows")
        first.signal(signal.SIGTERM)
        assert first.wait() == 0, first.output

    pipeline.assert_each_row_once()


@pytest.mark.timeout(400)
def test_wiped_state_stops_with_two_remedies_and_resumes_on_request(
    pipeline: KafkaPipeline,
) -> None:
    pipeline.produce(1_000)
    pipeline.finish()
    shutil.rmtree(pipeline.folder / ".icestream")
    pipeline.produce(500)
    with RunProcess(pipeline.folder, "--once") as run:
        assert run.wait() == 5, run.output
        assert "icestream run --pipeline orders --resume" in run.output
        assert "icestream run --pipeline orders --start-over" in run.output
    with RunProcess(pipeline.folder, "--once", "--resume") as run:
        assert run.wait() == 0, run.output

    pipeline.assert_each_row_once()
