"""Carries the reports of a reading stage, whose rows go on through Spark, to the driver."""

from __future__ import annotations

from typing import Any

from pyspark.accumulators import AccumulatorParam


class ReportList(AccumulatorParam[Any]):
    """A dictionary of reports by split: a task that ran twice counts once."""

    def zero(self, value: dict[int, Any]) -> dict[int, Any]:  # noqa: ARG002 - Spark's signature
        return {}

    def addInPlace(self, value1: dict[int, Any], value2: dict[int, Any]) -> dict[int, Any]:  # noqa: N802
        value1.update(value2)
        return value1
