"""Which tables are compared, and the reasons for those that are not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.offset import BatchMark
from icestream.verify.comparison import TableReport
from icestream.verify.side import DatabaseSide, Point, ReadChanges, SideReader, SideTable
from icestream.verify.verify import _explained, _MirrorVerifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.contracts.offset import Offset
    from icestream.verify.side import TableNames

ORDERS = ("public", "orders")
COLUMNS = pa.schema([("id", pa.int64())])
RUN_FIRST = "run `icestream run --once`, then compare again"


class PlainSide(DatabaseSide):
    """A database of one table."""

    def __init__(self, key: tuple[str, ...] = ("id",), changes: ReadChanges | None = None) -> None:
        self.table = SideTable(ORDERS, COLUMNS, key)
        self.changes = changes or ReadChanges()
        self.whole = True
        self.points = 0

    def identity(self) -> str:
        return "plain"

    def tables(self) -> list[TableNames]:
        return [ORDERS]

    def is_fully_loaded(self, table: TableNames, mark: Offset) -> bool:
        return self.whole

    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        self.points += 1
        return Point("here", {ORDERS: self.table}, {ORDERS: self.changes})

    def parts(self, table: SideTable, count: int) -> Sequence[Any]:
        return []

    def reader(self, table: SideTable) -> SideReader:
        raise AssertionError

    def close(self) -> None:
        pass


@dataclass
class PlainTable:
    epoch: int
    columns: pa.Schema = COLUMNS
    own: tuple[str, ...] = ()

    @property
    def mark(self) -> BatchMark | None:
        return BatchMark("shop", "q", self.epoch, "plain", {}, {}) if self.epoch >= 0 else None

    @property
    def version(self) -> str:
        return str(self.epoch)


@dataclass
class PlainMirror:
    """A mirror whose table is at a newer batch at each lookup."""

    epochs: list[int]
    columns: pa.Schema = COLUMNS
    pipeline: str = "shop"
    seen: list[int] = field(default_factory=list)

    def name(self, table: TableNames) -> str:
        return ".".join(("lake", *table))

    def look_up(self, table: TableNames) -> PlainTable | None:
        if not self.epochs:
            return None
        epoch = self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]
        return PlainTable(epoch, self.columns)


def no_spark() -> Any:
    raise AssertionError("nothing is compared")


def only_report(mirror: Any, side: PlainSide) -> TableReport:
    (report,) = _MirrorVerifier(mirror, side, no_spark, 20).reports([ORDERS])
    assert (report.pipeline, report.source, report.table) == (
        "shop",
        "public.orders",
        "lake.public.orders",
    )
    return report


def test_missing_table_is_not_compared() -> None:
    report = only_report(PlainMirror([]), PlainSide())
    assert (report.status, report.reason) == (
        "not compared",
        f"the pipeline has not written this table yet; {RUN_FIRST}",
    )


def test_table_of_another_pipeline_is_not_compared() -> None:
    assert only_report(PlainMirror([-1]), PlainSide()).status == "not compared"


def test_table_with_an_incomplete_snapshot_is_not_compared() -> None:
    side = PlainSide()
    side.whole = False
    report = only_report(PlainMirror([3]), side)
    assert report.reason == f"its initial snapshot is not complete yet; {RUN_FIRST}"


def test_constantly_written_table_is_not_compared() -> None:
    side = PlainSide()
    report = only_report(PlainMirror(list(range(50))), side)
    assert (report.status, report.reason) == (
        "not compared",
        "it is written to faster than it can be compared; stop the pipeline first",
    )
    assert side.points == side.passes


def test_table_that_was_written_once_is_retried() -> None:
    side = PlainSide(key=("gone",))
    report = only_report(PlainMirror([1, 2, 2, 2]), side)
    assert side.points == 2
    assert (report.status, report.reason) == (
        "different",
        "the table has no key column 'gone' of a matching type",
    )


def test_table_that_was_truncated_since_is_not_compared() -> None:
    report = only_report(
        PlainMirror([1]), PlainSide(changes=ReadChanges(rows=1, is_truncated=True))
    )
    assert report.reason == f"it was truncated after the newest batch; {RUN_FIRST}"


def test_table_without_a_key_that_grew_is_not_compared() -> None:
    report = only_report(PlainMirror([1]), PlainSide(key=(), changes=ReadChanges(rows=1200)))
    assert report.reason == (
        f"it has no key, and 1,200 rows changed since the newest batch; {RUN_FIRST}"
    )


class MovingSide(PlainSide):
    """A database whose point can't be aligned with the table's mark."""

    passes = 3
    retry_secs = 0.001

    def __init__(self, behind: list[int]) -> None:
        super().__init__(key=("gone",))
        self.behind = behind

    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        count = self.behind[min(self.points, len(self.behind) - 1)]
        return replace(super().point(marks), behind={ORDERS: count} if count else {})


def test_table_behind_its_topics_is_tried_again_and_not_compared() -> None:
    side = MovingSide([3])
    report = only_report(PlainMirror([1]), side)
    assert (report.status, report.reason) == (
        "not compared",
        f"3 records of its topics are not in the table yet; {RUN_FIRST}",
    )
    assert side.points == 3


def test_table_that_differs_is_compared_again() -> None:
    side = MovingSide([0])
    report = only_report(PlainMirror([1]), side)
    assert (report.status, side.points) == ("different", 3)


def test_report_of_a_moving_table_that_differs_says_so() -> None:
    report = TableReport("shop", "public.orders", "lake.orders", "different")
    assert _explained(report, is_moving=False) == report
    assert _explained(report, is_moving=True).reason == (
        "rows changed while it was compared, and rows in transit differ; compare it again while "
        "the database is idle"
    )
