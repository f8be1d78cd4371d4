"""Columns whose names hold what SQL reads as something else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.testing.scripted import ScriptedSource
from icestream.transforms.cast import CastOptions, CastTransform

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


@pytest.mark.parametrize("name", ["a.b", "a`b", "a b"])
def test_column_of_any_name_is_cast(lake: Lake, name: str) -> None:
    source = ScriptedSource(schema=pa.schema([(name, pa.string())]))
    source.append_rows([{name: "7"}])
    cast = CastTransform(CastOptions(columns={name: "bigint"}))
    lake.run(replace(lake.plan(source), transforms=(cast,)))

    assert lake.rows() == [{name: 7}]
