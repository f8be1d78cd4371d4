"""The commit modes by their names in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.sinks.iceberg.mode import Append
from icestream.sinks.iceberg.overwrite import Overwrite
from icestream.sinks.iceberg.upsert import Upsert

if TYPE_CHECKING:
    from icestream.sinks.iceberg.mode import Mode


MODES: dict[str, type[Mode]] = {
    "append": Append,
    "overwrite": Overwrite,
    "overwrite_table": Overwrite,
    "overwrite_partitions": Overwrite,
    "upsert": Upsert,
}
