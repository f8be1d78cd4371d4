"""Changes as Spark's DDL, and as JSON."""

from __future__ import annotations

import pytest
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icestream.errors import SchemaMismatchError
from icestream.tables.schema import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    UpdateType,
    to_sql,
)


def test_every_change_has_a_statement_with_quoted_names() -> None:
    changes = [
        RenameColumn(("at", "lat"), "lati`tude"),
        UpdateType(("n",), IntegerType(), LongType()),
        UpdateType(("d",), DecimalType(5, 2), DecimalType(9, 2)),
        MakeOptional(("items", "element", "qty")),
        AddColumn(("new.field",), StringType(), "it's new"),
        DropColumn(("by", "value", "old")),
    ]

    assert to_sql(changes, "lake.db.my-table") == [
        "ALTER TABLE `lake`.`db`.`my-table` RENAME COLUMN `at`.`lat` TO `lati``tude`",
        "ALTER TABLE `lake`.`db`.`my-table` ALTER COLUMN `n` TYPE BIGINT",
        "ALTER TABLE `lake`.`db`.`my-table` ALTER COLUMN `d` TYPE DECIMAL(9,2)",
        "ALTER TABLE `lake`.`db`.`my-table` ALTER COLUMN `items`.`element`.`qty` DROP NOT NULL",
        "ALTER TABLE `lake`.`db`.`my-table` ADD COLUMN `new.field` STRING COMMENT 'it\\'s new'",
        "ALTER TABLE `lake`.`db`.`my-table` DROP COLUMN `by`.`value`.`old`",
    ]


def test_name_with_a_dot_can_be_given_as_parts() -> None:
    assert to_sql([DropColumn(("a",))], ["lake", "a.b", "t"]) == [
        "ALTER TABLE `lake`.`a.b`.`t` DROP COLUMN `a`"
    ]


def test_nested_types_are_written_out() -> None:
    kind = StructType(
        NestedField(1, "at", TimestamptzType(), required=True),
        NestedField(2, "local", TimestampType(), required=False, doc="no zone"),
        NestedField(
            3,
            "by",
            MapType(4, StringType(), 5, ListType(6, BinaryType(), False), False),
            required=False,
        ),
        NestedField(7, "key", UUIDType(), required=False),
    )

    assert to_sql([AddColumn(("x",), kind)], "t") == [
        "ALTER TABLE `t` ADD COLUMN `x` STRUCT<`at`: TIMESTAMP NOT NULL, "
        "`local`: TIMESTAMP_NTZ COMMENT 'no zone', `by`: MAP<STRING, ARRAY<BINARY>>, "
        "`key`: STRING>"
    ]


def test_type_that_spark_does_not_support_is_reported() -> None:
    kind = ListType(1, StructType(NestedField(2, "at", TimeType(), required=False)), False)
    with pytest.raises(SchemaMismatchError) as caught:
        to_sql([AddColumn(("shifts",), kind)], "t")

    assert str(caught.value) == (
        "column 'shifts.element.at' is time, a type that Spark SQL does not support\n"
        "  Let the pipeline change the table, or use Iceberg's API."
    )


def test_changes_are_rendered_as_json() -> None:
    changes = [
        AddColumn(("a", "b"), LongType(), "how many"),
        DropColumn(("c",)),
        RenameColumn(("d",), "e"),
        UpdateType(("n",), IntegerType(), LongType()),
        MakeOptional(("o",)),
    ]

    assert [change.to_json() for change in changes] == [
        {"kind": "add_column", "column": "a.b", "type": "long", "doc": "how many"},
        {"kind": "drop_column", "column": "c"},
        {"kind": "rename_column", "column": "d", "new_name": "e"},
        {"kind": "update_type", "column": "n", "from": "int", "to": "long"},
        {"kind": "make_optional", "column": "o"},
    ]
