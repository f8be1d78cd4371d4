from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from icestream.catalogs.memory import MemoryCatalog, MemoryCatalogOptions
from icestream.plan.table_changes import compatibility_steps
from icestream.sinks.iceberg.multi.fan_out import FanOutSink
from icestream.sinks.iceberg.options import IcebergOptions


def test_columns_of_routed_tables_are_not_compared() -> None:
    options = IcebergOptions(namespace=("db",), route_by="kind")
    sink = FanOutSink(options, MemoryCatalog("lake", MemoryCatalogOptions()), "lake")
    pipeline: Any = SimpleNamespace(sink=sink)
    (step,) = compatibility_steps(pipeline)
    assert (
        step.run()
        == "the stream is routed to many tables; their columns are only known during a run"
    )
