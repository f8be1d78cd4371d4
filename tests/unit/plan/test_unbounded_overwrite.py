"""Overwrite modes of bounded sources: `check`, `run` and Python refuse an unbounded stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import parse
from icestream.errors import ConfigError, PlanError
from icestream.plan import build
from icestream.plan.plan import refuse_endless
from icestream.plan.planner import build_runnable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

FILE = """\
version: "1.0"
sources:
  orders: {connector: datagen, config: {MADE}}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      commit_mode: MODE
      MORE
pipelines:
  orders: {source: orders, sink: lake}
"""
ENDLESS = "rows_per_second: 5"
MESSAGE = (
    "10:20 sinks.lake.config.commit_mode: commit_mode {mode!r} in pipeline 'orders': the source "
    "'orders' never ends, so that every batch would wipe what the last wrote\n"
    "  Load up to where the source ends now, with `icestream run --once` (and `icestream check "
    "--once`), or use `commit_mode: append`, `overwrite` or `upsert`."
)


def text_of(mode: str, made: str = ENDLESS) -> str:
    named = mode == "overwrite_partitions"
    more = 'overwrite_partitions: ["kind=a"]' if named else "batch_size: 10"
    return FILE.replace("MODE", mode).replace("MADE", made).replace("MORE", more)


def refuse(text: str, *, once: bool) -> None:
    build_runnable(parse(text, "orders.yaml"), once=once)


@pytest.mark.parametrize("mode", ["overwrite_table", "overwrite_partitions"])
def test_unbounded_stream_that_would_overwrite_its_own_rows_is_refused(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse(text_of(mode), once=False)

    assert str(caught.value) == "orders.yaml:" + MESSAGE.format(mode=mode)
    refuse(text_of(mode), once=True)


def test_pipeline_created_in_python_is_reported_by_its_name() -> None:
    plan = build(parse(text_of("overwrite_table"), "orders.yaml"))
    with pytest.raises(PlanError) as caught:
        refuse_endless(plan.pipelines[0], once=False)

    assert str(caught.value).startswith("pipeline 'orders': commit_mode 'overwrite_table' in ")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_modes_that_define_what_each_batch_replaces_may_be_unbounded(mode: str) -> None:
    refuse(text_of(mode), once=False)


def test_bounded_source_may_replace_a_table() -> None:
    refuse(text_of("overwrite_table", "rows: 10"), once=False)


@pytest.mark.parametrize("command", [("check", "--offline"), ("run",)])
def test_commands_refuse_it_before_anything_starts(
    icestream: Icestream, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "icestream.yaml").write_text(text_of("overwrite_table"))
    ended = icestream(*command)

    message = "icestream.yaml:" + MESSAGE.format(mode="overwrite_table")
    assert (ended.code, ended.err) == (2, f"error: {message}\n")


def test_check_accepts_a_load_with_once(icestream: Icestream, tmp_path: Path) -> None:
    (tmp_path / "icestream.yaml").write_text(text_of("overwrite_table"))

    assert icestream("check", "--offline", "--once").code == 0
