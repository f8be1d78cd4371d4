"""Columns whose names hold what SQL reads as something else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.errors import SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.schemas.column_names import DIFFER_IN_CASE
from icestream.testing.scripted import ScriptedSource
from icestream.transforms.cast import CastOptions, CastTransform
from icestream.transforms.rename import RenameOptions, RenameTransform

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

SHUFFLED = [n * 7 % 20 for n in range(20)]


def values_in_files(lake: Lake) -> list[list[Any]]:
    """Return the first column of each data file, in the order of the file."""
    table = lake.catalog.client().load_table(("db", "events"))
    assert table.sort_order().order_id == 1
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return [pq.read_table(path).column(0).to_pylist() for path in paths]


def test_rows_are_sorted_by_a_column_with_a_dot_in_its_name(lake: Lake) -> None:
    source = ScriptedSource(schema=pa.schema([("a.b", pa.int64()), ("n", pa.int64())]))
    source.append_rows({"a.b": value, "n": 0} for value in SHUFFLED)
    lake.run(lake.plan(source, sort_order=["a.b desc"]))

    files = values_in_files(lake)
    assert sorted(value for file in files for value in file) == list(range(20))
    assert files == [sorted(file, reverse=True) for file in files]


def test_rows_are_sorted_by_a_field_of_a_struct(lake: Lake) -> None:
    source = ScriptedSource(schema=pa.schema([("a", pa.struct([("b", pa.int64())]))]))
    source.append_rows({"a": {"b": value}} for value in SHUFFLED)
    lake.run(lake.plan(source, sort_order=["a.b desc"]))

    files = [[value["b"] for value in file] for file in values_in_files(lake)]
    assert sorted(value for file in files for value in file) == list(range(20))
    assert files == [sorted(file, reverse=True) for file in files]


def test_column_that_differs_from_another_only_in_case_is_refused(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values([b'{"id": 1, "name": "a"}'])
    lake.run(lake.plan(source))
    source.append_values([b'{"id": 2, "Name": "b"}'])
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(source))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: columns 'Name' and 'name' of the stream "
        f"differ only in case\n  {DIFFER_IN_CASE}"
    )
    assert lake.sql("SELECT id, name FROM lake.db.events") == [(1, "a")]


def test_stream_in_another_case_continues_once_its_column_is_renamed(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql("CREATE TABLE lake.db.events (id bigint, name string) USING iceberg")
    source = ScriptedSource(schema=pa.schema([("id", pa.int64()), ("NAME", pa.string())]))
    source.append_rows([{"id": 1, "NAME": "a"}])
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(source))
    rename = RenameTransform(RenameOptions(columns={"NAME": "name"}))
    lake.run(replace(lake.plan(source), transforms=(rename,)))

    assert caught.value.what == (
        "column 'NAME' of the stream and column 'name' of the table differ only in case"
    )
    assert lake.rows() == [{"id": 1, "name": "a"}]


def test_table_with_names_that_differ_only_in_case_is_not_created(lake: Lake) -> None:
    source = ScriptedSource(schema=pa.schema([("id", pa.int64()), ("ID", pa.int64())]))
    source.append_rows([{"id": 1, "ID": 2}])
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(source))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: columns 'ID' and 'id' of the stream "
        f"differ only in case\n  {DIFFER_IN_CASE}"
    )
    assert lake.catalog.find_table(("db", "events")) is None


def test_records_whose_fields_have_clashing_names_are_dead_letters(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(
        [
            b'{"id": 1, "s": {"a": 1}}',
            b'{"id": 2, "s": {"a": 1, "A": 2}}',
            b'{"id": 3, "a b": 1}',
        ]
    )
    lake.run(lake.plan(source, on_error="dead_letter"))
    source.append_values(
        [
            b'{"id": 4, "a_x20b": 1}',
            b'{"id": 5, "": 1}',
            b'{"id": 6, "a b": 2}',
            b'{"id": 7, "s": {"a": 3, "A": 4}}',
            b'{"id": 8, "s": {"a": 3, "z": null}}',
            b'{"id": 9, "l": [1], "l.element": 2}',
        ]
    )
    lake.run(lake.plan(source, on_error="dead_letter"))

    found = lake.sql("SELECT id, s.A, `a b` FROM lake.db.events ORDER BY id")
    assert [tuple(row) for row in found] == [
        (1, 1, None),
        (3, None, 1),
        (6, None, 2),
        (8, 3, None),
    ]
    use = "use a `rename` or `drop` transform"
    assert sorted(row["reason"] for row in lake.rows("dead")) == [
        f"a field has no name; {use}",
        f"column 'a_x20b' and column 'a b' have the same name in data files; {use}",
        *[f"column 's.A' differs from column 's.a' only in case; {use}"] * 2,
        f"columns 'l.element' and 'l' -> 'element' have the same full name; {use}",
    ]


@pytest.mark.parametrize("name", ["a.b", "a`b", "a b"])
def test_column_of_any_name_is_cast(lake: Lake, name: str) -> None:
    source = ScriptedSource(schema=pa.schema([(name, pa.string())]))
    source.append_rows([{name: "7"}])
    cast = CastTransform(CastOptions(columns={name: "bigint"}))
    lake.run(replace(lake.plan(source), transforms=(cast,)))

    assert lake.rows() == [{name: 7}]
