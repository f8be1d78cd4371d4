"""Partitions by name: read, typed by the table's spec, and turned into an expression."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icestream.errors import PlanError, SchemaMismatchError
from icestream.sinks.iceberg.partition_terms import (
    parse_partition_name,
    partition_filter,
    partition_name,
    split_partition_name,
)

SCHEMA = Schema(
    NestedField(1, "year", LongType()),
    NestedField(2, "country", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "price", DecimalType(9, 2)),
    NestedField(5, "born", DateType()),
    NestedField(6, "gone", BooleanType()),
)


def spec(*terms: tuple[int, str, str]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(source, 1000 + index, parse_transform(transform), name)
            for index, (source, transform, name) in enumerate(terms)
        )
    )


@pytest.mark.parametrize(
    ("source", "transform", "text", "value"),
    [
        (1, "identity", "2024", 2024),
        (2, "identity", "de", "de"),
        (2, "identity", "2024", "2024"),
        (2, "identity", "a%2Fb=c", "a/b=c"),
        (2, "identity", "", ""),
        (2, "identity", "null", None),
        (2, "truncate[2]", "de", "de"),
        (1, "truncate[10]", "2020", 2020),
        (1, "bucket[16]", "7", 7),
        (3, "year", "2024", 54),
        (3, "month", "2024-10", 657),
        (3, "day", "2024-10-31", "2024-10-31"),
        (3, "hour", "1970-01-02-03", 27),
        (4, "identity", "1.50", "1.50"),
        (5, "identity", "2024-10-31", "2024-10-31"),
        (6, "identity", "true", True),
    ],
)
def test_value_is_typed_by_the_spec(source: int, transform: str, text: str, value: Any) -> None:
    named = parse_partition_name(f"p={text}", spec((source, transform, "p")), SCHEMA)

    assert named.values == {"1000": value}
    assert named.holds({} if value is None else {"1000": value})
    assert not named.holds({"1000": "another"})


@pytest.mark.parametrize(
    ("transform", "value", "shown"),
    [
        ("year", 54, "2024"),
        ("month", 657, "2024-10"),
        ("day", "2024-10-31", "2024-10-31"),
        ("hour", 27, "1970-01-02-03"),
        ("identity", None, "null"),
        ("year", -1, "1969"),
        ("month", -1, "1969-12"),
    ],
)
def test_displayed_name_reads_back_as_the_same_partition(
    transform: str, value: Any, shown: str
) -> None:
    by = spec((3, transform, "p"))
    partition = {} if value is None else {"1000": value}

    assert partition_name(by, partition) == f"p={shown}"
    assert parse_partition_name(f"p={shown}", by, SCHEMA).holds(partition)


def test_field_omitted_from_a_name_matches_anything() -> None:
    by = spec((1, "identity", "year"), (2, "identity", "country"))
    named = parse_partition_name("country=de", by, SCHEMA)

    assert named.holds({"1000": 2023, "1001": "de"})
    assert named.holds({"1001": "de"})
    assert not named.holds({"1000": 2023, "1001": "fr"})


def test_fields_are_read_in_any_order_and_with_slashes_around() -> None:
    assert split_partition_name("/b=2/a=1/") == {"b": "2", "a": "1"}


@pytest.mark.parametrize("name", ["", "2024", "=2024", "year=2024//month=10"])
def test_invalid_partition_name_is_refused(name: str) -> None:
    with pytest.raises(PlanError) as caught:
        split_partition_name(name)
    assert str(caught.value) == (
        f"{name!r} is not a partition name\n"
        "  Write e.g. `year=2024/month=10`, with `%2F` for a slash in a value."
    )


def test_field_given_twice_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        split_partition_name("a=1/a=2")
    assert caught.value.what == "'a=1/a=2' has field 'a' twice"


def test_unknown_field_is_reported_with_the_known_ones() -> None:
    by = spec((1, "identity", "year"), (2, "identity", "country"))
    with pytest.raises(SchemaMismatchError) as caught:
        parse_partition_name("yaer=2024", by, SCHEMA)
    assert str(caught.value) == (
        "partition 'yaer=2024': the table has no partition field 'yaer'\n"
        "  Its partition fields: year, country."
    )


def test_unpartitioned_table_has_no_named_partitions() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        parse_partition_name("year=2024", PartitionSpec(), SCHEMA)
    assert str(caught.value) == (
        "the table is not partitioned, so it has no partition 'year=2024'\n"
        "  Use `commit_mode: overwrite_table`, or partition the table."
    )


@pytest.mark.parametrize(
    ("source", "transform", "text", "wanted"),
    [
        (1, "identity", "x", "a long"),
        (4, "identity", "1.234", "a decimal(9, 2)"),
        (5, "identity", "31.10.2024", "a date"),
        (1, "bucket[16]", "-1", "the number of a bucket"),
        (3, "year", "24", "of the form '2024'"),
        (3, "month", "2024-13", "of the form '2024-10'"),
        (3, "day", "2024-02-30", "of the form '2024-10-31'"),
        (3, "hour", "2024-10-31", "of the form '2024-10-31-23'"),
    ],
)
def test_incompatible_value_is_reported(
    source: int, transform: str, text: str, wanted: str
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        parse_partition_name(f"p={text}", spec((source, transform, "p")), SCHEMA)
    assert caught.value.what == f"partition 'p={text}': field 'p' must be {wanted}, found {text!r}"


def test_expression_matches_each_name_by_all_its_fields() -> None:
    by = spec((3, "day", "ts_day"), (2, "identity", "country"))
    names = [parse_partition_name(name, by, SCHEMA) for name in ("ts_day=2024-10-31/country=null",)]

    assert json.loads(partition_filter(names, by, SCHEMA)) == {
        "type": "and",
        "left": {
            "type": "eq",
            "term": {"type": "transform", "transform": "day", "term": "ts"},
            "value": "2024-10-31",
        },
        "right": {"type": "is-null", "term": "country"},
    }


def test_expression_of_many_names_is_shallow() -> None:
    by = spec((1, "identity", "year"))
    many = partition_filter(
        [parse_partition_name(f"year={n}", by, SCHEMA) for n in range(5000)], by, SCHEMA
    )

    depth = deepest = 0
    for character in many:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    assert deepest <= 14
