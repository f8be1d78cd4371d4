"""Every type through the modes that replace rows, also where a value is taken from the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append
from tests.spark.test_types import FIRST, NOTHING, SCHEMA, SECOND, by_order

from icestream.contracts.changes import UNCHANGED_COLUMNS

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

MORE = [("clock", pa.time64("us")), ("fixed", pa.binary(4)), ("uuid", pa.uuid())]
ALL = pa.schema([*SCHEMA, *MORE])
EXTRA: dict[str, Any] = {"clock": 1, "fixed": b"abcd", "uuid": bytes(range(16))}
KEY = ("order id",)


def table(*rows: dict[str, Any], schema: pa.Schema = ALL) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def rows(lake: Lake) -> pa.Table:
    """Read by PyIceberg: Spark has no times of day, and refuses the table."""
    return lake.catalog.client().load_table(("db", "t")).scan().to_arrow()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"commit_mode": "upsert", "key_fields": KEY},
        {"commit_mode": "upsert", "key_fields": KEY, "partitioning": ("bucket(4, order id)",)},
        {"commit_mode": "overwrite", "partitioning": ("identity(order id)",)},
    ],
    ids=["upsert", "upsert of partitions", "overwrite"],
)
def test_row_of_every_type_is_replaced(lake: Lake, options: dict[str, Any], version: int) -> None:
    first, second = {**FIRST, "order id": 2}, {**NOTHING, "order id": 1}
    append(lake, lake.sink("t", format_version=version, **options), table(SECOND, schema=SCHEMA))
    sink = lake.sink("t", format_version=version, **options)
    append(lake, sink, table(first, second, schema=SCHEMA), 1)
    found = by_order(lake.rows("t"))
    assert found in ([second, first], [{**second, "items": []}, first])


@pytest.mark.parametrize("version", [2, 3])
def test_value_of_every_type_is_taken_from_the_table(lake: Lake, version: int) -> None:
    schema = ALL.append(pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string())))
    options = {"commit_mode": "upsert", "key_fields": KEY, "format_version": version}
    append(lake, lake.sink("t", **options), table({**FIRST, **EXTRA}, schema=schema))
    before = rows(lake)
    others = [name for name in ALL.names if name not in (*KEY, "text")]
    change = {"order id": 1, "text": "new", UNCHANGED_COLUMNS: others}
    append(lake, lake.sink("t", **options), table(change, schema=schema), 1)
    text = ALL.get_field_index("text")
    assert rows(lake) == before.set_column(
        text, before.schema.field(text), pa.array(["new"], before.schema.field(text).type)
    )
