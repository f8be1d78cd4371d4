"""Marks: what a table says of the batches that it holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icestream.contracts.offset import BatchMark
from icestream.errors import CorruptStateError
from icestream.sinks.iceberg import ledger

MARK = BatchMark(
    "orders", "q1", 7, "kafka orders", {"orders-0": 5}, {"orders-1": 2, "orders-0": 9}, 6, "i1"
)
START = '{"orders-0": 5}'


def mark(epoch: int, query: str = "q1") -> BatchMark:
    return BatchMark("orders", query, epoch, "kafka orders", {}, {})


def test_mark_is_read_back_from_its_property() -> None:
    properties = {"owner": "me", ledger.property_key("orders"): MARK.to_json()}

    assert ledger.property_key("orders") == "icestream.mark.orders"
    assert ledger.read_mark(properties, "orders") == MARK
    assert ledger.read_mark(properties, "other") is None


def test_mark_of_an_older_version_reads_back_as_the_same_text() -> None:
    older = (
        '{"end":{},"epoch":7,"instance":"i1","pipeline":"orders","query_id":"q1","rows":6,'
        '"source":"kafka orders","start":{}}'
    )

    assert BatchMark.from_json(older).to_json() == older


def test_mark_keeps_its_load_and_its_branch() -> None:
    full = replace(MARK, load="l1", branch="audit")

    assert BatchMark.from_json(full.to_json()) == full
    assert ledger.snapshot_summary(full)["icestream.load"] == "l1"


def test_marks_of_every_pipeline_are_separate() -> None:
    other = BatchMark("a.b", "q2", 1, "files", {}, {})
    properties = {
        "icestream.marker": "not ours",
        ledger.property_key("a.b"): other.to_json(),
        ledger.property_key("orders"): MARK.to_json(),
    }

    assert ledger.read_marks(properties) == {"a.b": other, "orders": MARK}


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"pipeline": "orders"}', '{"new": 1}'])
def test_invalid_mark_property_is_reported_and_never_ignored(text: str) -> None:
    properties = {ledger.property_key("orders"): text}
    for read in (
        lambda: ledger.read_mark(properties, "orders"),
        lambda: ledger.read_marks(properties),
    ):
        with pytest.raises(CorruptStateError) as caught:
            read()
        assert str(caught.value) == (
            f"table property 'icestream.mark.orders' is not a mark of icestream: {text!r}\n"
            "  Restore the property from an older metadata file of the table, or unset it to start "
            "the pipeline over."
        )


def test_summary_describes_what_a_snapshot_holds() -> None:
    assert ledger.snapshot_summary(MARK) == {
        "icestream.pipeline": "orders",
        "icestream.query-id": "q1",
        "icestream.epoch": "7",
        "icestream.source": "kafka orders",
        "icestream.start": START,
        "icestream.position": '{"orders-0": 9, "orders-1": 2}',
        "icestream.rows": "6",
        "icestream.instance": "i1",
    }


def test_summary_counts_records_offsets_and_bad_rows() -> None:
    found = ledger.snapshot_summary(replace(MARK, records=9, bad=3, span=12))
    assert {key: found[f"icestream.{key}"] for key in ("records", "bad", "span")} == {
        "records": "9",
        "bad": "3",
        "span": "12",
    }


def test_snapshot_starts_where_the_previous_commit_of_its_query_ended() -> None:
    held = replace(MARK, epoch=4, end={"orders-0": 1})
    assert ledger.snapshot_summary(MARK, held)["icestream.start"] == '{"orders-0": 1}'
    for other in (replace(held, query_id="q0"), replace(held, epoch=7), None):
        assert ledger.snapshot_summary(MARK, other)["icestream.start"] == START


def test_size_of_the_summary_does_not_depend_on_the_offsets() -> None:
    large = {f"table-{n}": n for n in range(10_000)}
    one, other = (replace(MARK, start={}, end={**large, "lsn": lsn}) for lsn in (1, 2))
    first, second = (ledger.snapshot_summary(each) for each in (one, other))

    assert sum(map(len, first.values())) < 300
    assert len(first["icestream.position"]) == 200
    assert first["icestream.position"].startswith('{"lsn": 1, "table-0": 0, "table-1": 1, ')
    assert first["icestream.position"][-15:] != second["icestream.position"][-15:]


def test_table_covers_the_batches_up_to_its_mark_of_the_same_query() -> None:
    assert not ledger.covers(None, mark(0))
    assert ledger.covers(mark(3), mark(3))
    assert ledger.covers(mark(3), mark(0))
    assert not ledger.covers(mark(3), mark(4))
    assert not ledger.covers(mark(3, query="old"), mark(3)), "a new checkpoint counts from 0 again"
