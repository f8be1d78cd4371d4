"""Values of MySQL and MariaDB, as Debezium encodes them by the connector's settings."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from icestream.contracts.offset import BatchMark
from icestream.sources.kafka import KafkaOptions, KafkaSource
from icestream.sources.kafka.source import build_offset
from icestream.verify.debezium import TopicLag
from icestream.verify.debezium_mysql import MySqlColumn, arrow_type, column_problem, converter

OTHER_FORM = "which Debezium writes in another form"


@pytest.mark.parametrize(
    ("column", "in_lake", "problem"),
    [
        (MySqlColumn("c", "int", "int(11)"), pa.int32(), ""),
        (MySqlColumn("c", "tinyint", "tinyint(1)"), pa.bool_(), ""),
        (MySqlColumn("c", "bigint", "bigint(20) unsigned"), pa.decimal128(38, 0), ""),
        (MySqlColumn("c", "decimal", "decimal(10,2)", 10, 2), pa.decimal128(10, 2), ""),
        (MySqlColumn("c", "decimal", "decimal(10,2)", 10, 2), pa.string(), ""),
        (
            MySqlColumn("c", "decimal", "decimal(10,2)", 10, 2),
            pa.float64(),
            "decimal(10,2) in the database, double in the lake",
        ),
        (
            MySqlColumn("c", "varbinary", "varbinary(9)"),
            pa.string(),
            "varbinary(9) in the database, string in the lake",
        ),
        (
            MySqlColumn("c", "date", "date"),
            pa.int64(),
            "date in the database, int64 in the lake",
        ),
        (MySqlColumn("c", "json", "json"), pa.string(), f"json, {OTHER_FORM}"),
        (MySqlColumn("c", "point", "point"), pa.struct([]), f"point, {OTHER_FORM}"),
        (
            MySqlColumn("c", "float", "float"),
            pa.float32(),
            "float, of which snapshots and the binary log give different digits",
        ),
    ],
)
def test_columns_that_cannot_be_compared_have_a_reason(
    column: MySqlColumn, in_lake: pa.DataType, problem: str
) -> None:
    assert column_problem(column, in_lake) == problem


def test_fractions_that_debezium_cuts_are_not_compared() -> None:
    exact = MySqlColumn("c", "datetime", "datetime(6)", fraction=6)
    coarse = MySqlColumn("c", "datetime", "datetime(3)", fraction=3)
    kind = pa.timestamp("us")
    assert column_problem(exact, kind) == ""
    assert column_problem(coarse, kind, cuts_fractions=True) == ""
    assert column_problem(exact, kind, cuts_fractions=True) == (
        "datetime(6), which `time.precision.mode: connect` cuts to milliseconds"
    )


@pytest.mark.parametrize(
    ("column", "in_lake", "value", "converted"),
    [
        (MySqlColumn("c", "bigint", "bigint unsigned"), pa.int64(), 2**64 - 1, -1),
        (MySqlColumn("c", "bigint", "bigint unsigned"), pa.decimal128(38, 0), 2**63, 2**63),
        (MySqlColumn("c", "tinyint", "tinyint(1)"), pa.bool_(), 2, True),
        (MySqlColumn("c", "decimal", "decimal(9,2)", 9, 2), pa.string(), Decimal("1.50"), "1.50"),
        (MySqlColumn("c", "decimal", "decimal(65,0)", 65, 0), pa.string(), Decimal("1E+3"), "1000"),
        (
            MySqlColumn("c", "time", "time(3)"),
            pa.string(),
            -timedelta(hours=100, milliseconds=500),
            "-100:00:00.5",
        ),
        (MySqlColumn("c", "bit", "bit(1)", 1), pa.bool_(), b"\x00", False),
        (MySqlColumn("c", "bit", "bit(10)", 10), pa.binary(), b"\x02\x01", b"\x01\x02"),
        (MySqlColumn("c", "date", "date"), pa.date32(), "0000-00-00", None),
        (MySqlColumn("c", "date", "date"), pa.date32(), date(2024, 2, 29), date(2024, 2, 29)),
    ],
)
def test_values_become_what_the_lake_has(
    column: MySqlColumn, in_lake: pa.DataType, value: Any, converted: Any
) -> None:
    kind = arrow_type(column, in_lake)
    assert kind is not None
    assert converter(column, kind)([value, None]).to_pylist() == [converted, None]


def offset(**topics: int) -> dict[str, Any]:
    names = {name.replace("__", "."): number for name, number in topics.items()}
    return build_offset(dict.fromkeys(names, "t"), {(name, 0): n for name, n in names.items()})


class Topics(KafkaSource):
    """Topics whose ends a test sets."""

    end: dict[str, Any]

    def latest(self, current: Any) -> Any:
        return self.end or current


@pytest.mark.parametrize(
    ("end", "behind"),
    [
        ({}, {}),
        ({"shop__db__orders": 12, "shop__db__customers": 5}, {("db", "orders"): 2}),
        # No topic is named after `items`, so all of them count.
        ({"shop__db__orders": 10, "shop__db__customers": 6}, {("db", "items"): 1}),
    ],
)
def test_records_that_no_batch_has_are_counted_by_table(
    end: dict[str, int], behind: dict[tuple[str, str], int]
) -> None:
    source = Topics(KafkaOptions(brokers=("b:1",), topic_pattern="shop.*", format="debezium-json"))
    source.end = offset(**end) if end else {}
    # The table of customers was last written by an older batch than the one of orders.
    marks = {
        ("db", "orders"): offset(shop__db__orders=10, shop__db__customers=5),
        ("db", "customers"): offset(shop__db__orders=1, shop__db__customers=5),
    }
    lakes: Any = {
        name: SimpleNamespace(mark=BatchMark("p", "q", 0, "kafka", {}, mark))
        for name, mark in marks.items()
    }
    pending = [*behind] or [("db", "orders"), ("db", "customers")]
    assert TopicLag(source, lakes).behind(dict.fromkeys(pending, marks["db", "customers"])) == (
        behind
    )
