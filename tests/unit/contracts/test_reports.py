"""Reports of tasks: one from each, or the job has failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import icestream
from icestream.contracts import reports
from icestream.contracts.reports import (
    begins_with,
    order_reports,
    pack_report,
    run_tasks,
    truncate_text,
    unpack_report,
)
from icestream.engine.batch.sql_path import ReportParam, StageReports
from icestream.engine.batch.tasks import Report
from icestream.errors import IcestreamError, LostReportsError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

TODO = (
    "\n  Nothing was committed. A pipeline replays the batch; run any other command again. If this "
    "happens again, the driver is short of memory: raise `spark.driver.memory`, or set a smaller "
    "`max_batch_rows`."
)


class Job:
    """As much of a DataFrame as a job needs whose result is lost on its way to the driver."""

    def __init__(self, lose: Callable[[list[Any]], list[Any]]) -> None:
        self._lose = lose
        self._rows: list[Any] = []

    def range(self, start: int, end: int, step: int, tasks: int) -> Job:
        assert (start, step, tasks) == (0, 1, end)
        self._rows = list(range(end))
        return self

    def mapInArrow(self, task: Callable[[Any], Iterable[pa.RecordBatch]], schema: str) -> Job:  # noqa: N802
        assert schema == "report binary"
        batches = [batch for number in self._rows for batch in task([number])]
        self._rows = [tuple(batch.column(0).to_pylist()) for batch in batches]
        return self

    def collect(self) -> list[Any]:
        return self._lose(self._rows)


def say(numbers: Iterable[int]) -> Iterable[pa.RecordBatch]:
    return [pack_report(number, f"task {number}") for number in numbers]


def run(lose: Callable[[list[Any]], list[Any]], count: int = 3) -> list[str]:
    job: Any = Job(lose)
    return run_tasks(job, count, say)


def test_reports_come_in_the_order_of_the_tasks() -> None:
    assert run(lambda rows: rows[::-1]) == ["task 0", "task 1", "task 2"]
    assert run(lambda rows: rows, count=0) == []


@pytest.mark.parametrize(
    ("lose", "what"),
    [
        (lambda _: [], "the reports of 3 of 3 tasks did not reach the driver: 0, 1, 2"),
        (lambda rows: rows[:2], "the reports of 1 of 3 tasks did not reach the driver: 2"),
        (
            lambda rows: [*rows, rows[1]],
            "unexpected or duplicate reports from 1 tasks: 1",
        ),
        (
            lambda rows: [*rows, (pack_report(7, "?").column(0)[0].as_py(),)],
            "unexpected or duplicate reports from 1 tasks: 7",
        ),
    ],
)
def test_lost_or_repeated_report_fails_the_job(
    lose: Callable[[list[Any]], list[Any]], what: str
) -> None:
    with pytest.raises(LostReportsError) as caught:
        run(lose)
    assert str(caught.value) == what + TODO
    assert isinstance(caught.value, TransientError)


def test_few_of_many_missing_tasks_are_listed() -> None:
    with pytest.raises(LostReportsError) as caught:
        order_reports([], range(100))
    assert caught.value.what == (
        "the reports of 100 of 100 tasks did not reach the driver: "
        "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
    )


def test_result_of_another_length_fails_the_job() -> None:
    job: Any = Job(lambda _: [])
    with pytest.raises(LostReportsError) as caught:
        reports.collect_exactly(job, 1)
    assert str(caught.value) == "0 of the 1 rows of a Spark job's result reached the driver" + TODO


def test_long_text_is_truncated_and_its_length_shown() -> None:
    assert truncate_text("x" * 1_000) == "x" * 1_000
    assert truncate_text("x" * 20_000_000) == "x" * 1_000 + "... (20,000,000 characters)"


def test_report_survives_a_round_trip_with_its_number() -> None:
    batch = pack_report(4, IcestreamError("wrong", where="here"))
    number, error = unpack_report(batch.column(0)[0].as_py())
    assert (number, str(error)) == (4, "here: wrong")


# Results that nobody uses, a collector of metrics, and text for a person to copy.
NOT_GATHERED = {
    "cli/demo.py",
    "contracts/reports.py",
    "metrics/registry.py",
    "sinks/iceberg/upsert/tombstones.py",
    "testing/transform_suite.py",
}


def test_results_of_spark_are_collected_in_one_module() -> None:
    root = Path(icestream.__file__).parent
    pattern = re.compile(r"\.(collect|toLocalIterator|toPandas|toArrow)\(\)")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    assert found <= NOT_GATHERED, "use icestream.contracts.reports, which notices a lost result"


class Context:
    """As much of a Spark context as accumulators need, whose updates can be lost on request."""

    def __init__(self) -> None:
        self.made: list[Accumulated] = []
        self.sparkContext = self

    def accumulator(self, value: Any, param: ReportParam) -> Accumulated:
        self.made.append(Accumulated(value, param))
        return self.made[-1]


class Accumulated:
    def __init__(self, value: Any, param: ReportParam) -> None:
        self.value = value
        self._param = param
        self.is_lost = False

    def add(self, update: list[Any]) -> None:
        # As in a task: added to a zero of its own first, then to what the driver has.
        sent = self._param.addInPlace(self._param.zero(self.value), update)
        if not self.is_lost:
            self.value = self._param.addInPlace(self.value, sent)


def test_every_stage_must_report_once_and_jobs_leave_nothing_behind() -> None:
    spark: Any = Context()
    with StageReports(spark) as stages:
        reading, cleaning = stages.add(2), stages.add(1)
        for number in (1, 0, 1):  # a task that ran twice counts once
            reading(Report(number, rows=5))
        cleaning(Report(0, bad=1))
        assert [(report.split, report.bad) for report in stages.all()] == [(0, 0), (1, 0), (0, 1)]
    reading(Report(0))  # a task that ends after its job

    with StageReports(spark) as stages:
        stages.add(1)(Report(0))
        assert len(stages.all()) == 1
    assert [each.value for each in spark.made] == [{}]


def test_lost_update_of_an_accumulator_fails_the_job() -> None:
    spark: Any = Context()
    with StageReports(spark) as stages:
        note = stages.add(2)
        note(Report(0))
        spark.made[0].is_lost = True
        note(Report(1))
        with pytest.raises(LostReportsError) as caught:
            stages.all()
    assert str(caught.value) == "the reports of 1 of 2 tasks did not reach the driver: 1" + TODO


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (None, ""),
        (b"", ""),
        (b"a,b\n", " (begins with 'a,b\\n')"),
        (b"x" * 61, f" (begins with '{'x' * 60}')"),
        (b"x" * 59 + "é".encode() + b"y", f" (begins with '{'x' * 59}')"),
        (b"\xff" * 60, f" (begins with b'{chr(92) + 'xff'}"),
    ],
)
def test_sample_of_a_record_is_short(raw: bytes | None, text: str) -> None:
    assert begins_with(raw).startswith(text)
    assert len(begins_with(raw)) < 150
