"""One undecodable record among many good ones: stop, drop or keep it aside, each exactly once."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.power_cut import power_cut_before_rows

from icestream.errors import BadRecordError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import BatchWritten, RecordsFailed
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

MANY, BAD = 200_000, 123_456


NOT_UTF8 = "not JSON: byte 0xff at position 7 is not UTF-8 text; is its text in another encoding?"
ARRAY = "not a JSON object but an array; write one object per record, in files one per line"


def source(good: int, *bad: int) -> ScriptedSource:
    """Good records, and an undecodable one in each of the given places."""
    source = ScriptedSource(decoder=JsonDecoder())
    values = [b'{"id":%d,"name":"row %d"}' % (n, n) for n in range(good)]
    for place in bad:
        values[place] = b'{"id": \xff not JSON'
    source.append_values(values)
    return source


def failed(lake: Lake) -> list[tuple[int, int]]:
    return [(e.count, e.dead_letters) for e in lake.events if isinstance(e, RecordsFailed)]


def test_bad_record_among_many_stops_the_pipeline_and_nothing_is_written(lake: Lake) -> None:
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(source(MANY, BAD)))

    assert str(caught.value) == (
        f"pipeline 'events', batch 0: record scripted[{BAD}] can't be decoded: not JSON: byte 0xff "
        "at position 7 is not UTF-8 text; is its text in another encoding? "
        "(begins with b'{\"id\": \\xff not JSON')\n"
        "  Nothing of the batch was written. Fix the producer, or set `on_error: "
        "dead_letter` with a `dead_letter` table, or `on_error: drop`, on sink 'lake'."
    )
    assert caught.value.exit_code == 5
    assert lake.rows() == []
    assert not [e for e in lake.events if isinstance(e, BatchWritten)]
    assert list(lake.folder.rglob("*.parquet")) == [], "files of the other split are removed"


def test_first_of_several_bad_records_is_reported(lake: Lake) -> None:
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(source(202, 98, 99, 101)))

    assert caught.value.what.startswith("record scripted[98] can't be decoded"), "of two splits"


def test_bad_record_is_dropped_and_counted_and_the_rest_is_written(lake: Lake) -> None:
    runner = lake.run(lake.plan(source(MANY, BAD), on_error="drop"))

    found = lake.catalog.client().load_table(("db", "events")).scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == [n for n in range(MANY) if n != BAD]
    assert failed(lake) == [(1, 0)]
    assert [e.rows for e in lake.events if isinstance(e, BatchWritten)] == [MANY - 1]
    assert (runner.progress.rows, runner.progress.bad) == (MANY - 1, 1)


def test_dead_letters_keep_the_record_and_its_origin(lake: Lake) -> None:
    records = source(5, 1, 3)
    started = datetime.now(tz=timezone.utc)
    lake.run(lake.plan(records, on_error="dead_letter"))
    records.append_values([b"[]", b'{"id": 6}', None])
    lake.run(lake.plan(records, on_error="dead_letter"))

    assert sorted(row["id"] for row in lake.rows()) == [0, 2, 4, 6]
    letters = sorted(lake.rows("dead"), key=lambda row: str(row["position"]))
    assert [
        (row["raw"], row["reason"], row["position"], row["pipeline"], row["epoch"])
        for row in letters
    ] == [
        (b'{"id": \xff not JSON', NOT_UTF8, "scripted[1]", "events", 0),
        (b'{"id": \xff not JSON', NOT_UTF8, "scripted[3]", "events", 0),
        (b"[]", ARRAY, "scripted[5]", "events", 1),
        (None, letters[3]["reason"], "scripted[7]", "events", 1),
    ]
    assert letters[3]["reason"]
    for row in letters:
        assert started <= row["failed_at"] <= started + timedelta(minutes=10)
    assert failed(lake) == [(2, 2), (2, 2)]
    table = lake.catalog.client().load_table(("db", "dead"))
    assert [field.doc for field in table.schema().fields][:2] == [
        "The record as the source gave it.",
        "Why it could not be written.",
    ]


def test_crash_between_the_two_commits_keeps_each_record_once(lake: Lake) -> None:
    records = source(10, 4, 7)
    with power_cut_before_rows() as calls:
        lake.run(lake.plan(records, on_error="dead_letter"))
    assert calls == [f"{lake.name}.db.dead", f"{lake.name}.db.events"]
    assert lake.rows() == []
    lake.run(lake.plan(records, on_error="dead_letter"))

    assert sorted(row["id"] for row in lake.rows()) == [0, 1, 2, 3, 5, 6, 8, 9]
    assert sorted(row["position"] for row in lake.rows("dead")) == ["scripted[4]", "scripted[7]"]


def test_batch_of_only_bad_records_writes_dead_letters_and_continues(lake: Lake) -> None:
    records = source(3)
    lake.run(lake.plan(records, on_error="dead_letter"))
    records.append_values([b"x", b"y"])
    lake.run(lake.plan(records, on_error="dead_letter"))
    records.append_values([b'{"id": 9}'])
    lake.run(lake.plan(records, on_error="dead_letter"))

    assert sorted(row["id"] for row in lake.rows()) == [0, 1, 2, 9]
    assert sorted(row["raw"] for row in lake.rows("dead")) == [b"x", b"y"]
    assert len(lake.catalog.client().load_table(("db", "events")).snapshots()) == 2
