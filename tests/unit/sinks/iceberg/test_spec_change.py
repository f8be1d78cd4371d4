"""How partition fields change, and what the new ones are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, VoidTransform

from icestream.errors import SchemaMismatchError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.partition_terms import parse_partition_term
from icestream.sinks.iceberg.partitioning import SpecChange, sets_partitioning, spec_change

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

SCHEMA = arrow_to_iceberg(
    pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us", tz="UTC")),
            ("country", pa.string()),
            ("ts_hour", pa.string()),
        ]
    )
)
DAY = PartitionField(2, 1000, DayTransform(), "ts_day")
BUCKET = PartitionField(1, 1001, BucketTransform(4), "id_bucket")
COUNTRY = PartitionField(3, 1002, IdentityTransform(), "country")


def change(
    spec: PartitionSpec, *terms: str, past: tuple[PartitionSpec, ...] = (), schema: Schema = SCHEMA
) -> SpecChange:
    return spec_change(schema, spec, (*past, spec), [parse_partition_term(term) for term in terms])


def test_matching_spec_is_left_alone_whatever_its_order_and_names() -> None:
    renamed = PartitionField(2, 1000, DayTransform(), "the_day")

    assert not change(PartitionSpec(DAY, BUCKET), "bucket(4, id)", "days(ts)")
    assert not change(PartitionSpec(renamed), "days(ts)")
    assert not change(PartitionSpec())


def test_fields_are_removed_and_added() -> None:
    assert change(PartitionSpec(DAY, COUNTRY), "country", "bucket(8, id)") == SpecChange(
        ("ts_day",), (("id_bucket", parse_partition_term("bucket(8, id)")),)
    )
    assert change(PartitionSpec(DAY)) == SpecChange(("ts_day",))


def test_changed_width_gets_a_new_name() -> None:
    assert change(PartitionSpec(BUCKET), "bucket(8, id)") == SpecChange(
        ("id_bucket",), (("id_bucket_8", parse_partition_term("bucket(8, id)")),)
    )


def test_name_of_a_column_is_not_reused() -> None:
    assert change(PartitionSpec(DAY), "hours(ts)") == SpecChange(
        ("ts_day",), (("ts_hour_2", parse_partition_term("hours(ts)")),)
    )
    assert change(PartitionSpec(), "country") == SpecChange(
        (), (("country", parse_partition_term("country")),)
    )


def test_field_of_an_earlier_spec_returns_under_its_old_name() -> None:
    earlier = PartitionSpec(PartitionField(1, 1003, BucketTransform(8), "buckets"), spec_id=0)

    assert change(PartitionSpec(DAY, spec_id=1), "bucket(8, id)", past=(earlier,)).added == (
        ("buckets", parse_partition_term("bucket(8, id)")),
    )


def test_name_of_an_earlier_field_is_not_reused() -> None:
    earlier = PartitionSpec(BUCKET, spec_id=0)

    assert change(PartitionSpec(spec_id=1), "bucket(8, id)", past=(earlier,)).added == (
        ("id_bucket_8", parse_partition_term("bucket(8, id)")),
    )


def test_void_field_of_format_v1_is_ignored() -> None:
    void = PartitionField(2, 1000, VoidTransform(), "ts_day")

    assert not change(PartitionSpec(void, COUNTRY), "country")


def test_incompatible_term_is_refused() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        change(PartitionSpec(), "days(country)")

    assert str(caught.value) == (
        "partitioning: column 'country' is a string, which 'day' can't transform\n"
        "  Use another transform, or another column."
    )


def test_only_configured_partition_fields_change_the_spec() -> None:
    assert not sets_partitioning(IcebergOptions())
    assert not sets_partitioning(IcebergOptions(partitioning="table_default"))
    assert sets_partitioning(IcebergOptions(partitioning="none"))
    assert sets_partitioning(IcebergOptions(partitioning=("days(ts)",)))
