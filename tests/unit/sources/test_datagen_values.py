"""Every type of column gets values, and nested ones too."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.errors import PlanError
from icestream.sources.datagen.values import RowRandom, make_rows

TIMES_US = np.arange(1_700_000_000_000_000, 1_700_000_000_001_000, 10, dtype=np.int64)
POINT = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])


def rows(schema: pa.Schema, low: int = 0, high: int = 100, seed: int = 42) -> pa.RecordBatch:
    numbers = np.arange(low, high, dtype=np.int64)
    return make_rows(schema, RowRandom(seed, numbers), TIMES_US[low:high])


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(4, 4),
        pa.decimal128(38, 10),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.binary(16),
        pa.binary(5),
        pa.date32(),
        pa.time64("us"),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("ns", tz="UTC"),
        pa.list_(pa.int64()),
        pa.map_(pa.string(), pa.int32()),
        POINT,
        pa.list_(POINT),
        pa.map_(pa.string(), pa.list_(POINT)),
    ],
    ids=str,
)
def test_column_of_every_type_has_reproducible_values(kind: pa.DataType) -> None:
    schema = pa.schema([("a", kind)])

    whole = rows(schema)
    whole.validate(full=True)

    assert whole.schema.equals(schema)
    assert whole.num_rows == 100
    assert whole.column("a").null_count == 0
    assert rows(schema, 40, 60).to_pylist() == whole.to_pylist()[40:60]


def test_columns_are_unrelated_to_each_other() -> None:
    table = rows(pa.schema([("a", pa.int64()), ("b", pa.int64())]))

    assert table.column("a").to_pylist() != table.column("b").to_pylist()


def test_list_items_differ() -> None:
    lists = rows(pa.schema([("a", pa.list_(pa.int64()))])).column("a").to_pylist()

    assert {len(items) for items in lists} == {1, 2, 3}
    assert len({item for items in lists for item in items}) > 100


def test_type_without_values_is_refused_by_name() -> None:
    with pytest.raises(PlanError) as caught:
        rows(pa.schema([("wait", pa.duration("s"))]))

    assert str(caught.value) == "datagen cannot generate type 'duration[s]' of column 'wait'"
