"""`icestream verify`, without a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from tests.unit.cli.shop import write_file

from icestream.cli.verify import report_text
from icestream.verify.comparison import RowDifference, SideReport, TableReport

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream


def text_of(**facts: object) -> str:
    whole = {
        "pipeline": "shop",
        "source": "public.orders",
        "table": "lake.public.orders",
        "status": "same",
        "point": "0/15D0",
        **facts,
    }
    return click.unstyle(report_text(TableReport(**whole)))  # type: ignore[arg-type]


def test_file_without_a_mirror_is_refused(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("verify")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: no pipeline mirrors a database\n"
        "  Only tables of a `postgres-cdc` source, without transforms and without "
        "`commit_mode: append`, can be compared with their source.\n",
    )


def test_identical_table_has_a_line_and_its_skipped_parts() -> None:
    found = text_of(
        in_lake=SideReport(1200), changed_since=1, only_in_lake=("old",), only_in_source=("new",)
    )
    assert found == (
        "✓ public.orders -> lake.public.orders: same, 1,200 rows\n"
        "    1 row changed since the newest batch, not compared\n"
        "    columns only in the lake, not compared: old\n"
        "    columns only in the database, not compared: new"
    )


def test_reason_for_not_comparing_is_reported() -> None:
    found = text_of(status="not compared", point="", reason="it is away")
    assert found == "✗ public.orders -> lake.public.orders: not compared\n    it is away"


def test_rows_are_listed_without_breaking_the_terminal() -> None:
    found = text_of(
        status="different",
        in_source=SideReport(2, ("1", "a"), ("2", "b")),
        in_lake=SideReport(1, ("1", "a"), ("1", "a")),
        chunks=3,
        chunks_differing=2,
        counts={"missing": 40, "different": 1},
        rows=(
            RowDifference("missing", {"id": "2", "kind": "b\x1b[31m"}),
            RowDifference("different", {"id": "1", "kind": "a"}, {"what": (None, "x\ny")}),
        ),
    )
    assert found == (
        "✗ public.orders -> lake.public.orders: different\n"
        "    database  2 rows, keys 1, a to 2, b\n"
        "    lake      1 row, keys 1, a to 1, a\n"
        "    40 missing in the lake, 1 different; in 2 of 3 chunks\n"
        "    - id=2, kind=b\\x1b[31m  missing in the lake\n"
        "    ~ id=1, kind=a  different\n"
        "        what: null in the database, x\\ny in the lake\n"
        "    and 39 more"
    )
