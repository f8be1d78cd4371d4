from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from icestream.catalogs.memory import MemoryCatalog, MemoryCatalogOptions
from icestream.plan.table_changes import compatibility_steps
from icestream.sinks.iceberg.multi.fan_out import FanOutSink
from icestream.sinks.iceberg.options import IcebergOptions


@pytest.mark.parametrize(
    "sink",
    [
        SimpleNamespace(has_many_tables=False),
        SimpleNamespace(has_many_tables=False, options=SimpleNamespace()),
        SimpleNamespace(has_many_tables=False, catalog=None, options=None, table="t"),
    ],
)
def test_sink_that_is_no_iceberg_table_is_skipped(sink: Any) -> None:
    pipeline: Any = SimpleNamespace(sink=sink)
    (step,) = compatibility_steps(pipeline)
    assert step.run() == "not an Iceberg table; its columns are only known during a run"


def test_sink_of_many_tables_is_left_to_a_run() -> None:
    options = IcebergOptions(namespace=("db",), route_by="kind")
    sink = FanOutSink(options, MemoryCatalog("lake", MemoryCatalogOptions()), "lake")
    pipeline: Any = SimpleNamespace(sink=sink)
    (step,) = compatibility_steps(pipeline)
    assert (
        step.run()
        == "the stream is routed to many tables; their columns are only known during a run"
    )
