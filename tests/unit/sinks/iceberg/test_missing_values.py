"""Which rows lack a value that the table can't do without."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.sinks.iceberg.missing_values import missing_values
from icestream.sinks.iceberg.options import IcebergOptions

TABLE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType(), required=True),
    NestedField(3, "note", StringType(), required=False),
)
NO_NAME = "column 'name' is required by the table, and the row has no value for it"
NO_KEY = "column 'id' is part of the key, and the row has no value for it"
NO_AGE = "column 'at' is the sequence field, and the row has no value for it"
ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("note", pa.string()),
        ("at", pa.int64()),
        ("op", pa.string()),
        (UNCHANGED_COLUMNS, pa.list_(pa.string())),
    ]
)


def options(**given: Any) -> IcebergOptions:
    return IcebergOptions(namespace=("db",), table="t", **given)


def upsert(**given: Any) -> IcebergOptions:
    return options(
        commit_mode="upsert", key_fields=("id",), sequence_field="at", op_field="op", **given
    )


def reasons(settings: IcebergOptions, *rows: dict[str, Any]) -> list[str | None] | None:
    check = pickle.loads(pickle.dumps(missing_values(TABLE, settings)))  # noqa: S301
    found = check(pa.RecordBatch.from_pylist(list(rows), schema=ROWS))
    return None if found is None else found.to_pylist()


def test_row_without_a_value_that_the_table_requires_is_bad() -> None:
    assert reasons(options(), {"id": 1, "name": "a"}, {"id": 2}) == [None, NO_NAME]
    assert reasons(options(), {"id": 1, "name": "a"}) is None


def test_first_reason_of_a_row_is_reported() -> None:
    no_id = "column 'id' is required by the table, and the row has no value for it"
    assert reasons(options(), {}, {"id": 1}) == [no_id, NO_NAME]


def test_table_without_required_columns_accepts_any_row() -> None:
    assert missing_values(None, options()) is None
    assert missing_values(Schema(TABLE.fields[2]), options()) is None


def test_column_that_no_row_has_is_left_to_the_writer() -> None:
    check = missing_values(TABLE, options())
    assert check is not None
    assert check(pa.RecordBatch.from_pylist([{"id": 1}])) is None


def test_change_without_its_key_or_sequence_is_bad() -> None:
    assert reasons(upsert(), {"name": "a", "at": 1}, {"id": 1, "name": "a"}) == [NO_KEY, NO_AGE]


def test_delete_needs_its_key_and_nothing_else() -> None:
    delete = {"at": 1, "op": "delete"}
    assert reasons(upsert(), {"id": 1, **delete}) is None
    assert reasons(upsert(), delete) == [NO_KEY]
    assert reasons(upsert(delete_mode="ignore"), delete, {"id": 1, "at": 1}) == [None, NO_NAME]


def test_value_that_was_not_sent_is_not_missing() -> None:
    row = {"id": 1, "at": 1}
    assert reasons(
        upsert(), {**row, UNCHANGED_COLUMNS: ["name"]}, {**row, UNCHANGED_COLUMNS: []}
    ) == [None, NO_NAME]
