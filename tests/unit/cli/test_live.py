"""The log line of a batch, and the live view."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from icestream.cli.live import BatchLog, _lines
from icestream.engine.progress import Progress
from icestream.metrics.events import (
    BatchSkipped,
    BatchWritten,
    LagMeasured,
    MultiTableBatchWritten,
    RecordsFailed,
)

if TYPE_CHECKING:
    import pytest

WRITTEN = BatchWritten(
    pipeline="orders",
    table="lake.sales.orders",
    epoch=12,
    rows=10_000,
    bytes=1_200_000,
    files=3,
    write_secs=0.81,
    commit_secs=0.19,
)


def test_each_batch_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log = BatchLog()
    with caplog.at_level(logging.INFO, logger="icestream.cli.live"):
        log.observe(LagMeasured("orders", 10_500, 0.4))
        log.observe(WRITTEN)
    assert caplog.messages == [
        "orders: batch 12, 10,000 rows in 3 files, 1.2 MB, write 0.8 s, commit 0.2 s, lag 500 rows"
    ]


def test_retries_skips_and_bad_records_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    log = BatchLog()
    with caplog.at_level(logging.INFO, logger="icestream.cli.live"):
        log.observe(BatchWritten("o", "t", 1, 1, 10, 1, 0.1, 0.5, retries=2))
        log.observe(BatchSkipped("o", "t", 2))
        log.observe(RecordsFailed("o", "t", 3, 3))
    assert caplog.messages == [
        "o: batch 1, 1 row in 1 file, 10 B, write 0.1 s, commit 0.5 s, 2 retries, lag 0 rows",
        "o: batch 2 is already in the table, skipped",
        "o: 3 records rejected, 3 written to dead letters",
    ]


def test_batch_of_many_tables_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log = BatchLog()
    with caplog.at_level(logging.INFO, logger="icestream.cli.live"):
        log.observe(replace(WRITTEN, of_many=True))
        log.observe(BatchSkipped("orders", "lake.sales.refunds", 12, of_many=True))
        log.observe(MultiTableBatchWritten("orders", 12, 1, 1, 10_000, 3, 0.81, 1.25))
    assert caplog.messages == [
        "orders: batch 12, 10,000 rows in 3 files of 1 table, 1 already had it, stage 0.8 s, "
        "commit 1.2 s"
    ]


def test_each_of_many_tables_is_shown_if_requested(caplog: pytest.LogCaptureFixture) -> None:
    log = BatchLog()
    with caplog.at_level(logging.DEBUG, logger="icestream.cli.live"):
        log.observe(replace(WRITTEN, of_many=True))
        log.observe(BatchSkipped("orders", "lake.sales.refunds", 12, of_many=True))
    assert caplog.messages == [
        "orders: batch 12 of lake.sales.orders, 10,000 rows in 3 files, 1.2 MB, write 0.8 s, "
        "commit 0.2 s, lag 0 rows",
        "orders: batch 12 is already in lake.sales.refunds, skipped",
    ]


def rendered(progresses: list[Progress]) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(_lines(progresses, "Ctrl-C stops."))
    return captured.get()


def test_live_view_waits_for_spark() -> None:
    assert rendered([]) == "starting Spark ...\n"


def test_live_view_has_a_line_per_pipeline_and_its_error() -> None:
    good, bad = Progress("orders", "lake.a.b"), Progress("clicks", "lake.a.c")
    good.set_state("running")
    good.measure(42, 0.5)
    bad.fail(ValueError("the broker is gone\nand more"))
    lines = rendered([good, bad]).splitlines()
    assert lines[1].split() == ["orders", "running", "0", "0", "42", "-", "-"]
    assert lines[2].split() == ["clicks", "failed", "0", "0", "0", "-", "-"]
    assert "the broker is gone" in lines[3]
    assert lines[-1].strip() == "Ctrl-C stops."
