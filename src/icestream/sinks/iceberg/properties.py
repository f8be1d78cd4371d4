"""Table properties and write settings that follow from the sink's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.catalog import Abilities
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.writer import WriteSettings

MB = 1 << 20
# Property of a table: the pipeline that created it.
CREATED_BY = "icestream.created-by"
# Property of a mirrored table, by pipeline: maps its columns to those of the source.
SOURCE_COLUMNS = "icestream.source-columns."
# Property of a mirrored table, by pipeline: the source's table that it mirrors.
SOURCE_TABLE = "icestream.source-table."
# Followed by a pipeline: `true` if it has left out rows of the source.
FILTERED = "icestream.filtered."
# Suffix of the table that keeps the deleted keys of another table.
TOMBSTONES = "__tombstones"
# Iceberg's names for codecs; pyarrow writes `lz4` in the raw framing that every reader supports.
ICEBERG_CODECS = {"none": "uncompressed", "lz4": "lz4_raw"}


# Retried by Iceberg after 100, 200 and 400 ms, with up to 10 % jitter.
RETRIES = {
    "commit.retry.num-retries": "3",
    "commit.retry.min-wait-ms": "100",
    "commit.retry.max-wait-ms": "400",
}


# A metadata file repeats the mark and every snapshot, and each commit writes one.
OLD_METADATA = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def table_properties(
    options: IcebergOptions, pipeline: str = "", abilities: Abilities | None = None
) -> dict[str, str]:
    """Return the properties of a new table.

    Args:
        options: the sink's options.
        pipeline: the pipeline that creates it; empty for none.
        abilities: the abilities of the catalog.
    """
    properties = {
        "format-version": str(options.format_version),
        "write.parquet.compression-codec": ICEBERG_CODECS.get(
            options.compression, options.compression
        ),
        "write.target-file-size-bytes": str(options.target_file_size_mb * MB),
        **RETRIES,
        "write.merge.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.delete.mode": "merge-on-read",
        "write.merge.isolation-level": "snapshot",
        **({CREATED_BY: pipeline} if pipeline else {}),
    }
    # Java's gzip takes no numeric level: other writers of the table would fail on it.
    if options.compression_level is not None and options.compression != "gzip":
        properties["write.parquet.compression-level"] = str(options.compression_level)
    # Another branch of such a catalog may refer to an old metadata file.
    if abilities is None or not abilities.catalog_branches:
        properties |= OLD_METADATA
    return {**properties, **options.table_properties}


def properties_to_set(options: IcebergOptions, current: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the file that an existing table lacks or has otherwise."""
    # Keep a retry policy that the table's owner chose.
    desired = {key: value for key, value in RETRIES.items() if key not in current}
    desired |= options.table_properties
    return {key: value for key, value in desired.items() if current.get(key) != value}


def write_settings(options: IcebergOptions, properties: Mapping[str, str]) -> WriteSettings:
    """Return how tasks write files. The sink's options take precedence over the table's."""
    from icestream.sinks.iceberg.writer import WriteSettings

    target = int(
        properties.get("write.target-file-size-bytes", options.target_file_size_mb * MB)
        if "target_file_size_mb" not in options.model_fields_set
        else options.target_file_size_mb * MB
    )
    return WriteSettings(
        codec=options.compression, level=options.compression_level, target_bytes=target
    )
