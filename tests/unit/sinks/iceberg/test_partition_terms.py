from __future__ import annotations

import pytest

from icestream.errors import PlanError
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.partition_terms import (
    PartitionTerm,
    SortTerm,
    parse_partition_term,
    parse_partition_terms,
    parse_sort,
    parse_sort_term,
)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("days(ts)", PartitionTerm("day", None, "ts")),
        ("day( ts )", PartitionTerm("day", None, "ts")),
        ("hours(ts)", PartitionTerm("hour", None, "ts")),
        ("months(ts)", PartitionTerm("month", None, "ts")),
        ("YEARS(ts)", PartitionTerm("year", None, "ts")),
        ("bucket(16, id)", PartitionTerm("bucket", 16, "id")),
        ("truncate(4,s)", PartitionTerm("truncate", 4, "s")),
        ("identity(x)", PartitionTerm("identity", None, "x")),
        ("country", PartitionTerm("identity", None, "country")),
        ("days(event.ts)", PartitionTerm("day", None, "event.ts")),
    ],
)
def test_partition_terms(text: str, term: PartitionTerm) -> None:
    assert parse_partition_term(text) == term


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bucket(id)", "'bucket(id)' needs a whole number above 0 before the column"),
        ("bucket(0, id)", "'bucket(0, id)' needs a whole number above 0 before the column"),
        ("bucket(x, id)", "'bucket(x, id)' needs a whole number above 0 before the column"),
        ("days(3, ts)", "'days(3, ts)' has a width, which 'day' does not take"),
        ("days(ts", "'days(ts' is not a partition transform"),
        ("a b", "'a b' is not a partition transform"),
        ("weeks(ts)", "no partition transform is called 'weeks'"),
    ],
)
def test_invalid_terms_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_partition_term(text)
    assert caught.value.what == message


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({}, []),
        ({"partitioning": "none"}, []),
        ({"partitioning": "table_default"}, []),
        (
            {"partitioning": "identity", "partition_fields": ["a", "b"]},
            [PartitionTerm("identity", None, "a"), PartitionTerm("identity", None, "b")],
        ),
        (
            {"partitioning": "bucket", "partition_fields": ["a"], "num_buckets": 8},
            [PartitionTerm("bucket", 8, "a")],
        ),
        (
            {"partitioning": "time", "partition_fields": ["a"]},
            [PartitionTerm("day", None, "a")],
        ),
        (
            {"partitioning": "time", "partition_fields": ["a"], "time_granularity": "hour"},
            [PartitionTerm("hour", None, "a")],
        ),
        ({"partitioning": ["days(a)"]}, [PartitionTerm("day", None, "a")]),
    ],
)
def test_partitioning_modes(options: dict[str, object], terms: list[PartitionTerm]) -> None:
    assert parse_partition_terms(IcebergOptions.model_validate(options)) == terms


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("id", SortTerm("id", descending=False, nulls_first=True)),
        ("id asc", SortTerm("id", descending=False, nulls_first=True)),
        ("ts DESC", SortTerm("ts", descending=True, nulls_first=False)),
        ("ts desc nulls first", SortTerm("ts", descending=True, nulls_first=True)),
        ("ts nulls last", SortTerm("ts", descending=False, nulls_first=False)),
    ],
)
def test_sort_terms(text: str, term: SortTerm) -> None:
    assert parse_sort_term(text) == term


def test_sort_order_keeps_its_order() -> None:
    options = IcebergOptions.model_validate({"sort_order": ["b", "a desc"]})
    assert [str(term) for term in parse_sort(options)] == [
        "b asc nulls first",
        "a desc nulls last",
    ]
