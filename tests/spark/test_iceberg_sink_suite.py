"""The Iceberg sink keeps the contract of sinks, in both format versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from icestream.testing.sink_suite import SinkSuite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.fixtures.spark import Lake

    from icestream.sinks.iceberg.sink import IcebergTableSink


@dataclass
class LakeTable:
    """A table in a lake of its own."""

    lake: Lake
    format_version: int

    @property
    def spark(self) -> SparkSession:
        return self.lake.spark

    def sink(self) -> IcebergTableSink:
        return self.lake.sink(format_version=self.format_version)

    def strict_sink(self) -> IcebergTableSink:
        return self.lake.sink(schema_evolution="strict")

    def rows(self) -> list[dict[str, Any]]:
        try:
            return self.lake.rows()
        except NoSuchTableError:
            return []


class TestIcebergSink(SinkSuite):
    @pytest.fixture(params=[2, 3])
    def harness(self, lake: Lake, request: pytest.FixtureRequest) -> LakeTable:
        return LakeTable(lake, request.param)
