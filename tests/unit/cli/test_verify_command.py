"""`icestream verify`, without a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from tests.unit.cli.shop import make_table, plan_of, write_file

from icestream.cli.verify import offset_text, report_text
from icestream.verify.comparison import RowDifference, SideReport, TableReport
from icestream.verify.offsets import HistoryProblem, OffsetReport

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


def test_table_is_verified_by_its_marks(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("verify")
    assert (ended.code, ended.out) == (
        4,
        "✗ datagen shop_events seed 42 -> lake.demo.events: not compared\n"
        "    the pipeline has not written this table yet; run `icestream run --once`, then "
        "compare again\n",
    )
    make_table(plan_of(tmp_path))
    ended = icestream("verify", "--table", "events")
    assert (ended.code, ended.out) == (
        0,
        "✓ datagen shop_events seed 42 -> lake.demo.events: no gap, no overlap, 2 batches, "
        "6 rows\n",
    )
    document = icestream("verify", "--output", "json").document
    assert (document["is_same"], document["tables"], document["left_out"]) == (True, [], {})
    (report,) = document["offsets"]
    assert (report["start"], report["end"], report["total"]) == ('{"row": 0}', '{"row": 6}', 6)


def test_unknown_table_is_refused(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("verify", "--table", "nobody")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: no table is called 'nobody'\n  Available: lake.demo.events.\n",
    )


def test_history_is_explained() -> None:
    report = OffsetReport(
        pipeline="orders",
        source="kafka orders",
        table="lake.sales.orders",
        status="same",
        batches=1,
        start='{"orders": 4}',
        is_from_first=False,
        unlinked=1,
        rows=1200,
        records=1212,
        bad=2,
        empty_offsets=3,
        replayed=1,
        other_writers={"": 5, "late": 1},
    )
    assert click.unstyle(offset_text(report)) == (
        "✓ kafka orders -> lake.sales.orders: no gap, no overlap, 1 batch, 1,200 rows\n"
        '    verified from {"orders": 4} on; older snapshots have expired\n'
        "    1 snapshot of an older version, without start offsets: not verified\n"
        "    2 records bad, dropped or dead letters\n"
        "    10 records left out by transforms\n"
        "    3 offsets without a record: compacted, or markers of transactions\n"
        "    1 row of replayed dead letters\n"
        "    5 rows of other tools\n"
        "    1 row of pipeline 'late'"
    )


def test_problems_of_a_history_are_listed_up_to_the_limit() -> None:
    problems = tuple(HistoryProblem("gap", f"gap {number}") for number in range(3))
    report = OffsetReport("o", "kafka o", "lake.o", "different", batches=4, problems=problems)
    assert click.unstyle(offset_text(report, limit=2)) == (
        "✗ kafka o -> lake.o: different, 4 batches\n"
        "    rows are not compared: upserts replace rows of earlier batches\n"
        "    gap 0\n"
        "    gap 1\n"
        "    and 1 more"
    )


def test_identical_table_has_a_line_and_its_skipped_parts() -> None:
    found = text_of(
        in_lake=SideReport(1200),
        changed_since=1,
        only_in_lake=("old",),
        only_in_source=("new",),
        left_out={"ratio": "decimal(10,2) in the database, double in the lake"},
    )
    assert found == (
        "✓ public.orders -> lake.public.orders: same, 1,200 rows\n"
        "    1 row changed since the newest batch, not compared\n"
        "    columns only in the lake, not compared: old\n"
        "    columns only in the database, not compared: new\n"
        "    column not compared: ratio: decimal(10,2) in the database, double in the lake"
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
