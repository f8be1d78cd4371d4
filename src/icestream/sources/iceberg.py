"""Options of the Iceberg source: a table read back as a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from icestream.contracts.options import Namespace, Options

Name = Annotated[str, StringConstraints(min_length=1)]


class IcebergSourceOptions(Options):
    """Which table to read, and which of its snapshots."""

    catalog: str | dict[str, Any] | None = Field(
        None,
        repr=False,
        description="Name of a catalog under `catalogs`, or a catalog block; the embedded catalog "
        "if absent.",
    )
    namespace: Namespace = Field(
        min_length=1, description="Namespace of the table: a name (`a.b`) or a list."
    )
    table: Name = Field(description="Name of the table.")
    read_mode: Literal["batch", "incremental", "snapshot"] = Field(
        "incremental",
        description="`batch` reads the table once, `incremental` its new snapshots, `snapshot` "
        "a given one.",
    )
    poll_interval_secs: float = Field(
        60, gt=0, description="How often `incremental` checks for a new snapshot."
    )
    start_snapshot: int | None = Field(None, description="Snapshot id to start after.")
    start_timestamp: str | None = Field(
        None, description="Timestamp to start after, e.g. `2024-10-01T00:00:00Z`."
    )
    changes: Literal["appends", "all"] = Field(
        "appends", description="`appends` reads added rows only, `all` also updates and deletes."
    )
    snapshot_id: int | None = Field(None, description="Snapshot id to read in mode `snapshot`.")
    timestamp: str | None = Field(None, description="Timestamp to read as of in mode `snapshot`.")
    tag: str | None = Field(None, description="Tag to read in mode `snapshot`.")
    branch: str | None = Field(None, description="Branch to read in mode `snapshot`.")
    partition_filter: str | None = Field(
        None, description="SQL condition, e.g. `year = 2024 AND month = 10`."
    )
    columns: tuple[Name, ...] = Field((), description="Columns to read; all if empty.")
    batch_size: int = Field(10_000, ge=1, description="Rows per micro-batch.")
