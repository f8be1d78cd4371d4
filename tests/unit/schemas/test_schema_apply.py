"""Changes applied to a schema."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from icestream.tables.schema import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SchemaChange,
    UpdateType,
    apply,
    arrow_to_iceberg,
)

SCHEMA = arrow_to_iceberg(
    pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            ("at", pa.struct([("lat", pa.float64())])),
            ("items", pa.list_(pa.struct([("sku", pa.string())]))),
            ("by", pa.map_(pa.string(), pa.struct([("n", pa.int32())]))),
        ]
    )
)


def by_name(schema: Schema) -> dict[str, int]:
    return {schema.find_column_name(key) or "": key for key in schema.field_ids}


def test_columns_keep_their_ids_and_new_ones_get_higher_ids() -> None:
    before = by_name(SCHEMA)
    changed = apply(
        SCHEMA,
        [
            RenameColumn(("at", "lat"), "latitude"),
            UpdateType(("id",), IntegerType(), LongType()),
            UpdateType(("by", "value", "n"), IntegerType(), LongType()),
            MakeOptional(("id",)),
            AddColumn(("items", "element", "qty"), LongType()),
            AddColumn(("new",), StructType(NestedField(1, "x", StringType(), required=False))),
            DropColumn(("items", "element", "sku")),
        ],
        last_column_id=50,
    )

    after = by_name(changed)
    assert after["at.latitude"] == before["at.lat"]
    assert {name: after[name] for name in ("id", "items", "by.value.n")} == {
        name: before[name] for name in ("id", "items", "by.value.n")
    }
    assert (after["items.element.qty"], after["new"], after["new.x"]) == (51, 52, 53)
    assert "items.element.sku" not in after
    assert changed.find_type("id") == LongType()
    assert not changed.find_field("id").required
    assert changed.find_type("by.value.n") == LongType()


def test_identifier_fields_are_kept() -> None:
    keyed = Schema(*SCHEMA.fields, identifier_field_ids=[1])

    assert apply(keyed, [RenameColumn(("id",), "key")]).identifier_field_names() == {"key"}
    assert apply(keyed, [DropColumn(("id",))]).identifier_field_ids == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (AddColumn(("id",), LongType()), "column 'id' already exists"),
        (AddColumn(("id", "x"), LongType()), "column 'id' is not a struct"),
        (DropColumn(("no",)), "there is no column 'no'"),
        (DropColumn(("at", "no")), "there is no column 'no'"),
        (DropColumn(("items", "no")), "there is no column 'no'"),
        (DropColumn(("items", "element")), "'element' can't be dropped from its list or map"),
        (DropColumn(("by", "value")), "'value' can't be dropped from its list or map"),
    ],
)
def test_change_of_a_missing_column_is_refused(change: SchemaChange, what: str) -> None:
    with pytest.raises(ValueError, match="^" + what.replace("'", "'") + "$"):
        apply(SCHEMA, [change])
