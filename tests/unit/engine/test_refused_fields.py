"""Fields whose names clash, at any depth: their records are bad, and only theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.recording_writer import RecordingWriter
from tests.unit.engine.test_columns import json_source, plan, splits

from icestream.contracts.decoder import Decoded
from icestream.contracts.reports import unpack_report
from icestream.engine.batch.columns import RefusedField, StreamColumns
from icestream.engine.batch.tasks import ReadAndWrite, Reading, with_refused, without_refused
from icestream.engine.state import PipelineState
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

USE = "; use a `rename` or `drop` transform"


def run(
    folder: Path, *values: bytes, first: bytes = b'{"id": 0}'
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Read one record, then others that bring new fields; return the rows and the bad records."""
    state = PipelineState(folder, "events")
    state.make()
    source = json_source(first)
    columns = StreamColumns(replace(plan(source), on_error="drop"), state)
    columns.resolve(splits(source))
    source.append_values(values)
    for _ in range(5):
        known = columns.resolve([])
        assert known is not None
        reading = Reading(
            source=source,
            decoder=source.decoder(),
            splits=tuple(splits(source, slots=1)),
            columns=known,
            evolving=True,
            stop_at_bad=False,
            refused=columns.refused,
            reports_bad_rows=True,
        )
        writer = RecordingWriter()
        numbers = pa.RecordBatch.from_pydict({"split": [0]})
        [batch] = ReadAndWrite(reading, writer)([numbers])
        report = unpack_report(batch.column(0)[0].as_py())[1]
        new = reading.new_columns(report.new_fields)
        if not new:
            reasons = {number & 0xFFFF: reason for number, reason in report.bad_rows.items()}
            return writer.rows, reasons
        columns.add(new)
    raise AssertionError("the columns never rest")


def test_members_that_differ_only_in_case_make_their_own_record_bad(tmp_path: Path) -> None:
    rows, bad = run(
        tmp_path,
        b'{"id": 1, "s": {"a": 1}}',
        b'{"id": 2, "s": {"a": 2, "A": 3}}',
        b'{"id": 3, "s": {"A": null, "b": 4}}',
        b'{"id": 4, "l": [{"x": [{"y": 1}]}, {"x": []}]}',
        b'{"id": 5, "l": [{"x": [{"y": 1}]}, {"x": [{"Y": 2}]}]}',
        b'{"id": 6, "l": []}',
    )

    assert bad == {
        2: f"column 's.A' differs from column 's.a' only in case{USE}",
        5: "column 'l.element.x.element.Y' differs from column 'l.element.x.element.y' only in "
        f"case{USE}",
    }
    assert [(row["id"], row["s"], row["l"]) for row in rows] == [
        (0, None, None),
        (1, {"a": 1, "b": None}, None),
        (3, {"a": None, "b": 4}, None),
        (4, None, [{"x": [{"y": 1}]}, {"x": []}]),
        (6, None, []),
    ]


def test_member_that_differs_from_that_of_a_known_column_makes_its_record_bad(
    tmp_path: Path,
) -> None:
    rows, bad = run(
        tmp_path,
        b'{"id": 1, "s": {"A": 1}}',
        b'{"id": 2, "s": {"a": 2, "new": 1}}',
        first=b'{"id": 0, "s": {"a": 1}}',
    )

    assert bad == {1: f"column 's.A' differs from column 's.a' only in case{USE}"}
    assert [row["s"] for row in rows] == [{"a": 1, "new": None}, {"a": 2, "new": 1}]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            b'{"a_x20b": 1, "a b": 2}',
            "column 'a b' and column 'a_x20b' have the same name in data files",
        ),
        (
            b'{"s": {"1": 1, "_1": 2}}',
            "column 's._1' and column 's.1' have the same name in data files",
        ),
        (
            b'{"s": {"b": 1}, "s.b": 2}',
            "columns 's.b' and 's' -> 'b' have the same full name",
        ),
        (
            b'{"l": [1], "l.element": 2}',
            "columns 'l.element' and 'l' -> 'element' have the same full name",
        ),
        (
            b'{"l.element": 2, "l": [1]}',
            "columns 'l' -> 'element' and 'l.element' have the same full name",
        ),
        (
            b'{"l": [[{"x": 1}]], "l.element.element": 2}',
            "columns 'l.element.element' and 'l' -> 'element' -> 'element' have the same full name",
        ),
        (b'{"": 1}', "a field has no name"),
        (b'{"s": {"": 1}}', "a field of column 's' has no name"),
        (b'{"s": {"": 1, "b": 2}}', "a field of column 's' has no name"),
    ],
)
def test_record_whose_fields_have_clashing_names_is_bad(
    tmp_path: Path, record: bytes, reason: str
) -> None:
    rows, bad = run(tmp_path, record, b'{"id": 2}')

    assert bad == {1: f"{reason}{USE}"}
    assert [row["id"] for row in rows] == [0, 2]


