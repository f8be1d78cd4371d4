"""Whatever a file holds, its metrics let no reader skip a row and no DELETE drop one too many."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, _StrictMetricsEvaluator
from pyiceberg.manifest import DataFile, FileFormat
from tests.fixtures.table_folder import TableFolder

import icestream.sinks.iceberg.writer as writer_module
from icestream.schemas.comparison import arrow_to_iceberg

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from icestream.contracts.sink import WrittenFile

# Their constructors are pydantic's to a type checker, and take no positional arguments.
FILTERS: Any = expressions

Groups = list[list[Any]]
# A type, the values of each row group, and other values to compare with.
Column = tuple[pa.DataType, Groups, list[Any]]

# Characters around the surrogates, which no valid text holds, and the last one, which has no
# successor: the upper bound of a long text is its beginning with one character raised.
hostile = st.text(st.sampled_from("a\x00\x7f\ud7ff\ue000\uffff\U0010ffff"), max_size=20)
texts = st.text(max_size=20) | hostile | st.builds(lambda text: text * 700, hostile)
raw = st.binary(max_size=20) | st.builds(lambda n: b"\xff" * n, st.sampled_from([16, 17, 5_000]))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(
        lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale))
    )


COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan])),
    (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan])),
    (pa.decimal128(7, 2), decimals(7, 2)),
    (pa.decimal128(18, 4), decimals(18, 4)),
    (pa.decimal128(38, 10), decimals(38, 10)),
    (pa.string(), texts),
    (pa.binary(), raw),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.uuid(), st.uuids()),
    # As numbers: PostgreSQL has dates and timestamps that Python's types cannot hold.
    (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.time64("us"), st.integers(0, 86_400_000_000 - 1)),
    (pa.timestamp("us"), st.integers(-(2**63), 2**63 - 1)),
    (pa.timestamp("us", tz="UTC"), st.integers(-(2**63), 2**63 - 1)),
    (pa.timestamp("ns"), st.integers(-(2**63), 2**63 - 1)),
    (pa.timestamp("ns", tz="UTC"), st.integers(-(2**63), 2**63 - 1)),
]
columns = st.sampled_from(COLUMNS).flatmap(
    lambda column: st.tuples(
        st.just(column[0]),
        st.lists(st.lists(st.none() | column[1], min_size=1, max_size=4), min_size=1, max_size=3),
        st.lists(column[1], max_size=2),
    )
)


def table_of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("v", kind), ("s", pa.struct([("v", kind)])), ("l", pa.list_(kind))])


def write(kind: pa.DataType, groups: Groups) -> WrittenFile:
    """Write one file with a row group for each list of values, alone and inside other types."""
    table = table_of(kind)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(writer_module, "ROW_GROUP_BYTES", 1)
        writer = TableFolder(Path(folder)).writer(table)
        batches = []
        for group in groups:
            values = pa.array(group, kind)
            struct = pa.StructArray.from_arrays([values], fields=[pa.field("v", kind)])
            offsets = pa.array(range(len(values) + 1), pa.int32())
            lists = pa.ListArray.from_arrays(offsets, values)
            batches.append(pa.record_batch([values, struct, lists], schema=table))
        [file] = writer.write(batches)
    return file


def data_file(file: WrittenFile) -> DataFile:
    def metric(name: str) -> dict[int, Any]:
        entries = file.metadata[name]
        return dict(zip(entries["keys"], entries["values"], strict=True))

    def bounds(name: str) -> dict[int, bytes]:
        return {key: bytes.fromhex(value) for key, value in metric(name).items()}

    return DataFile.from_args(
        file_path=file.metadata["file-path"],
        file_format=FileFormat.PARQUET,
        record_count=file.rows,
        value_counts=metric("value-counts"),
        null_value_counts=metric("null-value-counts"),
        nan_value_counts=metric("nan-value-counts"),
        lower_bounds=bounds("lower-bounds"),
        upper_bounds=bounds("upper-bounds"),
    )


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


class Readers:
    """What Iceberg's evaluators conclude from a file's metrics."""

    def __init__(self, file: WrittenFile, kind: pa.DataType) -> None:
        # PyIceberg has no literals in nanoseconds; as numbers, microseconds compare alike.
        if pa.types.is_timestamp(kind):
            kind = pa.timestamp("us", kind.tz)
        self.file, self.schema = data_file(file), arrow_to_iceberg(table_of(kind), 3)

    def may_match(self, filter_: BooleanExpression) -> bool:
        return _InclusiveMetricsEvaluator(self.schema, filter_).eval(self.file)

    def must_all_match(self, filter_: BooleanExpression) -> bool:
        return _StrictMetricsEvaluator(self.schema, filter_).eval(self.file)


@given(columns)
@example((pa.string(), [["p-1" * 2_000, "p-1"], ["a"]], []))
@example((pa.string(), [["a" * 15 + "\ud7ff" + "b"]], []))
@example((pa.string(), [["\U0010ffff" * 17]], []))
@example((pa.float64(), [[1.0, math.nan, 3.0]], [5.0]))
@example((pa.float64(), [[0.0], [-0.0, None], [None]], []))
@example((pa.date32(), [[3_000_000]], []))
@example((pa.timestamp("ns"), [[1]], []))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_readers_skip_no_row_and_deletes_drop_no_other_row(column: Column) -> None:
    kind, groups, others = column
    readers = Readers(write(kind, groups), kind)
    values = [value for group in groups for value in group]
    present = [value for value in values if value is not None]
    numbers = [value for value in present if not is_nan(value)]

    def has_literal(value: Any) -> bool:
        # PyIceberg takes an infinite literal as out of range for a `float` column.
        return not is_nan(value) and not (kind == pa.float32() and math.isinf(value))

    for name in ("v", "s.v"):
        for number in filter(has_literal, numbers):
            assert readers.may_match(FILTERS.EqualTo(name, as_literal(number))), number
            if kind == pa.string():
                assert readers.may_match(FILTERS.StartsWith(name, number[:20])), number
        for number in filter(has_literal, (*numbers, *others)):
            if readers.must_all_match(FILTERS.LessThan(name, as_literal(number))):
                assert all(value is not None and value < number for value in values)
            if readers.must_all_match(FILTERS.GreaterThan(name, as_literal(number))):
                assert all(value is not None and value > number for value in values)
        assert readers.may_match(FILTERS.IsNull(name)) or len(present) == len(values)
        assert readers.may_match(FILTERS.NotNull(name)) or not present
        if pa.types.is_floating(kind):
            assert readers.may_match(FILTERS.IsNaN(name)) or len(numbers) == len(present)
            assert readers.may_match(FILTERS.NotNaN(name)) or len(numbers) == len(values)


def as_literal(value: Any) -> Any:
    return literal(value.bytes if isinstance(value, uuid.UUID) else value)


@given(columns)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_counts_are_correct(column: Column) -> None:
    kind, groups, _ = column
    file, schema = data_file(write(kind, groups)), arrow_to_iceberg(table_of(kind), 3)
    values = [value for group in groups for value in group]

    for name in ("v", "s.v"):
        field = schema.find_field(name).field_id
        assert file.value_counts[field] == len(values)
        assert file.null_value_counts.get(field) == (
            None if kind == pa.uuid() else values.count(None)
        )
    nan_counts = {1: sum(map(is_nan, values))} if pa.types.is_floating(kind) else {}
    assert file.nan_value_counts == nan_counts
