"""Whatever two schemas look like: after the changes between them, the rows fit."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import SchemaMismatchError
from icestream.tables.schema import (
    AddColumn,
    apply,
    arrow_to_iceberg,
    compare,
    diff,
    is_compatible,
    to_sql,
)

NAMES = st.sampled_from(["a", "b", "c", "d.e", "ü"])
LEAVES = st.sampled_from(
    [
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(9, 2),
        pa.decimal128(18, 2),
        pa.string(),
        pa.timestamp("us", tz="UTC"),
    ]
)


def fields(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(pa.field, NAMES, kinds, nullable=st.booleans())
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda each: each.name)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        fields(inner).map(pa.struct),
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


KINDS = st.recursive(LEAVES, nested, max_leaves=5)
SCHEMAS = fields(KINDS).map(pa.schema)
WIDTHS = [
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(9, 2), pa.decimal128(18, 2)),
]


def other_width(draw: st.DrawFn, kind: pa.DataType) -> pa.DataType:
    """Return a type that is as wide, wider or narrower, with other members inside."""
    for pair in WIDTHS:
        if kind in pair:
            return draw(st.sampled_from(pair))
    if pa.types.is_struct(kind):
        return pa.struct(other_columns(draw, [kind.field(at) for at in range(kind.num_fields)]))
    if pa.types.is_list(kind):
        return pa.list_(other_width(draw, kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, other_width(draw, kind.item_type))
    return kind


def other_columns(draw: st.DrawFn, columns: list[pa.Field]) -> list[pa.Field]:
    stay = [column for column in columns if draw(st.booleans())]
    changed = [
        pa.field(column.name, other_width(draw, column.type), nullable=draw(st.booleans()))
        for column in stay
    ]
    known = {column.name for column in columns}
    more = [column for column in draw(fields(KINDS)) if column.name not in known]
    return draw(st.permutations([*changed, *more])) or columns


@st.composite
def tables_and_streams(draw: st.DrawFn) -> tuple[pa.Schema, pa.Schema]:
    """Return a table, and a stream derived from it by changes that a table can follow."""
    table = draw(SCHEMAS)
    return table, pa.schema(other_columns(draw, list(table)))


@settings(deadline=None)
@given(both=tables_and_streams(), declared=st.booleans())
def test_rows_fit_the_table_after_the_changes(
    both: tuple[pa.Schema, pa.Schema], declared: bool
) -> None:
    before, rows = map(arrow_to_iceberg, both)
    after = apply(before, diff(before, rows, declared=declared))

    assert is_compatible(after, rows)
    assert diff(after, rows, declared=declared) == [], "applied changes are not repeated"
    assert is_compatible(before, rows) == (not diff(before, rows))


@settings(deadline=None)
@given(both=tables_and_streams(), declared=st.booleans())
def test_columns_that_stay_keep_their_ids(
    both: tuple[pa.Schema, pa.Schema], declared: bool
) -> None:
    before = arrow_to_iceberg(both[0])
    changes = diff(before, both[1], declared=declared)
    after = apply(before, changes)

    assert len(to_sql(changes, "lake.db.t")) == len(changes)
    for field_id in before.field_ids:
        name = after.find_column_name(field_id)
        assert name is None or name == before.find_column_name(field_id)
    fresh = set(after.field_ids) - set(before.field_ids)
    assert all(field_id > before.highest_field_id for field_id in fresh)
    assert len(fresh) >= len([each for each in changes if isinstance(each, AddColumn)])


@settings(deadline=None)
@given(table=SCHEMAS, stream=SCHEMAS, declared=st.booleans())
def test_any_two_schemas_fit_or_the_reason_is_reported(
    table: pa.Schema, stream: pa.Schema, declared: bool
) -> None:
    before = arrow_to_iceberg(table)
    comparison = compare(before, stream, declared=declared)
    if comparison.problems:
        with pytest.raises(SchemaMismatchError):
            diff(before, stream, declared=declared)
    else:
        assert is_compatible(apply(before, comparison.changes), stream)
