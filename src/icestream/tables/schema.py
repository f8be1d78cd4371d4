"""Schemas of tables and streams: compared, changed, and put into Spark's DDL. Needs no JVM."""

from __future__ import annotations

from icestream.schemas.applying import apply
from icestream.schemas.changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SchemaChange,
    UpdateType,
)
from icestream.schemas.comparison import (
    Comparison,
    can_widen,
    compare,
    diff,
    is_compatible,
    renames_by_id,
)
from icestream.schemas.conversion import arrow_to_iceberg, iceberg_to_arrow
from icestream.schemas.spark_ddl import to_sql

__all__ = [
    "AddColumn",
    "Comparison",
    "DropColumn",
    "MakeOptional",
    "RenameColumn",
    "SchemaChange",
    "UpdateType",
    "apply",
    "arrow_to_iceberg",
    "can_widen",
    "compare",
    "diff",
    "iceberg_to_arrow",
    "is_compatible",
    "renames_by_id",
    "to_sql",
]
