"""Properties of tables and settings of writers, from the sink's options."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.contracts.catalog import Abilities
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.properties import (
    properties_to_set,
    table_properties,
    write_settings,
)
from icestream.sinks.iceberg.writer import WriteSettings

MB = 1 << 20


def options(**given: Any) -> IcebergOptions:
    return IcebergOptions(namespace=("db",), table="t", **given)


def test_new_table_gets_its_format_codec_size_and_retry_policy() -> None:
    assert table_properties(options()) == {
        "format-version": "3",
        "write.parquet.compression-codec": "snappy",
        "write.target-file-size-bytes": str(128 * MB),
        "commit.retry.num-retries": "3",
        "commit.retry.min-wait-ms": "100",
        "commit.retry.max-wait-ms": "400",
        "write.merge.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.delete.mode": "merge-on-read",
        "write.merge.isolation-level": "snapshot",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "20",
    }


def test_old_metadata_is_kept_if_catalog_branches_may_need_it() -> None:
    properties = table_properties(options(), abilities=Abilities(catalog_branches=True))

    assert not [key for key in properties if key.startswith("write.metadata.")]


def test_properties_of_the_user_override_ours() -> None:
    properties = table_properties(
        options(table_properties={"write.target-file-size-bytes": 5, "owner": "me"})
    )

    assert properties["write.target-file-size-bytes"] == "5"
    assert properties["owner"] == "me"


@pytest.mark.parametrize(
    ("codec", "level", "name", "stored_level"),
    [
        ("none", None, "uncompressed", None),
        ("snappy", None, "snappy", None),
        ("lz4", None, "lz4_raw", None),
        ("zstd", 9, "zstd", "9"),
        ("gzip", 6, "gzip", None),
    ],
)
def test_codec_is_stored_in_terms_that_other_writers_know(
    codec: str, level: int | None, name: str, stored_level: str | None
) -> None:
    given = options(compression=codec, compression_level=level)
    properties = table_properties(given)

    assert properties["write.parquet.compression-codec"] == name
    assert properties.get("write.parquet.compression-level") == stored_level
    assert write_settings(given, properties) == WriteSettings(codec, level, 128 * MB)


def test_existing_table_gets_missing_properties_and_keeps_its_retry_policy() -> None:
    found = {"commit.retry.num-retries": "10", "owner": "old", "kept": "x"}

    assert properties_to_set(options(table_properties={"owner": "new", "kept": "x"}), found) == {
        "commit.retry.min-wait-ms": "100",
        "commit.retry.max-wait-ms": "400",
        "owner": "new",
    }


def test_table_with_every_property_is_left_alone() -> None:
    assert properties_to_set(options(), table_properties(options())) == {}


def test_configured_file_size_overrides_that_of_the_table() -> None:
    table = {"write.target-file-size-bytes": str(7 * MB)}

    assert write_settings(options(), table).target_bytes == 7 * MB
    assert write_settings(options(), {}).target_bytes == 128 * MB
    assert write_settings(options(target_file_size_mb=64), table).target_bytes == 64 * MB
    assert write_settings(options(profile="low_latency"), table).target_bytes == 32 * MB
