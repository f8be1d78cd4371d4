"""What a comparison found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# A row that only the database has, only the table has, that both have with other values, and that
# the table has more often.
MISSING, EXTRA, DIFFERENT, DOUBLED = "missing", "extra", "different", "doubled"
KINDS = (MISSING, EXTRA, DIFFERENT, DOUBLED)

SAME, DIFFERS, NOT_COMPARED = "same", "different", "not compared"


@dataclass(frozen=True)
class RowDifference:
    """One row that is not the same on both sides.

    Attributes:
        kind: one of `KINDS`.
        key: the key's values by column; all values where nothing tells rows apart.
        columns: both values, the database's first, of each column that differs; cut if long.
    """

    kind: str
    key: dict[str, str | None]
    columns: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class SideReport:
    """What one side has: rows that were compared, and the range of their keys."""

    rows: int = 0
    first_key: tuple[str, ...] | None = None
    last_key: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TableReport:
    """How a table compares with what it mirrors.

    Attributes:
        pipeline: who keeps the mirror.
        source: the table in the database.
        table: the Iceberg table.
        status: `same`, `different` or `not compared`.
        reason: why it was not compared, or what is wrong beside its rows.
        point: the moment of the database.
        snapshot_id: the table's snapshot.
        in_source: what the database has.
        in_lake: what the table has.
        changed_since: rows that changed in the database after the table's newest batch, and were
            not compared.
        chunks: how many chunks were compared.
        chunks_differing: in how many of them something differs.
        only_in_lake: columns that the database lacks, not compared.
        only_in_source: columns that the table lacks, not compared.
        counts: how many rows differ, by kind.
        rows: some of them.
    """

    pipeline: str
    source: str
    table: str
    status: str
    reason: str = ""
    point: str = ""
    snapshot_id: int | None = None
    in_source: SideReport = SideReport()
    in_lake: SideReport = SideReport()
    changed_since: int = 0
    chunks: int = 0
    chunks_differing: int = 0
    only_in_lake: tuple[str, ...] = ()
    only_in_source: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    rows: tuple[RowDifference, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.status == SAME

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON shows it."""
        return asdict(self)
