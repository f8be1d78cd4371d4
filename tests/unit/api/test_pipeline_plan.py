"""A pipeline built in Python is planned like one from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.api.pipeline import Pipeline
from icestream.api.settings import Settings
from icestream.api.sink import IcebergSink
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.plan import PipelinePlan


def planned(folder: Path, **options: Any) -> PipelinePlan:
    settings = Settings(state=folder / ".icestream", conf={"spark.driver.memory": "1g"})
    named = IcebergOptions(namespace=("shop",), table="orders", **options)
    sink = IcebergSink(named, settings)
    source = ScriptedSource(schema=pa.schema([("id", pa.int64())]))
    return Pipeline.from_source(source).to_sink(sink)._plan("orders", sink)


def test_max_rows_is_at_least_the_batch_size(tmp_path: Path) -> None:
    assert planned(tmp_path).batching.max_batch_rows == 1_000_000
    assert planned(tmp_path, batch_size=7_000_000).batching.max_batch_rows == 7_000_000
    assert planned(tmp_path, max_batch_rows=50_000).batching.max_batch_rows == 50_000


def test_dead_letter_table_has_suitable_options(tmp_path: Path) -> None:
    sink: Any = planned(
        tmp_path, on_error="dead_letter", dead_letter="bad", partitioning=["id"], format_version=3
    ).dead_letter
    assert sink.options == IcebergOptions(
        namespace=("shop",),
        table="bad",
        format_version=3,
        table_properties={"write.merge.isolation-level": "snapshot"},
    )
    assert planned(tmp_path).dead_letter is None


def test_dead_letter_table_for_expectations_is_planned(tmp_path: Path) -> None:
    unmet = {"name": "paid", "expr": "id > 0", "on_fail": "dead_letter"}
    sink: Any = planned(tmp_path, expect=[unmet], dead_letter="bad").dead_letter
    assert sink.options.table == "bad"
