"""Which data files can hold a key of the batch, by the bounds that the table keeps of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.types import DateType, IntegerType, LongType

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from icestream.sinks.iceberg.java_files import LiveFile
    from icestream.sinks.iceberg.modes.upsert.key_index import IndexSettings
    from icestream.sinks.iceberg.modes.upsert.newest import Newest

RANGED = (IntegerType, LongType)


def may_hold(file: LiveFile, batch: Newest, index: IndexSettings, schema: Schema) -> bool:
    """Tell whether a key of the batch lies within a file's bounds; True where none are kept.

    Only for keys that are one whole number: hashes have no order. Keys that grow with time, as
    serial numbers do, leave all but the newest files out.
    """
    kind = schema.find_field(index.key_ids[0]).field_type
    if batch.high is not None or not isinstance(kind, RANGED):
        return True
    bounds = [
        _bound(file, side, index.key_ids[0], kind) for side in ("lower-bounds", "upper-bounds")
    ]
    if bounds[0] is None or bounds[1] is None:
        return True
    signed = np.sort(batch.low.view(np.int64)) if _wraps(batch) else batch.low.view(np.int64)
    first = np.searchsorted(signed, bounds[0], side="left")
    last = np.searchsorted(signed, bounds[1], side="right")
    return bool(last > first)


def _wraps(batch: Newest) -> bool:
    """Tell whether some keys are negative, which unsigned order puts last."""
    return len(batch) > 0 and bool(batch.low.view(np.int64)[-1] < 0)


def _bound(
    file: LiveFile, side: str, field: int, kind: IntegerType | LongType | DateType
) -> int | None:
    kept = file.described.get(side)
    if kept is None or field not in kept["keys"]:
        return None
    raw = bytes.fromhex(kept["values"][kept["keys"].index(field)])
    # A file written before the column was widened has shorter bounds.
    stored = IntegerType() if len(raw) == 4 else kind
    return int(from_bytes(stored, raw))
