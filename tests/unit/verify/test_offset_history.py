"""Tables verified by the marks of their batches, without a JVM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.catalogs.jdbc import embedded
from icestream.contracts.offset import BatchMark
from icestream.sinks.iceberg.ledger import property_key, snapshot_summary
from icestream.sources.kafka import KafkaOptions, KafkaSource
from icestream.sources.kafka.source import build_offset
from icestream.verify.offsets import OffsetCheck, OffsetReport
from icestream.verify.side import LakeTable

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from icestream.contracts.offset import Offset

SOURCE = KafkaSource(KafkaOptions(brokers=("broker:9092",), topics=("orders",)))
SCHEMA = pa.schema([("id", pa.int64())])


def offset(first: int, second: int = 0, partitions: int = 2, **ids: str) -> Offset:
    """Return an offset of the topic; partitions after the second are at 0."""
    numbers = [first, second, *([0] * (partitions - 2))]
    offsets = {("orders", number): value for number, value in enumerate(numbers)}
    return build_offset({"orders": ids.get("id", "t1")}, offsets)


class Lake:
    """A table to which a pipeline commits batches."""

    def __init__(self, folder: Path) -> None:
        client = embedded(folder, "lake").client()
        client.create_namespace("db")
        self.table: Table = client.create_table(("db", "orders"), SCHEMA)
        self.mark: BatchMark | None = None

    def commit(
        self,
        epoch: int,
        start: Offset,
        end: Offset,
        rows: int = 10,
        query: str = "q1",
        **counts: Any,
    ) -> int:
        """Commit a batch as the sink does, and return the snapshot's id."""
        mark = BatchMark("orders", query, epoch, "kafka", start, end, rows=rows)
        mark = replace(mark, records=rows, span=SOURCE.count_offsets(start, end))
        mark = replace(mark, **counts)
        self.append(rows, snapshot_summary(mark, self.mark))
        with self.table.transaction() as change:
            change.set_properties({property_key("orders"): mark.to_json()})
        self.mark = mark
        return self.head

    def append(self, rows: int, summary: dict[str, str]) -> None:
        self.table.append(pa.table({"id": pa.array(range(rows), pa.int64())}), summary)

    @property
    def head(self) -> int:
        snapshot = self.table.refresh().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def roll_back(self, snapshot: int) -> None:
        self.table.manage_snapshots().set_current_snapshot(snapshot_id=snapshot).commit()
        self.table.refresh()

    def report(self, **check: Any) -> OffsetReport:
        return OffsetCheck(SOURCE, **check).report(
            LakeTable("lake.db.orders", self.table.refresh(), "orders")
        )

    def problems(self, **check: Any) -> list[tuple[str, str]]:
        report = self.report(**check)
        assert report.status == ("different" if report.problems else "same")
        return [(problem.kind, problem.what) for problem in report.problems]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_batches_that_follow_each_other_are_the_same(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    lake.commit(1, offset(10), offset(15, 5))
    report = lake.report()
    assert (report.status, report.problems) == ("same", ())
    assert (report.batches, report.rows, report.records, report.total) == (2, 20, 20, 20)
    assert report.start == '{"topics": {"orders": {"id": "t1", "partitions": {"0": 0, "1": 0}}}}'
    assert report.end == '{"topics": {"orders": {"id": "t1", "partitions": {"0": 15, "1": 5}}}}'
    assert report.is_from_first


def test_batches_without_rows_leave_no_gap(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    lake.commit(3, offset(30), offset(40))
    report = lake.report()
    assert (report.status, report.rows) == ("same", 20)


def test_gap_is_found_in_each_partition(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    snapshot = lake.commit(0, offset(13, 7), offset(23, 7), query="q2")
    assert lake.problems() == [
        (
            "gap",
            f"10 offsets missing before batch 0 (snapshot {snapshot}): orders[0] from 10 to 13, "
            "orders[1] from 0 to 7",
        )
    ]
    (problem,) = lake.report().problems
    assert problem.partitions == {"orders[0]": (10, 13), "orders[1]": (0, 7)}


def test_source_read_again_is_an_overlap(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    snapshot = lake.commit(0, offset(0), offset(10), query="q2")
    assert lake.problems() == [
        (
            "overlap",
            f"10 offsets read again by batch 0 (snapshot {snapshot}): orders[0] from 0 to 10",
        )
    ]


def test_topic_created_again_is_a_break(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    snapshot = lake.commit(0, offset(0, id="t2"), offset(10, id="t2"), query="q2")
    assert lake.problems() == [
        (
            "break",
            f"batch 0 (snapshot {snapshot}) starts at "
            '{"topics": {"orders": {"id": "t2", "partitions": {"0": 0, "1": 0}}}}, and batch 0 '
            'before it ended at {"topics": {"orders": {"id": "t1", "partitions": {"0": 10, '
            '"1": 0}}}}',
        )
    ]


def test_ranges_of_long_offsets_come_from_older_metadata_files(lake: Lake) -> None:
    lake.commit(0, offset(0, partitions=50), offset(10, partitions=50))
    snapshot = lake.commit(0, offset(11, partitions=50), offset(21, partitions=50), query="q2")
    lake.commit(1, offset(21, partitions=50), offset(31, partitions=50), query="q2")
    assert lake.report().end.endswith(")")
    assert lake.problems() == [
        (
            "gap",
            f"1 offset missing before batch 0 (snapshot {snapshot}): orders[0] from 10 to 11",
        )
    ]


def test_rolled_back_table_lacks_the_batch_of_its_mark(lake: Lake) -> None:
    first = lake.commit(0, offset(0), offset(10))
    lake.commit(1, offset(10), offset(20))
    lake.roll_back(first)
    lost = (
        "lost",
        f"the mark is of batch 1, and the table holds this pipeline's rows up to batch 0 "
        f"(snapshot {first}): it was rolled back or replaced, or its mark was changed",
    )
    assert lake.problems() == [lost]
    assert lake.problems(appends=False) == [lost]


def test_pipeline_that_went_on_after_a_rollback_left_a_gap(lake: Lake) -> None:
    first = lake.commit(0, offset(0), offset(10))
    lake.commit(1, offset(10), offset(20))
    lake.roll_back(first)
    snapshot = lake.commit(2, offset(20), offset(30))
    gap = (
        "gap",
        f"10 offsets missing before batch 2 (snapshot {snapshot}): orders[0] from 10 to 20",
    )
    assert lake.problems() == [gap]
    assert lake.problems(appends=False) == [gap]


def test_mark_that_was_changed_is_found(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    assert lake.mark is not None
    with lake.table.transaction() as change:
        moved = replace(lake.mark, end=offset(99))
        change.set_properties({property_key("orders"): moved.to_json()})
    topic = '{"topics": {"orders": {"id": "t1", "partitions": {"0": %s, "1": 0}}}}'
    assert lake.problems() == [
        ("lost", f"the mark ends at {topic % 99}, and its snapshot at {topic % 10}")
    ]


def test_table_of_many_may_skip_offsets_where_a_checkpoint_begins(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10, 10))
    lake.commit(0, offset(30, 10), offset(40, 10), query="q2")
    assert lake.problems(counts_records=False) == []
    snapshot = lake.commit(0, offset(50, 5), offset(60, 15), query="q3")
    assert lake.problems(counts_records=False) == [
        (
            "overlap",
            f"5 offsets read again by batch 0 (snapshot {snapshot}): orders[1] from 5 to 10",
        )
    ]


def test_rows_that_differ_from_the_mark_are_found(lake: Lake) -> None:
    mark = BatchMark("orders", "q1", 0, "kafka", offset(0), offset(10), rows=10, records=10)
    lake.append(7, snapshot_summary(mark))
    with lake.table.transaction() as change:
        change.set_properties({property_key("orders"): mark.to_json()})
    assert lake.problems() == [
        ("rows", f"batch 0 (snapshot {lake.head}) added 7 rows, and its mark says 10")
    ]
    assert lake.problems(appends=False) == []


def test_records_that_became_neither_rows_nor_bad_are_found(lake: Lake) -> None:
    snapshot = lake.commit(0, offset(0), offset(15), rows=10, records=15, bad=3)
    expected = (
        f"batch 0 (snapshot {snapshot}) read 15 records, and 13 are accounted for: 10 written, "
        "3 bad"
    )
    assert lake.problems() == [("rows", expected)]
    assert lake.problems(keeps_records=False) == []
    assert lake.problems(counts_records=False) == []


def test_more_records_than_offsets_are_found(lake: Lake) -> None:
    snapshot = lake.commit(0, offset(0), offset(9), rows=10)
    assert lake.problems() == [
        ("rows", f"batch 0 (snapshot {snapshot}) read 10 records from 9 offsets")
    ]


def test_offsets_without_a_record_are_counted(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(12), rows=10)
    report = lake.report()
    assert (report.status, report.empty_offsets) == ("same", 2)


def test_rows_of_other_writers_are_counted(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    lake.append(4, {})
    lake.append(2, snapshot_summary(BatchMark("other", "q", 0, "files", {}, {}, rows=2)))
    lake.append(1, snapshot_summary(BatchMark("orders/dlq", "r", 0, "kafka", {}, {}, rows=1)))
    report = lake.report()
    assert (report.status, report.rows, report.replayed, report.total) == ("same", 10, 1, 17)
    assert report.other_writers == {"": 4, "other": 2}


def test_rows_removed_by_another_writer_are_found(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    lake.table.delete("id < 4")
    report = lake.report()
    assert report.status == "different"
    assert [problem.kind for problem in report.problems] == ["removed"]
    assert report.problems[0].what.startswith("another tool removed ")


def test_expired_snapshots_are_not_verified(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    first = lake.head
    lake.commit(0, offset(90), offset(100), query="q2")
    lake.commit(1, offset(100), offset(110), query="q2")
    lake.table.maintenance.expire_snapshots().by_id(first).commit()
    report = lake.report()
    assert (report.status, report.batches, report.is_from_first) == ("same", 2, False)
    assert '{"0": 90, "1": 0}' in report.start


def test_table_without_a_snapshot_of_its_mark_is_not_verified(lake: Lake) -> None:
    lake.commit(0, offset(0), offset(10))
    first = lake.head
    lake.append(1, {})
    lake.table.maintenance.expire_snapshots().by_id(first).commit()
    report = lake.report()
    assert (report.status, report.reason) == (
        "not compared",
        "the snapshots of its batches have expired, or the table was replaced",
    )


def test_snapshots_of_an_older_version_are_counted_and_not_linked(lake: Lake) -> None:
    for epoch in (0, 1):
        mark = BatchMark("orders", "q1", epoch, "kafka", offset(0), offset(10), rows=10)
        summary = snapshot_summary(mark)
        del summary["icestream.start"]
        lake.append(10, summary)
    with lake.table.transaction() as change:
        change.set_properties({property_key("orders"): mark.to_json()})
    report = lake.report()
    assert (report.status, report.batches, report.unlinked) == ("same", 2, 2)
