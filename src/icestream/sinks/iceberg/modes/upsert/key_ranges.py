"""Which data files can hold a key of the batch, by the bounds that the table keeps of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.types import IntegerType, LongType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from pyiceberg.schema import Schema

    from icestream.sinks.iceberg.java_files import LiveFile
    from icestream.sinks.iceberg.modes.upsert.key_index import IndexSettings
    from icestream.sinks.iceberg.modes.upsert.newest import BatchKeys

    Ints = npt.NDArray[np.int64]

RANGED = (IntegerType, LongType)


def files_that_may_hold(
    files: Sequence[LiveFile], batch: BatchKeys, index: IndexSettings, schema: Schema
) -> list[LiveFile]:
    """Return the files within whose bounds a key of the batch lies, or which keep no bounds.

    Only for keys that are one whole number: hashes have no order. Keys that grow with time, as
    serial numbers do, leave all but the newest files out.
    """
    kind = schema.find_field(index.key_ids[0]).field_type
    if batch.high is not None or not isinstance(kind, RANGED):
        return list(files)
    # By their sign: as unsigned numbers, which they are sorted as, negative ones come last.
    keys = np.sort(batch.low.view(np.int64))
    return [file for file in files if _may_hold(file, keys, index.key_ids[0], kind)]


def _may_hold(file: LiveFile, keys: Ints, field: int, kind: IntegerType | LongType) -> bool:
    lower, upper = (_bound(file, side, field, kind) for side in ("lower-bounds", "upper-bounds"))
    if lower is None or upper is None:
        return True
    first = np.searchsorted(keys, lower, side="left")
    return bool(np.searchsorted(keys, upper, side="right") > first)


def _bound(file: LiveFile, side: str, field: int, kind: IntegerType | LongType) -> int | None:
    kept = file.described.get(side)
    if kept is None or field not in kept["keys"]:
        return None
    raw = bytes.fromhex(kept["values"][kept["keys"].index(field)])
    # A file written before the column was widened has shorter bounds.
    stored = IntegerType() if len(raw) == 4 else kind
    return int(from_bytes(stored, raw))
