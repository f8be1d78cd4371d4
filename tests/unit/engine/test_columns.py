"""Where a pipeline's columns come from, and how they grow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.decoder import Records
from icestream.contracts.sink import Commit, Sink, TaskWriter, WrittenFile
from icestream.engine.batch.columns import RefusedField, StreamColumns
from icestream.engine.state import PipelineState
from icestream.errors import BadRecordError, CorruptStateError, SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.plan.plan import Batching, PipelinePlan, RestartPolicy
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.source import Split


class TableOf(Sink[Any]):
    """A table of which only the columns matter."""

    def __init__(self, columns: pa.Schema | None = None, *, strict: bool = False) -> None:
        self._columns = columns
        self._strict = strict

    def identity(self) -> str:
        return "lake.db.events"

    def single_table(self) -> tuple[str, ...]:
        return ("db", "t")

    def open(self, spark: Any, pipeline: str, cache: Path | None = None) -> None:
        raise NotImplementedError

    def last_mark(self) -> BatchMark | None:
        raise NotImplementedError

    def foreign_marks(self) -> list[BatchMark]:
        raise NotImplementedError

    def holds(self, mark: BatchMark) -> bool:
        raise NotImplementedError

    def columns(self) -> pa.Schema | None:
        return self._columns

    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:
        raise NotImplementedError

    def adds_columns(self) -> bool:
        return not self._strict

    def writer(self) -> TaskWriter:
        raise NotImplementedError

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        raise NotImplementedError


class WithOffsets(ScriptedSource):
    def extra_columns(self) -> pa.Schema:
        return pa.schema([("offset", pa.int64())])


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    made = PipelineState(tmp_path, "events")
    made.make()
    return made


def plan(
    source: ScriptedSource, sink: TableOf | None = None, transforms: tuple[Any, ...] = ()
) -> PipelinePlan:
    return PipelinePlan(
        name="events",
        source_name="orders",
        source=source,
        sink_name="lake",
        sink=sink or TableOf(),
        batching=Batching(1, 1, 1),
        restart=RestartPolicy(),
        on_error="fail",
        transforms=transforms,
    )


def json_source(*values: bytes, kind: type[ScriptedSource] = ScriptedSource) -> ScriptedSource:
    source = kind(decoder=JsonDecoder())
    source.append_values(values)
    return source


def splits(source: ScriptedSource, slots: int = 2) -> list[Split]:
    return source.splits(source.initial(), source.latest(source.initial()), slots)


def test_configured_schema_takes_precedence_and_does_not_grow(state: PipelineState) -> None:
    given = pa.schema([("id", pa.int32())])
    columns = StreamColumns(
        plan(ScriptedSource(schema=given), TableOf(pa.schema([("x", pa.string())]))), state
    )

    assert columns.resolve([]) == given
    assert not columns.evolving
    assert state.schema() is None


def test_table_columns_take_precedence_over_inferred_ones(state: PipelineState) -> None:
    source = json_source(b'{"id": 1}')
    table = pa.schema([("id", pa.decimal128(9, 2))])
    columns = StreamColumns(plan(source, TableOf(table)), state)

    assert columns.resolve(splits(source)) == table
    assert columns.evolving


def test_column_added_later_by_a_source_is_included(state: PipelineState) -> None:
    source = json_source(b'{"id": 1}', kind=WithOffsets)
    table = pa.schema([("id", pa.int64())])

    assert StreamColumns(plan(source, TableOf(table)), state).resolve(splits(source)) == pa.schema(
        [("id", pa.int64()), ("offset", pa.int64())]
    )
    both = pa.schema([("offset", pa.int64()), ("id", pa.int64())])
    assert StreamColumns(plan(source, TableOf(both)), state).resolve(splits(source)) == both


def test_columns_are_inferred_from_every_split_and_stored(state: PipelineState) -> None:
    source = json_source(
        b'{"id": 1}', b"not JSON", b'{"id": 1.5, "at": {"x": true}}', kind=WithOffsets
    )
    expected = pa.schema(
        [
            ("id", pa.float64()),
            ("at", pa.struct([("x", pa.bool_())])),
            ("offset", pa.int64()),
        ]
    )

    assert StreamColumns(plan(source), state).resolve(splits(source)) == expected
    assert (state.schema() or {})["columns"] == {
        "id": "double",
        "at": "struct<x: bool>",
        "offset": "int64",
    }
    other = json_source(b'{"id": "now a text"}', kind=WithOffsets)
    assert StreamColumns(plan(other), state).resolve(splits(other)) == expected


class OneRecordBlocks(ScriptedSource):
    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        for block in super().read(split):
            assert isinstance(block, Records)
            yield from (block.slice(index, 1) for index in range(len(block.values)))


def test_sample_does_not_depend_on_the_size_of_blocks(
    state: PipelineState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.engine.batch.columns.SAMPLE", 2)
    source = json_source(b'{"a": 1}', b'{"a": 1.5}', b'{"a": "text"}', kind=OneRecordBlocks)

    found = StreamColumns(plan(source), state).resolve(splits(source, slots=1))

    assert found == pa.schema([("a", pa.float64())])


def test_sample_is_bounded_by_bytes(state: PipelineState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.engine.batch.columns.SAMPLE_BYTES", 20)
    values = (b'{"a": 1,  "b": 1}', b'{"a": 2}', b'{"a": 1.5}')
    expected = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    blocks = json_source(*values, kind=OneRecordBlocks)
    whole = json_source(*values)
    one_large = json_source(b'{"a": %s}' % (b" " * 50 + b"1"))

    assert StreamColumns(plan(blocks), state).resolve(splits(blocks, slots=1)) == expected
    (state.folder / "schema.json").unlink()
    assert StreamColumns(plan(whole), state).resolve(splits(whole, slots=1)) == expected
    (state.folder / "schema.json").unlink()
    found = StreamColumns(plan(one_large), state).resolve(splits(one_large, slots=1))
    assert found == pa.schema([("a", pa.int64())]), "at least one record is read"


def test_first_batch_without_records_infers_and_stores_nothing(
    state: PipelineState,
) -> None:
    source = json_source()
    columns = StreamColumns(plan(source), state)
    assert columns.resolve([]) is None
    assert state.schema() is None

    source.append_values([b'{"id": 1}'])
    assert columns.resolve(splits(source)) == pa.schema([("id", pa.int64())])


def test_new_fields_are_added_and_grown_structs_are_replaced(state: PipelineState) -> None:
    source = json_source(b'{"id": 1, "at": {"x": 1}, "z": 1}')
    columns = StreamColumns(plan(source), state)
    columns.resolve(splits(source))
    columns.add({"new": pa.string(), "at": pa.struct([("x", pa.int64()), ("y", pa.string())])})

    expected = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.struct([("x", pa.int64()), ("y", pa.string())])),
            ("z", pa.int64()),
            ("new", pa.string()),
        ]
    )
    assert columns.resolve([]) == expected
    assert StreamColumns(plan(source), state).resolve([]) == expected, "a replay reads alike"


def test_field_with_the_name_of_a_column_that_the_source_adds_is_refused(
    state: PipelineState,
) -> None:
    source = json_source(b'{"id": 1}', kind=WithOffsets)
    columns = StreamColumns(plan(source), state)
    before = columns.resolve(splits(source))
    columns.add({"offset": pa.string()})

    assert columns.resolve([]) == before
    reason = "field 'offset' has the name of a column that the source adds"
    assert columns.refused == (RefusedField(pa.field("offset", pa.string()), reason),)


def test_first_records_do_not_clash_with_columns_that_the_source_adds(
    state: PipelineState,
) -> None:
    source = json_source(b'{"id": 1, "Offset": 2}', kind=WithOffsets)
    columns = StreamColumns(replace(plan(source), on_error="drop"), state)

    assert columns.resolve(splits(source)) == pa.schema(
        [("id", pa.int64()), ("offset", pa.int64())]
    )
    assert [field.column.name for field in columns.refused] == ["Offset"]


def test_strict_sink_refuses_new_fields_by_name(state: PipelineState) -> None:
    source = json_source(b'{"id": 1}')
    columns = StreamColumns(plan(source, TableOf(strict=True)), state)
    columns.resolve(splits(source))
    with pytest.raises(SchemaMismatchError) as caught:
        columns.add({"b": pa.string(), "a": pa.int64()})

    assert str(caught.value) == (
        "pipeline 'events', table lake.db.events: the stream has columns that the table lacks: "
        "'a' int64, 'b' string\n  Use `schema_evolution: add_columns`, or alter the table."
    )


def test_new_field_that_a_transform_may_drop_does_not_stop_a_strict_pipeline(
    state: PipelineState,
) -> None:
    source = json_source(b'{"id": 1}')
    columns = StreamColumns(plan(source, TableOf(strict=True), transforms=("select",)), state)
    columns.resolve(splits(source))
    columns.add({"b": pa.string()})

    assert columns.resolve([]) == pa.schema([("id", pa.int64()), ("b", pa.string())])


def test_refused_member_does_not_stop_a_strict_pipeline(state: PipelineState) -> None:
    source = json_source(b'{"s": {"a": 1}}')
    columns = StreamColumns(replace(plan(source, TableOf(strict=True)), on_error="drop"), state)
    before = columns.resolve(splits(source))
    columns.add({"s": pa.struct([("a", pa.int64()), ("A", pa.int64())])})

    assert columns.resolve([]) == before
    assert [field.members for field in columns.refused] == [("A",)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("A", pa.int64())])),
        pa.map_(pa.string(), pa.struct([("a b", pa.int64()), ("a_x20b", pa.int64())])),
        pa.large_list(pa.struct([("a", pa.int64()), ("A", pa.int64())])),
    ],
    ids=str,
)
def test_map_with_clashing_names_inside_is_refused_as_a_whole(
    state: PipelineState, kind: pa.DataType
) -> None:
    source = json_source(b'{"id": 1}')
    columns = StreamColumns(replace(plan(source), on_error="drop"), state)
    columns.resolve(splits(source))
    columns.add({"m": kind, "m.value.a": pa.int64()})

    assert columns.resolve([]) == pa.schema([("id", pa.int64()), ("m.value.a", pa.int64())])
    assert [(field.column, field.members) for field in columns.refused] == [
        (pa.field("m", kind), ())
    ]


def test_known_columns_whose_names_clash_stay(state: PipelineState) -> None:
    both = pa.struct([("a", pa.int64()), ("A", pa.int64())])
    source = json_source(b'{"id": 1}')
    sink = TableOf(pa.schema([("s", both)]))
    columns = StreamColumns(replace(plan(source, sink), on_error="drop"), state)
    columns.resolve(splits(source))
    grown = pa.struct([*both, ("b", pa.int64())])
    columns.add({"s": grown})

    assert columns.resolve([]) == pa.schema([("s", grown)])
    assert columns.refused == ()


def test_names_are_not_checked_before_transforms_if_bad_records_stop_the_pipeline(
    state: PipelineState,
) -> None:
    class Sql:
        def removes(self, name: str) -> bool:
            return False

    source = json_source(b'{"id": 1}')
    columns = StreamColumns(plan(source, transforms=(Sql(),)), state)
    columns.resolve(splits(source))
    columns.add({"a b": pa.int64(), "a_x20b": pa.int64()})

    assert (columns.resolve([]) or pa.schema([])).names == ["id", "a b", "a_x20b"]
    assert columns.refused == ()


@pytest.mark.parametrize("kept", ["{}", '{"arrow": "###"}', '{"arrow": "AAAA"}'])
def test_unreadable_stored_columns_are_reported(state: PipelineState, kept: str) -> None:
    path = state.folder / "schema.json"
    path.write_text(kept)
    with pytest.raises(CorruptStateError) as caught:
        StreamColumns(plan(json_source(b'{"id": 1}')), state).resolve([])

    head, todo = str(caught.value).splitlines()
    assert head.startswith(f"pipeline 'events': the file {path} can't be read: ")
    assert todo == "  Delete it to infer the columns again, or restore it from a backup."


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            [b"id,name", b"1,a"],
            "record scripted[0]: not JSON: an object starts with '{' (begins with 'id,name')",
        ),
        (
            [b"{}", b'[{"id": 1}]'],
            "record scripted[1]: not a JSON object but an array; write one object per record, in "
            """files one per line (begins with '[{"id": 1}]')""",
        ),
        (
            [b"\xff\xfe{"],
            "record scripted[0]: not JSON: byte 0xff at position 0 is not UTF-8 text; it starts "
            "like UTF-16 text (begins with b'\\xff\\xfe{')",
        ),
    ],
)
def test_records_that_are_not_json_are_named_when_columns_are_inferred(
    state: PipelineState, values: list[bytes], problem: str
) -> None:
    source = json_source(*values)
    with pytest.raises(BadRecordError) as caught:
        StreamColumns(plan(source), state).resolve(splits(source))
    assert str(caught.value) == (
        f"pipeline 'events', source 'orders': cannot infer columns from {problem}\n"
        "  Fix the records, or set the `format` that they have. If only some are bad, declare the "
        "columns with `schema`; `on_error` of the sink then applies."
    )


def test_records_without_fields_are_named_when_columns_are_inferred(state: PipelineState) -> None:
    source = json_source(b"{}", b'{"gone": null}')
    with pytest.raises(SchemaMismatchError) as caught:
        StreamColumns(plan(source), state).resolve(splits(source))
    assert str(caught.value) == (
        "pipeline 'events', source 'orders': cannot infer columns from record scripted[0]: it has "
        "no field with a value, and neither have those that follow\n"
        "  Declare the columns with `schema`, or check that `format` is right."
    )
