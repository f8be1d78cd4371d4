"""Options of the Iceberg sink, by their names in the YAML file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic.config import JsonDict  # noqa: TC002 - read when the module is loaded

from icestream.contracts.expectation import Expectation
from icestream.contracts.options import (
    EXPRESSIONS,
    NULL_AS_TEXT,
    Duration,
    Namespace,
    Options,
    PropertyText,
    text_form,
)
from icestream.storage.blocks import StorageBlocks


class CompactTrigger(Options):
    """When compaction starts: as soon as one of these is reached."""

    files: int | None = Field(None, ge=2, description="Number of small files.")
    delete_ratio: float | None = Field(
        None, gt=0, le=1, description="Share of rows that are deleted."
    )
    size_mb: int | None = Field(None, ge=1, description="Size of the small files together, in MiB.")
    every: Duration | None = Field(None, description="Time since the last compaction, e.g. `1h`.")


class CompactOptions(Options):
    """Compaction: rewrite small files and files with deleted rows."""

    when: CompactTrigger | None = Field(None, description="What starts a compaction.")
    strategy: Literal["binpack", "sort", "zorder"] = Field(
        "binpack", description="How rows are laid out in the new files."
    )
    where: str | None = Field(None, description="SQL condition for the partitions to compact.")


class ExpireOptions(Options):
    """Expiry of old snapshots."""

    older_than: Duration = Field("5d", description="Age after which a snapshot expires, e.g. `5d`.")
    keep_last: int = Field(
        1, ge=1, description="Number of newest snapshots to keep whatever their age."
    )


class OrphanOptions(Options):
    """Removal of files that no snapshot refers to."""

    older_than: Duration = Field(
        "3d", description="Age after which an orphan file is removed, e.g. `3d`."
    )


class MaintenanceOptions(Options):
    """Compaction, snapshot expiry and cleanup while the stream runs."""

    compact: CompactOptions | None = Field(None, description="Compaction; off if absent.")
    expire: ExpireOptions | None = Field(None, description="Expiry of snapshots; off if absent.")
    orphans: OrphanOptions | None = Field(
        None, description="Removal of orphan files; off if absent."
    )
    manifests: bool = Field(False, description="Rewrite manifests when there are too many.")
    statistics: bool = Field(False, description="Write column statistics.")
    schedule: str | None = Field(
        None,
        description="When maintenance runs, as a cron expression; while the stream runs if absent.",
    )


Name = Annotated[str, StringConstraints(min_length=1)]


class PublishCheck(Options):
    """A query that returns the rows that are wrong."""

    name: Name = Field(description="Name of the check, shown when it fails.")
    sql: Name = Field(
        description="Query in Spark SQL that returns the rows that are wrong; the check passes if "
        "it returns none. `rows` means the rows of the branch, the table's full name means "
        "the published rows, e.g. `SELECT * FROM rows WHERE id IS NULL`."
    )


class PublishOptions(Options):
    """When the rows of a branch are published."""

    checks: tuple[PublishCheck, ...] = Field(
        min_length=1, description="Checks that must all pass, after each batch."
    )
    to: Name = Field("main", description="Branch to fast-forward to `branch` once the checks pass.")


TablePattern = Annotated[
    str,
    text_form(
        r"^[^.]+(\.[^.]+)+$",
        "a table with its namespace",
        "Write both, or a pattern for them, e.g. `sales.orders` or `audit.*`.",
    ),
]
Codec = Literal["none", "snappy", "gzip", "lz4", "zstd", "brotli"]
CommitMode = Literal["append", "overwrite", "overwrite_table", "overwrite_partitions", "upsert"]
PLANNED: JsonDict = {"planned": True}
MAIN = "main"

PROFILES: dict[str, dict[str, int]] = {
    "low_latency": {"batch_size": 1_000, "flush_interval_secs": 10, "target_file_size_mb": 32},
    "balanced": {"batch_size": 10_000, "flush_interval_secs": 60, "target_file_size_mb": 128},
    "high_throughput": {
        "batch_size": 100_000,
        "flush_interval_secs": 300,
        "target_file_size_mb": 512,
    },
}


class IcebergOptions(StorageBlocks):
    """Where and how rows are written."""

    catalog: str | dict[str, Any] | None = Field(
        None,
        repr=False,
        description="Name of a catalog under `catalogs`, or a catalog block; the embedded catalog "
        "if absent.",
    )
    namespace: Namespace = Field(
        (),
        description="Namespace of the table: a name (`analytics`, `a.b`) or a list; created if "
        "missing. Required, except for change sources, which have their own.",
    )
    table: str = Field(
        "",
        description="Name of the table; created if missing, with the schema of the stream. "
        "Required, except with `route_by`, and for change sources, which have their own.",
    )
    create: bool = Field(
        True, description="Create a missing table; with `false`, a missing table is an error."
    )
    profile: Literal["low_latency", "balanced", "high_throughput"] = Field(
        "balanced",
        description="Defaults for `batch_size`, `flush_interval_secs` and `target_file_size_mb`; "
        "each can be overridden.",
    )
    batch_size: int = Field(
        10_000,
        ge=1,
        description="Number of rows that triggers a commit. A commit may have more rows.",
    )
    flush_interval_secs: float = Field(
        60, gt=0, description="Longest time that a row waits for its commit, in seconds."
    )
    max_batch_rows: int | None = Field(
        None,
        ge=1,
        description="Maximum rows per commit; derived from the available memory if absent.",
    )
    target_file_size_mb: int = Field(
        128, ge=1, le=10_240, description="Size at which a new data file is started, in MiB."
    )
    compression: Codec = Field("snappy", description="Compression codec of the data files.")
    compression_level: int | None = Field(
        None, description="Compression level: gzip 1 to 9, zstd 1 to 22; other codecs have none."
    )
    partitioning: (
        Literal["none", "table_default", "identity", "bucket", "time"] | tuple[Name, ...]
    ) = Field(
        "none",
        description="How a new table is partitioned: `none`, `table_default` (the table's own "
        "spec), `identity`, `bucket` or `time` of `partition_fields`, or a list of transforms "
        "such as `[days(ts), bucket(16, id)]`. If absent, a table is unpartitioned, except the "
        "mirror of a large table: it gets about one bucket of its key per GB in the source.",
        json_schema_extra=EXPRESSIONS,
    )
    partition_fields: tuple[Name, ...] = Field(
        (), description="Fields for `partitioning: identity`, `bucket` or `time`."
    )
    num_buckets: int = Field(
        16, ge=1, le=1_000_000, description="Number of buckets for `partitioning: bucket`."
    )
    time_granularity: Literal["year", "month", "day", "hour"] = Field(
        "day", description="Unit for `partitioning: time`."
    )
    sort_order: tuple[Name, ...] = Field(
        (),
        description="Order of rows within a file, e.g. `[id, ts desc nulls last]`.",
        json_schema_extra=EXPRESSIONS,
    )
    commit_mode: CommitMode = Field(
        "append",
        description="How a batch changes the table: `append` adds its rows, `overwrite` replaces "
        "the partitions that it touches (the whole table if it is unpartitioned), "
        "`overwrite_table` replaces the table, `overwrite_partitions` replaces the partitions "
        "listed in the option of that name (a load by `run --once` replaces once and then adds), "
        "`upsert` replaces the row of each key. If absent, change sources upsert tables that have "
        "a key.",
    )
    overwrite_partitions: tuple[Name, ...] = Field(
        (),
        description="Partitions that `commit_mode: overwrite_partitions` replaces, e.g. "
        '`["year=2024/month=10"]`.',
    )
    key_fields: tuple[Name, ...] = Field(
        (),
        description="Fields that identify a row. Required for `upsert`; with a CDC source, "
        "defaults to the primary key.",
    )
    sequence_field: str | None = Field(
        None,
        description="Field that decides which of two changes to a key is newer, within a batch and "
        "across batches; order of arrival if absent.",
    )
    tombstone_days: float = Field(
        7,
        ge=0,
        description="With `sequence_field`: days to remember the sequence of a deleted key, in "
        "the table `TABLE__tombstones` in the same namespace; 0 disables it.",
    )
    op_field: Name | None = Field(
        None,
        description="Field with the operation of a row: `d`, `delete` or `deleted` deletes the row "
        "with its key, any other value writes it. Not a column of the table. Change sources have "
        "their own.",
    )
    missing_fields: Annotated[Literal["null", "keep"], NULL_AS_TEXT] = Field(
        "null",
        description="What an upsert does to columns for which a record has no field: `null` "
        "sets them to null, `keep` keeps the values in the table. A field that is present and "
        "null always sets null.",
    )
    delete_mode: Literal["hard", "soft", "ignore"] = Field(
        "hard",
        description="What a delete does: `hard` deletes the row, `soft` keeps it and sets "
        "`_is_deleted` and `_deleted_at`, `ignore` skips the delete.",
    )
    schema_evolution: Literal["strict", "add_columns", "full"] = Field(
        "add_columns",
        description="Which schema changes of the stream apply to the table: none (`strict`), new "
        "columns, or all (add, drop, rename, widen, make optional). If absent, change sources use "
        "`full`.",
    )
    renames: dict[Name, Name] = Field(
        default_factory=dict,
        description="Columns to rename in the table, old name to new; needs "
        "`schema_evolution: full`.",
    )
    snapshot_properties: dict[Name, PropertyText] = Field(
        default_factory=dict, description="Properties to add to the summary of every snapshot."
    )
    table_properties: dict[Name, PropertyText] = Field(
        default_factory=dict,
        description="Iceberg table properties, set at creation and updated at each start.",
    )
    format_version: Literal[2, 3] = Field(
        3, description="Iceberg format version of a new table; 2 for readers that need it."
    )
    readers: tuple[Name, ...] = Field(
        (),
        description="Engines that must be able to read the table, e.g. `[trino, snowflake]`.",
        json_schema_extra=PLANNED,
    )
    branch: Name = Field(
        MAIN, description="Branch to write to; created from the main branch if missing."
    )
    publish: PublishOptions | None = Field(
        None,
        description="Checks that the rows of `branch` must pass before they are published.",
    )
    route_by: Name | None = Field(
        None,
        description="Column or Spark SQL expression that names the table of each row, instead of "
        "`table`. A name without a namespace is in `namespace`; `sales.orders` needs "
        "`allowed_tables`. Missing tables are created, with the columns for which their rows have "
        "values.",
    )
    allowed_tables: tuple[TablePattern, ...] = Field(
        (),
        description="Further tables that `route_by`, or the table names of a change source, may "
        "refer to: patterns such as `[sales.orders, audit.*]`. Without it, rows can only go to "
        "tables in `namespace`, and neither rows nor changes to a table that the pipeline did not "
        "create.",
    )
    on_error: Literal["fail", "drop", "dead_letter"] = Field(
        "fail",
        description="What to do with a row that cannot be decoded, cast or validated: stop, drop "
        "and count it, or write it to the `dead_letter` table.",
    )
    dead_letter: str | None = Field(
        None,
        min_length=1,
        description="Table for bad rows, `namespace.table` in the same catalog; the namespace "
        "defaults to that of the sink.",
    )
    expect: tuple[Expectation, ...] = Field(
        (), max_length=60, description="Conditions that rows should meet."
    )
    maintenance: Literal["off"] | MaintenanceOptions = Field(
        "off",
        description="Compaction, snapshot expiry and cleanup while the stream runs.",
        json_schema_extra=PLANNED,
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_profile(cls, values: Any) -> Any:
        """Apply the profile's defaults to options that are not set."""
        if not isinstance(values, dict):
            return values
        profile = values.get("profile")
        defaults = PROFILES.get(profile, {}) if isinstance(profile, str) else {}
        return {**defaults, **values}

    def dead_letter_name(self) -> tuple[tuple[str, ...], str] | None:
        """Return namespace and table for bad rows, or None if none is named."""
        if self.dead_letter is None:
            return None
        *namespace, table = self.dead_letter.split(".")
        return tuple(namespace) or self.namespace, table

    def dead_letter_options(self) -> IcebergOptions | None:
        """Return the options of the table for bad rows, or None if none is named."""
        named = self.dead_letter_name()
        if named is None:
            return None
        namespace, table = named
        return type(self)(
            namespace=namespace,
            table=table,
            format_version=self.format_version,
            # A replay deletes dead letters while a pipeline writes others.
            table_properties={"write.merge.isolation-level": "snapshot"},
        )
