"""What a task does with a split, and what it reports, without Spark around it."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.recording_writer import RecordingWriter

from icestream.contracts.decoder import Records
from icestream.contracts.reports import unpack_report
from icestream.contracts.sink import WrittenFile
from icestream.engine.batch.columns import RefusedField
from icestream.engine.batch.commit import BatchOutcome
from icestream.engine.batch.tasks import (
    BAD_EXAMPLES,
    ReadAndWrite,
    Reading,
    ReadOnly,
    Report,
    WriteOnly,
)
from icestream.engine.dead_letters import buffer
from icestream.engine.dead_letters.buffer import DeadLetterWriter
from icestream.errors import BadRecordError, UnreachableError
from icestream.formats.inference import new_columns
from icestream.formats.json import JsonDecoder
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icestream.contracts.source import Split

COLUMNS = pa.schema([("id", pa.int64())])


class BrokenSource(ScriptedSource):
    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        yield from super().read(split)
        raise UnreachableError("nobody answers", where="broker h:9092")


class WithOffsets(ScriptedSource):
    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        for block in super().read(split):
            assert isinstance(block, Records)
            offsets = pa.array(range(100, 100 + len(block.values)), pa.int32())
            yield Records(block.values, {"offset": offsets}, block.position)

    def extra_columns(self) -> pa.Schema:
        return pa.schema([("offset", pa.int64())])


def reading(
    *values: bytes | None,
    kind: type[ScriptedSource] = ScriptedSource,
    columns: pa.Schema = COLUMNS,
    slots: int = 1,
    **settings: Any,
) -> Reading:
    source = kind(decoder=JsonDecoder())
    source.append_values(values)
    splits = source.splits(source.initial(), source.latest(source.initial()), slots)
    given = {"evolving": True, "stop_at_bad": False, **settings}
    return Reading(source, source.decoder(), tuple(splits), columns, **given)


def splits_of(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array([number])], ["id"]) for number in numbers]


def run(task: Any, *numbers: int) -> list[Report]:
    return [unpack_report(batch.column(0)[0].as_py())[1] for batch in task(splits_of(*numbers))]


def test_each_split_is_read_decoded_written_and_reported() -> None:
    writer = RecordingWriter()
    task = ReadAndWrite(reading(b'{"id": 1}', b'{"id": 2}', b'{"id": 3}', slots=2), writer)

    assert run(task, 0, 1) == [
        Report(0, rows=1, records=1, files=[WrittenFile(1, 1, {"rows": 1})]),
        Report(1, rows=2, records=2, files=[WrittenFile(2, 1, {"rows": 2})]),
    ]
    assert writer.rows == [{"id": 1}, {"id": 2}, {"id": 3}]
    pickle.dumps(task)


def test_bad_records_are_skipped_and_reported_with_their_position() -> None:
    writer = RecordingWriter()
    [report] = run(ReadAndWrite(reading(b'{"id": 1}', b"x", None, b'{"id": "y"}'), writer), 0)

    assert writer.rows == [{"id": 1}]
    assert (report.rows, report.bad) == (1, 3)
    assert [bad.position for bad in report.examples] == [
        "scripted[1]",
        "scripted[2]",
        "scripted[3]",
    ]
    assert all(bad.reason for bad in report.examples)


def test_many_bad_records_are_counted_but_few_are_carried() -> None:
    [report] = run(ReadAndWrite(reading(*[b"x"] * 1_000), RecordingWriter()), 0)

    assert report.bad == 1_000
    assert len(report.examples) == BAD_EXAMPLES
    assert report.files == []


def test_report_stays_small_however_large_bad_records_are() -> None:
    letters = RecordingWriter()
    large = b"x" * 1_000_000
    task = ReadAndWrite(
        reading(*[large] * 5, dead_letters=DeadLetterWriter(letters, "events", 7)),
        RecordingWriter(),
    )
    [report] = run(task, 0)

    assert report.bad == 5
    assert [row["raw"] for row in letters.rows] == [large] * 5
    assert len(pickle.dumps(report)) < 10_000


def test_error_in_a_report_shows_the_length_of_a_truncated_value() -> None:
    class Refusing(RecordingWriter):
        def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
            raise BadRecordError("a row has no key: " + "x" * 5_000, todo="Leave it out.")

    [report] = run(ReadAndWrite(reading(b'{"id": 1}'), Refusing()), 0)

    assert str(report.error) == (
        f"a row has no key: {'x' * 982}... (5,018 characters)\n  Leave it out."
    )


def test_every_bad_record_becomes_a_dead_letter() -> None:
    letters = RecordingWriter()
    task = ReadAndWrite(
        reading(*[b"x"] * 30, b'{"id": 1}', dead_letters=DeadLetterWriter(letters, "events", 7)),
        RecordingWriter(),
    )
    [report] = run(task, 0)

    assert [file.rows for file in report.dead_files] == [30]
    assert {(row["raw"], row["pipeline"], row["epoch"]) for row in letters.rows} == {
        (b"x", "events", 7)
    }
    assert [row["position"] for row in letters.rows] == [f"scripted[{n}]" for n in range(30)]
    assert {row["failed_at"].tzname() for row in letters.rows} == {"UTC"}


class Counting(RecordingWriter):
    """Records the largest number of dead letters written at once."""

    most = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        given = list(batches)
        self.most = max(self.most, sum(batch.num_rows for batch in given))
        return super().write(given)


def test_bad_records_of_a_whole_split_are_never_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "BUFFER_BYTES", 4 * (buffer.RECORD_BYTES + 1))
    letters = Counting()
    task = ReadAndWrite(
        reading(*[b"x"] * 30, dead_letters=DeadLetterWriter(letters, "events", 7)),
        RecordingWriter(),
    )
    [report] = run(task, 0)

    assert letters.most == 4
    assert sum(file.rows for file in report.dead_files) == 30
    assert [row["position"] for row in letters.rows] == [f"scripted[{n}]" for n in range(30)]
    assert (report.bad, len(report.examples)) == (30, BAD_EXAMPLES)


def test_bad_record_that_fails_the_batch_stops_writing() -> None:
    writer = RecordingWriter()
    [report] = run(ReadAndWrite(reading(b'{"id": 1}', b"x", stop_at_bad=True), writer), 0)

    assert report.files == []
    assert writer.rows == []
    assert [bad.position for bad in report.examples] == ["scripted[1]"]
    assert report.error is None


def test_new_field_stops_writing_only_if_fields_may_become_columns() -> None:
    values = (b'{"id": 1}', b'{"id": 2, "new": "x"}')
    writer = RecordingWriter()
    [report] = run(ReadAndWrite(reading(*values), writer), 0)
    assert (report.new_fields, report.files, writer.rows) == ({"new": pa.string()}, [], [])

    [report] = run(ReadAndWrite(reading(*values, evolving=False), writer), 0)
    assert (report.new_fields, report.rows) == ({}, 2)
    assert writer.rows == [{"id": 1}, {"id": 2}]


class OneRecordBlocks(ScriptedSource):
    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        for block in super().read(split):
            assert isinstance(block, Records)
            yield from (block.slice(index, 1) for index in range(len(block.values)))


@pytest.mark.parametrize("values", list(itertools.permutations(["9007199254740993", "0.5", "[]"])))
def test_type_of_a_new_field_holds_the_values_of_all_blocks_and_splits(
    values: tuple[str, ...],
) -> None:
    records = [b'{"id": 1, "new": %s}' % value.encode() for value in (*values, "7")]
    writer = RecordingWriter()
    outcome = BatchOutcome()
    for report in run(ReadAndWrite(reading(*records, kind=OneRecordBlocks, slots=2), writer), 0, 1):
        outcome.add(report)

    assert new_columns(COLUMNS, outcome.new_fields) == {"new": pa.string()}
    assert (outcome.files, outcome.bad, writer.rows) == ([], 0, [])


def test_no_dead_letter_is_written_once_the_batch_has_to_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "BUFFER_BYTES", 1)
    letters = RecordingWriter()
    values = (b"bad", b'{"id": 2, "new": "x"}', b"bad too")
    task = reading(
        *values, kind=OneRecordBlocks, dead_letters=DeadLetterWriter(letters, "events", 7)
    )
    [report] = run(ReadAndWrite(task, RecordingWriter()), 0)

    assert [row["raw"] for row in letters.rows] == [b"bad"]
    assert report.bad == 2


def test_field_with_the_name_of_a_column_that_the_source_adds_is_reported_then_bad() -> None:
    columns = COLUMNS.append(pa.field("offset", pa.int64()))
    given = (b'{"id": 1, "offset": "x"}', b'{"id": 2}')
    [report] = run(
        ReadAndWrite(reading(*given, kind=WithOffsets, columns=columns), RecordingWriter()), 0
    )
    assert report.new_fields == {"offset": pa.string()}

    writer = RecordingWriter()
    refused = (RefusedField(pa.field("offset", pa.string()), "a reason"),)
    task = reading(*given, kind=WithOffsets, columns=columns, refused=refused)
    [report] = run(ReadAndWrite(task, writer), 0)
    assert [record.reason for record in report.examples] == ["a reason"]
    assert writer.rows == [{"id": 2, "offset": 101}]


def test_field_of_unknown_type_does_not_stop_writing() -> None:
    writer = RecordingWriter()
    task = ReadAndWrite(reading(b'{"id": 1, "new": []}', b'{"id": 2, "n": null}'), writer)
    [report] = run(task, 0)

    assert new_columns(COLUMNS, report.new_fields) == {}
    assert (report.rows, writer.rows) == (2, [{"id": 1}, {"id": 2}])


def test_error_of_ours_keeps_its_class_and_the_next_split_is_read() -> None:
    task = ReadAndWrite(
        reading(b'{"id": 1}', b'{"id": 2}', kind=BrokenSource, slots=2), RecordingWriter()
    )
    reports = run(task, 0, 1)

    assert [type(report.error) for report in reports] == [UnreachableError, UnreachableError]
    assert str(reports[0].error) == "broker h:9092: nobody answers"
    assert reports[0].files == []


def test_columns_that_the_source_adds_follow_the_good_rows() -> None:
    columns = pa.schema([("offset", pa.int64()), ("id", pa.int64())])
    writer = RecordingWriter()
    run(
        ReadAndWrite(
            reading(b'{"id": 1}', b"x", b'{"id": 3}', kind=WithOffsets, columns=columns), writer
        ),
        0,
    )

    assert writer.rows == [{"offset": 100, "id": 1}, {"offset": 102, "id": 3}]


def test_rows_passed_to_spark_have_the_declared_columns() -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    noted: list[Report] = []
    source = ScriptedSource(schema=pa.schema([("name", pa.large_string()), ("id", pa.int32())]))
    source.append_rows([{"name": "a", "id": 1}])
    split = source.splits({"row": 0}, {"row": 1}, 1)
    through = ReadOnly(
        Reading(source, None, tuple(split), columns, evolving=False, stop_at_bad=True),
        noted.append,
    )
    [batch] = through(splits_of(0))

    assert batch.schema == columns
    assert batch.to_pylist() == [{"id": 1, "name": "a"}]
    assert noted == [Report(0, rows=1, records=1)]


def test_rows_from_spark_are_written_and_counted() -> None:
    writer = RecordingWriter()
    rows = [pa.RecordBatch.from_pylist([{"id": n}], schema=COLUMNS) for n in range(3)]
    [out] = WriteOnly(writer)(rows)
    number, report = unpack_report(out.column(0)[0].as_py())

    assert (number, report.split) == (0, 0)
    assert (report.rows, [file.rows for file in report.files]) == (3, [3])
    assert writer.rows == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_unexpected_error_is_not_swallowed() -> None:
    class Full(RecordingWriter):
        def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run(ReadAndWrite(reading(b'{"id": 1}'), Full()), 0)
