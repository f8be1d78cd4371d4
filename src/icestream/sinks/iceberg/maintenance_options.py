"""Options of table maintenance: what keeps a table fast to read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from icestream.contracts.options import Options

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
