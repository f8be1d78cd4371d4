"""Carries the reports of tasks whose rows go on through Spark to the driver, by an accumulator.

PySpark keeps every accumulator, with its value, for as long as the process lives, and a late update
of one that was removed breaks its connection to the JVM. So there is one for each Spark context,
and each job takes its reports out of it when it is done.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.accumulators import AccumulatorParam

from icestream.contracts.reports import one_each

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

    from icestream.engine.tasks import Report

# By job: by stage and number, the report. A task that ran twice counts once.
Jobs = dict[int, dict[tuple[int, int], "Report"]]

_accumulators: WeakKeyDictionary[SparkContext, Accumulator[Any]] = WeakKeyDictionary()
_lock = threading.Lock()
_numbers = itertools.count()


class ReportParam(AccumulatorParam[Any]):
    """A list of reports in a task, the reports of jobs that still run in the driver."""

    def zero(self, value: Any) -> list[Any]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: Any, value2: list[Any]) -> Any:  # noqa: N802
        if isinstance(value1, list):
            return value1 + value2
        for job, stage, report in value2:
            # Tasks of a job that failed may still run, and report to nobody.
            found = value1.get(job)
            if found is not None:
                found[stage, report.split] = report
        return value1


@dataclass(frozen=True)
class Note:
    """Sends the reports of one stage to the driver. Called in a task."""

    job: int
    stage: int
    accumulator: Accumulator[Any]

    def __call__(self, report: Report) -> None:
        self.accumulator.add([(self.job, self.stage, report)])


class StageReports:
    """The reports of one job's stages, for as long as the `with` block runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._accumulator = _accumulator_of(spark.sparkContext)
        self._job = next(_numbers)
        self._counts: list[int] = []

    def __enter__(self) -> StageReports:
        self._accumulator.value[self._job] = {}
        return self

    def __exit__(self, *exc_info: object) -> None:
        del self._accumulator.value[self._job]

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, count: int) -> Note:
        """Return how the tasks of one more stage report, of which there are `count`."""
        self._counts.append(count)
        return Note(self._job, len(self._counts) - 1, self._accumulator)

    @property
    def arrived(self) -> list[Report]:
        """The reports that arrived."""
        return list(self._accumulator.value[self._job].values())

    def all(self) -> list[Report]:
        """Return the reports of every stage.

        Raises:
            LostReportsError: one did not arrive.
        """
        found = self._accumulator.value[self._job]
        reports = []
        for stage, count in enumerate(self._counts):
            own = [(number, report) for (of, number), report in found.items() if of == stage]
            reports += one_each(own, range(count))
        return reports


def _accumulator_of(context: SparkContext) -> Accumulator[Any]:
    with _lock:
        if context not in _accumulators:
            jobs: Jobs = {}
            _accumulators[context] = context.accumulator(jobs, ReportParam())
        return _accumulators[context]
