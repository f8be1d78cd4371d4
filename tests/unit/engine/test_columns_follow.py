"""Columns that follow the table, and those that become wider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.unit.engine.test_columns import TableOf, json_source, plan, splits

from icestream.engine.batch.columns import StreamColumns, remembered_columns
from icestream.engine.state import PipelineState

if TYPE_CHECKING:
    from pathlib import Path

INT, LONG = pa.int32(), pa.int64()


class Altered(TableOf):
    """A table that another tool alters."""

    def __init__(self, columns: pa.Schema, *, widens: bool = True) -> None:
        super().__init__(columns)
        self._widens = widens

    def alter(self, columns: pa.Schema) -> None:
        self._columns = columns

    def widens_columns(self) -> bool:
        return self._widens


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    state = PipelineState(tmp_path, "events")
    state.make()
    return state


def opened(
    table: Altered, state: PipelineState, transforms: tuple[Any, ...] = ()
) -> tuple[StreamColumns, pa.Schema | None]:
    source = json_source(b'{"id": 1}')
    columns = StreamColumns(plan(source, table, transforms), state)
    return columns, columns.resolve(splits(source))


def test_columns_follow_changes_by_other_tools(state: PipelineState) -> None:
    table = Altered(pa.schema([("id", INT), ("gone", LONG)]))
    columns, first = opened(table, state)
    table.alter(pa.schema([("id", LONG), ("new", pa.string())]))

    assert first == pa.schema([("id", INT), ("gone", LONG)])
    assert columns.resolve([]) == pa.schema([("id", LONG), ("new", pa.string())])


def test_grown_columns_are_not_in_the_table_yet(state: PipelineState) -> None:
    table = Altered(pa.schema([("id", INT)]))
    columns, _ = opened(table, state)
    columns.add({"new": pa.string()}, {"id": pa.field("id", LONG)})
    grown = pa.schema([("id", LONG), ("new", pa.string())])
    assert columns.resolve([]) == grown
    table.alter(grown)

    assert columns.resolve([]) == grown
    assert remembered_columns(state) == grown


def test_field_added_by_another_tool_keeps_its_type(state: PipelineState) -> None:
    table = Altered(pa.schema([("id", LONG)]))
    columns, _ = opened(table, state)
    table.alter(pa.schema([("id", LONG), ("price", pa.decimal128(9, 2))]))
    columns.add({"price": pa.float64()})

    assert columns.resolve([]) == pa.schema([("id", LONG), ("price", pa.decimal128(9, 2))])


def test_column_becomes_wider_and_optional_and_never_narrower(state: PipelineState) -> None:
    required = pa.field("id", LONG, nullable=False)
    table = Altered(pa.schema([required, ("n", INT)]))
    columns, _ = opened(table, state)
    columns.add({}, {"id": pa.field("id", INT), "n": pa.field("n", LONG)})

    assert columns.resolve([]) == pa.schema([("id", LONG), ("n", LONG)])


@pytest.mark.parametrize("widens", [True, False])
def test_only_a_table_that_may_be_changed_widens(state: PipelineState, widens: bool) -> None:
    columns, _ = opened(Altered(pa.schema([("id", INT)]), widens=widens), state)

    assert columns.widening is widens
