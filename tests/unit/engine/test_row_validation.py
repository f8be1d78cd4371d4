"""Bad rows taken out in a task, and their records found again, without Spark around it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.recording_writer import RecordingWriter

from icestream.contracts.decoder import Records
from icestream.contracts.sink import RowExpectation
from icestream.contracts.transform import FAULT, ROW
from icestream.engine.batch.tasks import Reading, Report, row_number
from icestream.engine.dead_letters import buffer
from icestream.engine.dead_letters.buffer import DeadLetterWriter, row_as_json
from icestream.engine.dead_letters.row_validation import UNMET, RowValidation
from icestream.errors import BadRecordError
from icestream.formats.json import JsonDecoder
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.source import Split

COLUMNS = pa.schema([("id", pa.int64())])
DROP = RowExpectation("small", "id < 10", "drop")
KEEP = RowExpectation("even", "id % 2 = 0", "dead_letter")
FAIL = RowExpectation("positive", "id > 0", "fail")


class InBlocksOfThree(ScriptedSource):
    """Gives a split's records in blocks of three, each with its offset."""

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        for block in super().read(split):
            if not isinstance(block, Records):
                yield from (block.slice(n, 3) for n in range(0, block.num_rows, 3))
                continue
            for first in range(0, len(block.values), 3):
                values = block.values.slice(first, 3)
                offsets = pa.array(range(first, first + len(values)))
                yield Records(values, {"offset": offsets}, f"s[{first}]+{{}}".format)


def reading(source: ScriptedSource, slots: int = 1) -> Reading:
    splits = source.splits(source.initial(), source.latest(source.initial()), slots)
    return Reading(
        source, source.decoder(), tuple(splits), COLUMNS, evolving=False, stop_at_bad=False
    )


def records(*values: bytes) -> InBlocksOfThree:
    source = InBlocksOfThree(decoder=JsonDecoder())
    source.append_values(values)
    return source


def batch(ids: list[int], **hidden: Any) -> pa.RecordBatch:
    kinds = {ROW: pa.int64(), FAULT: pa.string(), UNMET: pa.int64()}
    arrays = {"id": pa.array(ids, pa.int64())}
    arrays |= {name: pa.array(values, kinds[name]) for name, values in hidden.items()}
    return pa.RecordBatch.from_pydict(arrays)


def taken(faults: RowValidation, *batches: pa.RecordBatch) -> tuple[list[int], Report]:
    report = Report(0)
    good = [row for one in faults.good_rows(batches, report) for row in one.to_pylist()]
    assert all(set(row) == {"id"} for row in good), "no hidden column gets through"
    return [row["id"] for row in good], report


def test_rows_with_a_fault_are_counted_and_dropped() -> None:
    faults = RowValidation(reading(records()))
    good, report = taken(
        faults,
        batch([1, 2], **{FAULT: [None, None]}),
        batch([3, 4], **{FAULT: ["no", None]}),
    )
    assert (good, report.bad, report.dead_files) == ([1, 2, 4], 1, [])


def test_records_of_bad_rows_are_read_again_from_any_block_and_split() -> None:
    letters = RecordingWriter()
    source = records(*(b'{"id": %d}' % n for n in range(14)))
    faults = RowValidation(
        reading(source, slots=2), keeps_faults=True, letters=DeadLetterWriter(letters, "events", 7)
    )
    numbers = [row_number(0, 1), row_number(0, 6), row_number(1, 3), row_number(1, 4)]
    good, report = taken(
        faults, batch([1, 6, 10, 11], **{ROW: numbers, FAULT: ["a", "b", "c", None]})
    )
    assert good == [11]
    assert [file.rows for file in report.dead_files] == [3]
    assert [(row["raw"], row["reason"], row["position"]) for row in letters.rows] == [
        (b'{"id": 1}', "a", "s[0]+1"),
        (b'{"id": 6}', "b", "s[6]+0"),
        (b'{"id": 10}', "c", "s[3]+0"),
    ]
    assert [row["extra"] for row in letters.rows] == [
        '{"offset": 1}',
        '{"offset": 6}',
        '{"offset": 3}',
    ]
    assert {(row["pipeline"], row["epoch"]) for row in letters.rows} == {("events", 7)}


def test_row_of_a_row_source_is_kept_as_json() -> None:
    letters = RecordingWriter()
    source = InBlocksOfThree(schema=COLUMNS)
    source.append_rows({"id": n} for n in range(5))
    faults = RowValidation(
        reading(source), keeps_faults=True, letters=DeadLetterWriter(letters, "events", 0)
    )
    taken(faults, batch([4], **{ROW: [row_number(0, 4)], FAULT: ["no"]}))
    assert [(row["raw"], row["position"]) for row in letters.rows] == [
        (b'{"id": 4}', "scripted scripted, part 0, row 4")
    ]