@pytest.mark.parametrize("unresolved", [b"null", b"[]", b"{}", b"[{}]"])
@pytest.mark.parametrize(
    ("first", "bad", "good"),
    [
        (b'{"s": {"a": 1}}', b'{"s": {"a": 1, "A": 2}}', b'{"s": {"a": 1, "z": %s}}'),
        (b'{"l": [{"a": 1}]}', b'{"l": [{"a": 1, "A": 2}]}', b'{"l": [{"a": 1, "z": %s}]}'),
        (b'{"id": 0}', b'{"l": [{"": 1}]}', b'{"l": [{"q": %s}]}'),
        (b'{"s": {"a": 1, "A": 2}}', b"not JSON", b'{"s": {"a": 1, "z": %s}}'),
    ],
)
def test_member_of_unknown_type_next_to_a_refused_one_adds_no_column(
    tmp_path: Path, first: bytes, bad: bytes, good: bytes, unresolved: bytes
) -> None:
    _, found = run(tmp_path, bad, good % unresolved, first=first)

    assert found.keys() - {0} == {1}


def test_column_without_remaining_members_reserves_no_name(tmp_path: Path) -> None:
    rows, bad = run(tmp_path, b'{"s": {"": 1}}', b'{"S": 5}')

    assert bad == {1: f"a field of column 's' has no name{USE}"}
    assert [row["S"] for row in rows] == [None, 5]


def test_refused_member_does_not_widen_its_column() -> None:
    columns = pa.schema([("s", pa.struct([("a", pa.int32())]))])
    refused = (RefusedField(pa.field("s", pa.struct([("A", pa.int32())])), "why", ("A",)),)
    rows = pa.RecordBatch.from_pylist([], schema=with_refused(columns, refused))
    a, wide_a = pa.field("a", pa.int32()), pa.field("a", pa.int64())
    wide = pa.field("A", pa.int64())

    def wider(*members: pa.Field) -> dict[str, pa.Field]:
        found = {"s": pa.field("s", pa.struct(members))}
        outcome = Decoded(rows, None, (), {}, found)
        return dict(without_refused(outcome, columns, refused).wider)

    assert wider(a, wide) == {}
    assert wider(wide_a, wide) == {"s": pa.field("s", pa.struct([wide_a]))}


def test_refused_member_of_a_column_that_is_no_longer_a_struct_is_ignored() -> None:
    columns = pa.schema([("s", pa.int64())])
    refused = (RefusedField(pa.field("s", pa.struct([("A", pa.int32())])), "why", ("A",)),)
    rows = pa.RecordBatch.from_pylist([{"s": 1}], schema=with_refused(columns, refused))

    outcome = without_refused(Decoded(rows, None, (), {}, {}), columns, refused)

    assert outcome.rows.to_pylist() == [{"s": 1}]


@pytest.mark.parametrize("name", ["A", "a"])
def test_rows_with_a_refused_member_stop_the_pipeline_by_name(name: str) -> None:
    kind = pa.list_(pa.struct([("x", pa.int64()), (name, pa.int64())]))
    source = ScriptedSource(schema=pa.schema([("l", kind)]))
    source.append_rows([{"l": [{"x": 1, name: 2}]}])
    refused = RefusedField(
        pa.field("l", pa.list_(pa.struct([("A", pa.int64())]))), "a reason", ("element", "A")
    )
    reading = Reading(
        source=source,
        decoder=None,
        splits=tuple(splits(source, slots=1)),
        columns=pa.schema([("l", pa.list_(pa.struct([("x", pa.int64()), ("a", pa.int64())])))]),
        evolving=True,
        stop_at_bad=True,
        refused=(refused,),
    )
    numbers = pa.RecordBatch.from_pydict({"split": [0]})
    [batch] = ReadAndWrite(reading, RecordingWriter())([numbers])
    error = unpack_report(batch.column(0)[0].as_py())[1].error

    expected = None if name == "a" else "the source: a reason"
    assert (None if error is None else error.what) == expected
