"""Options of the Iceberg sink, by their names in the YAML file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic.config import JsonDict  # noqa: TC002 - read when the module is loaded

from icestream.contracts.options import NULL_AS_TEXT, Namespace, Options, PropertyText
from icestream.storage.blocks import StorageBlocks

Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[smhdw]$")]


class CompactTrigger(Options):
    """When compaction starts: as soon as one of these holds."""

    files: int | None = Field(None, ge=2, description="This many small files.")
    delete_ratio: float | None = Field(
        None, gt=0, le=1, description="This share of the rows deleted."
    )
    size_mb: int | None = Field(None, ge=1, description="This many MiB in small files.")
    every: Duration | None = Field(None, description="This much time, e.g. `1h`.")


class CompactOptions(Options):
    """Rewriting of small files and of files with deleted rows."""

    when: CompactTrigger | None = Field(None, description="What starts a compaction.")
    strategy: Literal["binpack", "sort", "zorder"] = Field(
        "binpack", description="How rows are laid out in the new files."
    )
    where: str | None = Field(None, description="SQL condition for the partitions to compact.")


class ExpireOptions(Options):
    """Removal of old snapshots."""

    older_than: Duration = Field("5d", description="Age past which a snapshot goes, e.g. `5d`.")
    keep_last: int = Field(1, ge=1, description="Snapshots that are kept however old they are.")


class OrphanOptions(Options):
    """Removal of files that no snapshot knows."""

    older_than: Duration = Field("3d", description="Age past which an orphan goes, e.g. `3d`.")


class MaintenanceOptions(Options):
    """Compaction, expiry and cleaning beside the stream."""

    compact: CompactOptions | None = Field(None, description="Compaction; off if absent.")
    expire: ExpireOptions | None = Field(None, description="Expiry of snapshots; off if absent.")
    orphans: OrphanOptions | None = Field(None, description="Orphan files; off if absent.")
    manifests: bool = Field(False, description="Rewrite manifests when they pile up.")
    statistics: bool = Field(False, description="Write column statistics.")
    schedule: str | None = Field(
        None, description="When maintenance runs, as a cron line; beside the stream if absent."
    )


Name = Annotated[str, StringConstraints(min_length=1)]


class PublishCheck(Options):
    """A query for what is wrong."""

    name: Name = Field(description="Name of the check, shown when it does not hold.")
    sql: Name = Field(
        description="Query, in Spark SQL, that finds what is wrong; the check holds if it gives no "
        "row. `rows` stands for the rows of the branch, the table's full name for what is "
        "published, e.g. `SELECT * FROM rows WHERE id IS NULL`."
    )


class PublishOptions(Options):
    """When the rows of a branch are published."""

    checks: tuple[PublishCheck, ...] = Field(
        min_length=1, description="Checks that must all hold, after each batch."
    )
    to: Name = Field("main", description="Branch that is moved forward to `branch` once they hold.")


TablePattern = Annotated[str, StringConstraints(pattern=r"^[^.]+(\.[^.]+)+$")]
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


class Expectation(Options):
    """A condition that every row should meet."""

    name: Name = Field(description="Name of the expectation, shown in counters and dead letters.")
    expr: Name = Field(description="SQL condition that holds for a good row.")
    on_fail: Literal["drop", "dead_letter", "fail"] = Field(
        "fail", description="What happens to a row for which it does not hold."
    )


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
        description="Namespace of the table: a name (`analytics`, `a.b`) or a list; made when "
        "missing. Required, except for change sources, which bring their own.",
    )
    table: str = Field(
        "",
        description="Name of the table; made when missing, with the schema of the stream. "
        "Required, except with `route_by`, and for change sources, which bring their own.",
    )
    create: bool = Field(
        True, description="Make a missing table; `false` makes a missing table an error."
    )
    profile: Literal["low_latency", "balanced", "high_throughput"] = Field(
        "balanced",
        description="Defaults of `batch_size`, `flush_interval_secs` and `target_file_size_mb`; "
        "any of them given by hand wins.",
    )
    batch_size: int = Field(
        10_000,
        ge=1,
        description="Rows that are enough to commit: a trigger, never a throttle.",
    )
    flush_interval_secs: float = Field(
        60, gt=0, description="The longest a row waits for its commit, in seconds."
    )
    max_batch_rows: int | None = Field(
        None, ge=1, description="The most rows one commit takes; sized from memory if absent."
    )
    target_file_size_mb: int = Field(
        128, ge=1, le=10_240, description="Size past which a new data file is begun, in MiB."
    )
    compression: Codec = Field("snappy", description="Codec of the data files.")
    compression_level: int | None = Field(
        None, description="Level of the codec: gzip 1 to 9, zstd 1 to 22, others have none."
    )
    partitioning: (
        Literal["none", "table_default", "identity", "bucket", "time"] | tuple[Name, ...]
    ) = Field(
        "none",
        description="How a new table is partitioned: `none`, `table_default` (the table's own "
        "spec), `identity`, `bucket` or `time` of `partition_fields`, or a list of transforms "
        "such as `[days(ts), bucket(16, id)]`. If absent, change sources take a bucket of the key.",
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
        (), description="Order of rows within a file, e.g. `[id, ts desc nulls last]`."
    )
    commit_mode: CommitMode = Field(
        "append",
        description="How a batch changes the table: `append` adds its rows, `overwrite` replaces "
        "the partitions that it touches (the whole table when that is not partitioned), "
        "`overwrite_table` replaces the table, `overwrite_partitions` the partitions named below "
        "(a load by `run --once` replaces once and then adds), `upsert` replaces the row of each "
        "key. If absent, change sources upsert tables that have a key.",
    )
    overwrite_partitions: tuple[Name, ...] = Field(
        (),
        description="Partitions that `commit_mode: overwrite_partitions` replaces, e.g. "
        '`["year=2024/month=10"]`.',
    )
    key_fields: tuple[Name, ...] = Field(
        (),
        description="Fields that identify a row for `commit_mode: upsert`; the source's primary "
        "key if absent.",
    )
    sequence_field: str | None = Field(
        None,
        description="Field that tells which of two changes to one key is newer, in a batch and "
        "across batches; the order in which they come if absent.",
    )
    tombstone_days: float = Field(
        7,
        ge=0,
        description="Days for which the sequence of a deleted key is remembered, in a table "
        "`TABLE__tombstones` beside the table, where `sequence_field` is given; 0 for none.",
    )
    op_field: Name | None = Field(
        None,
        description="Field that tells what a row of the stream is: `d`, `delete` or `deleted` "
        "takes the row of its key away, anything else writes it. Not a column of the table. "
        "Change sources bring their own.",
    )
    missing_fields: Annotated[Literal["null", "keep"], NULL_AS_TEXT] = Field(
        "null",
        description="What an upsert does to the columns that a record has no field for: `null` "
        "sets them to null, `keep` keeps the values that the table holds for the key. A field "
        "that is there and null sets null either way.",
    )
    delete_mode: Literal["hard", "soft", "ignore"] = Field(
        "hard",
        description="What a delete does: `hard` removes the row, `soft` keeps it and sets "
        "`_is_deleted` and `_deleted_at`, `ignore` passes over it.",
    )
    schema_evolution: Literal["strict", "add_columns", "full"] = Field(
        "add_columns",
        description="Which changes of the stream's schema the table follows: none, new columns, "
        "or all (add, drop, rename, widen, make optional). If absent, change sources take `full`.",
    )
    renames: dict[Name, Name] = Field(
        default_factory=dict,
        description="Columns to rename in the table, old name to new; needs "
        "`schema_evolution: full`.",
    )
    snapshot_properties: dict[Name, PropertyText] = Field(
        default_factory=dict, description="Properties put into every snapshot's summary."
    )
    table_properties: dict[Name, PropertyText] = Field(
        default_factory=dict,
        description="Iceberg table properties, set at creation and kept in step.",
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
        MAIN, description="Branch to write to; made from the main one when missing."
    )
    publish: PublishOptions | None = Field(
        None,
        description="Checks on the rows of `branch`, after which readers of the main one see them.",
    )
    route_by: Name | None = Field(
        None,
        description="Column, or Spark SQL expression, that names the table of each row, in place "
        "of `table`: a bare name is one of `namespace`, `sales.orders` needs `allowed_tables`. "
        "Tables are made when missing, with the columns that their rows fill.",
    )
    allowed_tables: tuple[TablePattern, ...] = Field(
        (),
        description="Further tables that rows may name by `route_by`, and changes by the names of "
        "their source: patterns such as `[sales.orders, audit.*]`. Without it, rows reach tables "
        "of `namespace` alone, and neither writes to a table that the pipeline did not create.",
    )
    on_error: Literal["fail", "drop", "dead_letter"] = Field(
        "fail",
        description="What happens to a row that cannot be decoded, cast or validated: stop, drop "
        "and count it, or write it to the table of `dead_letter`.",
    )
    dead_letter: str | None = Field(
        None,
        min_length=1,
        description="Table for bad rows, `namespace.table` in the same catalog; a bare name means "
        "the sink's own namespace.",
    )
    expect: tuple[Expectation, ...] = Field(
        (), max_length=60, description="Conditions that rows should meet."
    )
    maintenance: Literal["off"] | MaintenanceOptions = Field(
        "off",
        description="Compaction, expiry and cleaning beside the stream.",
        json_schema_extra=PLANNED,
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_profile(cls, given: Any) -> Any:
        """Let the profile fill what is not given by hand."""
        if not isinstance(given, dict):
            return given
        profile = given.get("profile")
        defaults = PROFILES.get(profile, {}) if isinstance(profile, str) else {}
        return {**defaults, **given}

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
            # A replay deletes letters beside a pipeline that writes others.
            table_properties={"write.merge.isolation-level": "snapshot"},
        )
