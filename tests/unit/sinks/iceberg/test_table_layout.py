"""Partition specs and sort orders from the words of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from icestream.errors import SchemaMismatchError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg.partition_terms import parse_partition_term, parse_sort_term
from icestream.sinks.iceberg.partitioning import describe_spec, partition_spec, sort_order

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = arrow_to_iceberg(
    pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us", tz="UTC")),
            ("country", pa.string()),
            ("at", pa.struct([("zone", pa.string())])),
            ("flag", pa.bool_()),
        ]
    ),
    3,
)


def test_spec_names_its_fields_as_spark_would() -> None:
    terms = ["days(ts)", "bucket(16, id)", "truncate(2, country)", "at.zone", "hours(ts)", "flag"]
    spec = partition_spec(SCHEMA, [parse_partition_term(term) for term in terms])

    assert [
        (field.name, str(field.transform), field.source_id, field.field_id) for field in spec.fields
    ] == [
        ("ts_day", "day", 2, 1000),
        ("id_bucket", "bucket[16]", 1, 1001),
        ("country_trunc", "truncate[2]", 3, 1002),
        ("at_zone", "identity", 6, 1003),
        ("ts_hour", "hour", 2, 1004),
        ("flag", "identity", 5, 1005),
    ]


def test_no_terms_mean_unpartitioned() -> None:
    assert partition_spec(SCHEMA, []).is_unpartitioned()
    assert describe_spec(partition_spec(SCHEMA, []), SCHEMA) == "unpartitioned"


def test_spec_is_shown_in_the_syntax_of_the_file() -> None:
    terms = ["day(ts)", "bucket(16, id)", "truncate(2, country)", "at.zone"]
    spec = partition_spec(SCHEMA, [parse_partition_term(term) for term in terms])

    assert describe_spec(spec, SCHEMA) == "[day(ts), bucket(16, id), truncate(2, country), at.zone]"


def test_sort_order_has_directions_and_null_orders() -> None:
    terms = ["country", "ts desc", "id asc nulls last", "at.zone desc nulls first"]
    order = sort_order(SCHEMA, [parse_sort_term(term) for term in terms])

    assert order.order_id == 1
    assert [(f.source_id, f.direction.value, f.null_order.value) for f in order.fields] == [
        (3, "asc", "nulls-first"),
        (2, "desc", "nulls-last"),
        (1, "asc", "nulls-last"),
        (6, "desc", "nulls-first"),
    ]
    assert sort_order(SCHEMA, []).is_unsorted


@pytest.mark.parametrize("option", ["partitioning", "sort_order"])
def test_missing_column_is_reported_with_the_existing_ones(option: str) -> None:
    made: dict[str, Callable[[], object]] = {
        "partitioning": lambda: partition_spec(SCHEMA, [parse_partition_term("days(when)")]),
        "sort_order": lambda: sort_order(SCHEMA, [parse_sort_term("when desc")]),
    }
    with pytest.raises(SchemaMismatchError) as caught:
        made[option]()

    assert str(caught.value) == (
        f"{option}: the rows have no column 'when'\n"
        "  Their columns: id, ts, country, at.zone, at, flag."
    )


@pytest.mark.parametrize(
    ("term", "what"),
    [
        ("days(id)", "partitioning: column 'id' is a long, which 'day' can't transform"),
        (
            "hours(country)",
            "partitioning: column 'country' is a string, which 'hour' can't transform",
        ),
        (
            "bucket(4, flag)",
            "partitioning: column 'flag' is a boolean, which 'bucket' can't transform",
        ),
        (
            "truncate(4, ts)",
            "partitioning: column 'ts' is a timestamptz, which 'truncate' can't transform",
        ),
        (
            "identity(at)",
            "partitioning: column 'at' is a struct<6: zone: optional string>, which 'identity' "
            "can't transform",
        ),
    ],
)
def test_type_unsupported_by_a_transform_is_reported(term: str, what: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        partition_spec(SCHEMA, [parse_partition_term(term)])

    assert str(caught.value) == f"{what}\n  Use another transform, or another column."
