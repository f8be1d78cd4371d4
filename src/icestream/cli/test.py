"""`icestream test`: runs the tests of pipelines, without any server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_output_options
from icestream.cli.query import json_value
from icestream.errors import IcestreamError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icestream.engine.dry_run.pipeline_tests import CaseResult
    from icestream.engine.dry_run.row_comparison import RowMismatch

DIFFERENCES = 4
PATTERN = "*.test.yaml"
INDENT = "    "


@click.command("test", short_help="Test pipelines with given records and expected rows.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the results to FILE in JUnit's XML format.",
)
@with_output_options
def command(printer: Printer, files: tuple[Path, ...], junit: Path | None) -> int:
    """Run records through the real decoding and transforms of a pipeline, and compare the rows.

    FILES are test files, or folders that hold `*.test.yaml` files at any depth; the current folder
    if none is given. No server is contacted, no table is written, and variables that are not set
    are no error. Spark starts once, and only if a pipeline has transforms, `expect`, or an
    expression in `route_by`. The exit code is 4 if a test fails.
    """
    from icestream.engine.dry_run.cases import load_cases
    from icestream.engine.dry_run.pipeline_tests import run_cases

    started = time.monotonic()
    loaded = [load_cases(path) for path in find_files(files)]
    results = []
    for result in run_cases(loaded, lambda: printer.print_note("Starting Spark ...")):
        results.append(result)
        printer.print_text(result_text(result))
    failed = sum(not result.passed for result in results)
    seconds = time.monotonic() - started
    document = {
        "passed": len(results) - failed,
        "failed": failed,
        "seconds": round(seconds, 3),
        "tests": [result_document(result) for result in results],
    }
    if junit is not None:
        _write(junit, junit_xml(results))
    counts = f"{len(results) - failed:,} passed" + (f", {failed:,} failed" if failed else "")
    printer.print_result(document, f"{counts} in {output.format_duration(seconds)}")
    return DIFFERENCES if failed else 0


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as exc:
        what = f"the results cannot be written: {(exc.strerror or str(exc)).lower()}"
        raise IcestreamError(what, where=str(path)) from exc


def find_files(given: Sequence[Path]) -> list[Path]:
    """Return the test files of what was named; hidden folders are left out.

    Raises:
        PlanError: there are none.
    """
    found: dict[Path, None] = {}
    for path in given or (Path(),):
        files = [path]
        if path.is_dir():
            files = [
                file
                for file in sorted(path.rglob(PATTERN))
                if not any(part.startswith(".") for part in file.relative_to(path).parts)
            ]
        found |= dict.fromkeys(files)
    if not found:
        folders = ", ".join(str(path) for path in given) or "the current folder"
        raise PlanError(
            f"no test files ({PATTERN}) in {folders}",
            todo="Write one beside the configuration, e.g. `orders.test.yaml`, or name the files.",
        )
    return list(found)


def result_text(result: CaseResult) -> str:
    """Return the result of a test as text: one line if it passed."""
    mark = output.status_mark(passed=result.passed)
    lines = [f"{mark} {result.where} {result.name} ({output.format_duration(result.seconds)})"]
    return "\n".join([*lines, *(f"{INDENT}{line}" for line in _details(result))])


def _details(result: CaseResult) -> Iterator[str]:
    for problem in result.problems:
        yield from problem.splitlines()
    for table, mismatch in result.rows:
        yield from _mismatch(f"{table}: " if table else "", mismatch)


def _mismatch(prefix: str, mismatch: RowMismatch) -> Iterator[str]:
    if mismatch.expected is None:
        yield f"+ {prefix}not expected: {_value(mismatch.found)}"
    elif mismatch.found is None:
        yield f"- {prefix}not found: {_value(mismatch.expected)}"
    else:
        yield f"~ {prefix}expect[{mismatch.index}] differs: {_value(mismatch.expected)}"
        for column, (expected, found) in mismatch.columns.items():
            yield f"{INDENT}{column}: expected {_value(expected)}, found {_value(found)}"


def _value(value: Any) -> str:
    return json.dumps(json_value(value), ensure_ascii=False, default=str)


def result_document(result: CaseResult) -> dict[str, Any]:
    """Return the result of a test as a JSON document."""
    return {
        "name": result.name,
        "where": result.where,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "problems": list(result.problems),
        "rows": [
            {
                "table": table or None,
                "expected": json_value(one.expected),
                "found": json_value(one.found),
                "columns": {
                    name: {"expected": json_value(values[0]), "found": json_value(values[1])}
                    for name, values in one.columns.items()
                },
            }
            for table, one in result.rows
        ],
    }


def junit_xml(results: Sequence[CaseResult]) -> bytes:
    """Return the results in the XML format that most CI services read."""
    from xml.etree import ElementTree

    failed = sum(not result.passed for result in results)
    attributes = {"name": "icestream", "tests": str(len(results)), "failures": str(failed)}
    suite = ElementTree.Element("testsuite", attributes)
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": result.file, "name": result.name, "time": f"{result.seconds:.3f}"},
        )
        if not result.passed:
            details = list(_details(result))
            failure = ElementTree.SubElement(case, "failure", {"message": details[0]})
            failure.text = "\n".join(details)
    content: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return content
