"""Runs the tests of test files, each through the real decoding and transforms of its pipeline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.config.placeholders import load_with_placeholders
from icestream.contracts.registry import did_you_mean
from icestream.engine.dry_run.dry_run import dry_run, dry_run_session
from icestream.engine.dry_run.given import GivenRecordError, given_decoder, given_records
from icestream.engine.dry_run.row_comparison import RowMismatch, compare_rows
from icestream.errors import IcestreamError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from icestream.config import Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.decoder import BadRecord
    from icestream.engine.dry_run.cases import LoadedCases, PipelineCase
    from icestream.engine.dry_run.dry_run import DryRunResult, OpenSpark
    from icestream.plan.plan import PipelinePlan, Plan


@dataclass(frozen=True)
class CaseResult:
    """The result of one test.

    Attributes:
        name: the test.
        file: the test file.
        where: its file, line and column.
        seconds: how long it took.
        problems: messages about it; empty if they are all in `rows`.
        rows: the rows that differ, by table; the name is empty if the pipeline has one table.
    """

    name: str
    file: str
    where: str
    seconds: float
    problems: Sequence[str] = ()
    rows: Sequence[tuple[str, RowMismatch]] = ()

    @property
    def passed(self) -> bool:
        return not self.problems and not self.rows


def run_cases(files: Sequence[LoadedCases], announce: Callable[[], None]) -> Iterator[CaseResult]:
    """Run every test, and yield the result of each.

    One Spark session serves them all, and is started only if one of them needs it.

    Args:
        files: the test files.
        announce: called before Spark starts.

    Raises:
        ConfigError: a test or a configuration is wrong; found before the first test runs.
    """
    planned = [
        (file, number, plan, pipeline)
        for file in files
        for number, (plan, pipeline) in enumerate(_plans(file))
    ]
    with dry_run_session(planned[0][2], announce) as open_spark:
        for file, number, _, pipeline in planned:
            yield _run_case(file, number, pipeline, open_spark)


def _plans(file: LoadedCases) -> Iterator[tuple[Plan, PipelinePlan]]:
    from icestream.plan.planner import build, refuse_planned

    config = load_with_placeholders(file.config_path, file.block.environment, build)

    @cache
    def plan_of(name: str) -> Plan:
        plan = build(config, only=(name,))
        refuse_planned(plan)
        return plan

    for number, case in enumerate(file.block.tests):
        plan = plan_of(_pipeline_name(file, number, case, config))
        [pipeline] = plan.pipelines
        _refuse_unfit(file, number, case, pipeline)
        yield plan, pipeline


def _pipeline_name(file: LoadedCases, number: int, case: PipelineCase, config: Config) -> str:
    names = list(config.pipelines)
    if case.pipeline is None:
        if len(names) == 1:
            return names[0]
        raise file.problem(
            ("tests", number),
            f"'pipeline' is missing, and {config.path} has {len(names)}",
            f"Name one of them: {', '.join(names)}." if names else "Add one under `pipelines`.",
        )
    if case.pipeline not in names:
        raise file.problem(
            ("tests", number, "pipeline"),
            f"{config.path} has no pipeline named {case.pipeline!r}",
            f"{did_you_mean(case.pipeline, names)}Available: {', '.join(names) or 'none'}.",
        )
    return case.pipeline


def _refuse_unfit(
    file: LoadedCases, number: int, case: PipelineCase, pipeline: PipelinePlan
) -> None:
    """Refuse a test that its pipeline can't be given, or can't be compared with."""
    path: KeyPath = ("tests", number)
    if isinstance(case.expect, list) and case.expect and pipeline.sink.single_table() is None:
        raise file.problem(
            (*path, "expect"),
            f"pipeline {pipeline.name!r} writes to many tables, and the rows name none",
            "Give the rows of each table by its name: `expect: {sales.orders: [...]}`.",
        )
    try:
        given_records(pipeline.source, case.given)
    except GivenRecordError as exc:
        raise file.problem((*path, "given", exc.index), exc.what, exc.todo) from exc
    except PlanError as exc:
        raise file.problem(path, exc.what, exc.todo) from exc
    for index, letter in enumerate(case.dead_letters):
        path = ("tests", number, "dead_letters", index, "record")
        try:
            _raw(pipeline, case, letter.record)
        except GivenRecordError as exc:
            raise file.problem(path, exc.what, exc.todo) from exc


def _raw(pipeline: PipelinePlan, case: PipelineCase, record: Any) -> bytes | None:
    """Return the bytes of a record that is expected among the dead letters; None for any."""
    if record is None or isinstance(record, str):
        return None if record is None else record.encode()
    # Beside the others: they may decide how it is encoded.
    raw: bytes = given_records(pipeline.source, [*case.given, record])[-1].values[-1].as_py()
    return raw


def _run_case(
    file: LoadedCases, number: int, pipeline: PipelinePlan, open_spark: OpenSpark
) -> CaseResult:
    case = file.block.tests[number]
    started = time.monotonic()
    problems: list[str] = []
    rows: list[tuple[str, RowMismatch]] = []
    blocks = given_records(pipeline.source, case.given)
    try:
        result = dry_run(pipeline, blocks, open_spark, decoder=given_decoder(pipeline.source))
    except IcestreamError as exc:
        if case.error is None or case.error not in str(exc):
            wanted = "" if case.error is None else f"expected an error with {case.error!r}, "
            problems.append(f"{wanted}the batch fails: {exc}")
    else:
        if case.error is not None:
            problems.append(f"expected an error with {case.error!r}, and the batch is good")
        else:
            rows = _compare_tables(case, pipeline, result, problems)
            problems += _compare_letters(case, pipeline, result.bad)
    return CaseResult(
        name=case.name,
        file=str(file.path),
        where=file.tree.where(("tests", number)).partition(" ")[0],
        seconds=time.monotonic() - started,
        problems=problems,
        rows=rows,
    )


def _compare_tables(
    case: PipelineCase, pipeline: PipelinePlan, result: DryRunResult, problems: list[str]
) -> list[tuple[str, RowMismatch]]:
    if case.expect is None:
        return []
    if isinstance(case.expect, list):
        expected: Mapping[str, Sequence[Any]] = {pipeline.sink.identity(): case.expect}
    else:
        expected = {_full_name(name, result.tables): rows for name, rows in case.expect.items()}
    is_one = pipeline.sink.single_table() is not None
    mismatches = []
    for table in dict.fromkeys([*expected, *result.tables]):
        columns, found = _rows_of(result.tables.get(table, ()))
        compared = compare_rows(expected.get(table, ()), found, columns, in_order=case.in_order)
        prefix = "" if is_one else f"table {table}: "
        problems += [f"{prefix}{problem}" for problem in compared.problems]
        mismatches += [("" if is_one else table, one) for one in compared.mismatches]
    return mismatches


def _full_name(name: str, tables: Mapping[str, Any]) -> str:
    """Return the full name of a table that a test names without its catalog."""
    return next((table for table in tables if f".{table}".endswith(f".{name}")), name)


def _rows_of(batches: Sequence[pa.RecordBatch]) -> tuple[pa.Schema, list[dict[str, Any]]]:
    if not batches:
        return pa.schema([]), []
    tables = [pa.Table.from_batches([batch]).replace_schema_metadata(None) for batch in batches]
    whole = pa.concat_tables(tables, promote_options="permissive")
    return whole.schema, whole.to_pylist()


def _compare_letters(
    case: PipelineCase, pipeline: PipelinePlan, letters: Sequence[BadRecord]
) -> Iterator[str]:
    """Yield what is wrong with the dead letters; each expected one takes the first that fits."""
    left, keeps = list(letters), pipeline.dead_letter is not None
    for expected in case.dead_letters:
        raw = _raw(pipeline, case, expected.record)
        fits = [
            letter
            for letter in left
            if expected.reason in letter.reason and raw in (None, letter.raw)
        ]
        if fits:
            left.remove(fits[0])
        else:
            hint = f"; sink {pipeline.sink_name!r} keeps none" if not keeps else ""
            yield f"expected a dead letter with the reason {expected.reason!r}, found none{hint}"
    for letter in left:
        yield f"unexpected dead letter: {letter.position or 'a row'}: {letter.reason}"
