"""Which tables are compared, and the reasons for those that are not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.offset import BatchMark
from icestream.verify.side import DatabaseSide, Point, ReadChanges, SideReader, SideTable
from icestream.verify.verify import MAX_ATTEMPTS, _MirrorVerifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.contracts.offset import Offset
    from icestream.verify.comparison import TableReport
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
    assert side.points == MAX_ATTEMPTS


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