def test_row_without_a_record_is_kept_as_it_would_be_written() -> None:
    letters = RecordingWriter()
    faults = RowValidation(
        reading(records()), keeps_faults=True, letters=DeadLetterWriter(letters, "events", 0)
    )
    taken(faults, batch([4], **{FAULT: ["no"]}))
    assert [(row["raw"], row["position"]) for row in letters.rows] == [(b'{"id": 4}', None)]


def test_rows_without_a_record_are_written_a_buffer_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "BUFFER_BYTES", 2 * buffer.RECORD_BYTES)
    letters = RecordingWriter()
    faults = RowValidation(
        reading(records()), keeps_faults=True, letters=DeadLetterWriter(letters, "events", 0)
    )
    _, report = taken(faults, batch([1, 2, 3, 4, 5], **{FAULT: ["bad"] * 5}))

    assert [file.rows for file in report.dead_files] == [2, 2, 1]
    assert len(letters.rows) == 5


def test_row_is_counted_for_each_expectation_and_the_most_severe_decides() -> None:
    letters = RecordingWriter()
    faults = RowValidation(
        reading(records(*(b'{"id": %d}' % n for n in range(13)))),
        expectations=(DROP, KEEP, FAIL),
        letters=DeadLetterWriter(letters, "events", 0),
    )
    good, report = taken(faults, batch([2, 11, 12], **{ROW: [2, 11, 12], UNMET: [0, 0b011, 0b001]}))
    assert good == [2]
    assert (report.unmet, report.unmet_rows, report.bad) == ({"small": 2, "even": 1}, 2, 0)
    assert [row["reason"] for row in letters.rows] == [
        "expectation 'small' is not met: id < 10; expectation 'even' is not met: id % 2 = 0"
    ]
    assert report.unmet_examples == {}


def test_expectation_that_fails_the_batch_shows_a_row() -> None:
    faults = RowValidation(reading(records()), expectations=(FAIL,))
    _, report = taken(faults, batch([-1, -2], **{UNMET: [1, 1]}))
    assert (report.unmet, report.unmet_examples) == ({"positive": 2}, {"positive": '{"id": -1}'})


def test_replay_gets_every_bad_row() -> None:
    faults = RowValidation(reading(records()), expectations=(FAIL,), reports_bad_rows=True)
    rows = batch([1, 2, 3], **{ROW: [0, 1, 2], FAULT: [None, "no", None], UNMET: [1, 0, 0]})
    good, report = taken(faults, rows)
    assert good == [3]
    assert report.bad_rows == {0: "expectation 'positive' is not met: id > 0", 1: "no"}


def test_replay_refuses_a_bad_row_that_it_cannot_trace() -> None:
    faults = RowValidation(reading(records()), reports_bad_rows=True)
    with pytest.raises(BadRecordError) as caught:
        taken(faults, batch([1], **{FAULT: ["no"]}))
    assert str(caught.value) == (
        "a row that can't be traced back to one record is bad: no\n"
        "  Nothing was written. Exclude its record with --reason or --since, or fix the "
        "pipeline's transforms."
    )


def test_row_as_json_is_read_back_by_the_decoder() -> None:
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(9, 2)),
            ("blob", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("by_name", pa.map_(pa.string(), pa.int64())),
            ("who", pa.struct([("name", pa.string()), ("key", pa.binary())])),
            ("nothing", pa.string()),
        ]
    )
    row = {
        "id": 1,
        "at": datetime(2026, 11, 15, 10, 30, 0, 123456, tzinfo=timezone.utc),
        "price": Decimal("2.50"),
        "blob": b"\x00\xff",
        "tags": ["a", None],
        "by_name": [("x", 1)],
        "who": {"name": "é", "key": b"\xfe"},
        "nothing": None,
    }
    batch = pa.RecordBatch.from_pylist([row], schema=columns)
    text = row_as_json(batch, 0)
    assert json.loads(text)["who"] == {"name": "é", "key": "/g=="}
    back = JsonDecoder().decode(pa.array([text.encode()]), columns)
    assert back.bad == ()
    assert back.rows.to_pylist() == batch.to_pylist()


def test_rows_carry_the_number_of_their_record_past_bad_ones() -> None:
    source = records(b'{"id": 0}', b"x", b'{"id": 2}', b'{"id": 3}', b"y", b'{"id": 5}')
    numbered = Reading(
        source,
        source.decoder(),
        tuple(source.splits({"row": 0}, {"row": 6}, 1)),
        COLUMNS,
        evolving=False,
        stop_at_bad=False,
        numbered=True,
        reports_bad_rows=True,
    )
    report = Report(0)
    rows = [row for one in numbered.rows(report) for row in one.to_pylist()]
    assert [(row["id"], row[ROW]) for row in rows] == [(0, 0), (2, 2), (3, 3), (5, 5)]
    assert sorted(report.bad_rows) == [1, 4]
    assert numbered.output_schema().names == ["id", ROW]
