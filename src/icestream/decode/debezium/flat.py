"""Records that Debezium's `ExtractNewRecordState` has made rows of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.decode.debezium.faults import OddValueError
from icestream.decode.debezium.lot import DELETE, Lot
from icestream.decode.debezium.types import Column, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

_OP, _DELETED = "__op", "__deleted"
HIDDEN_FIELDS = frozenset({_OP, _DELETED})


def flat_lot(places: npt.NDArray[np.int64], rows: pa.Array, columns: tuple[Column, ...]) -> Lot:
    """Return records that are rows as a lot.

    Args:
        places: which records they are.
        rows: a struct of `columns` as they are written.
        columns: of a record: those of the table, `__op` and `__deleted` if they were asked for.

    Raises:
        OddValueError: no column is of the table.
    """
    held = dict(zip([column.name for column in columns], rows.flatten(), strict=True))
    ops = pa.array(["u"] * len(rows), pa.string())
    if _OP in held:
        ops = pc.coalesce(held[_OP].cast(pa.string()), ops)
    if _DELETED in held:
        is_gone = pc.equal(held[_DELETED].cast(pa.string()), "true")
        ops = pc.if_else(pc.fill_null(is_gone, False), DELETE, ops)
    kept = tuple(column for column in columns if column.name not in HIDDEN_FIELDS)
    if not kept:
        raise OddValueError({}, "a row: it has no columns")
    own = pa.StructArray.from_arrays(
        [held[column.name] for column in kept],
        fields=[pa.field(column.name, column.written) for column in kept],
    )
    return Lot(places, ops, own, own, None, kept)


def row_columns(fields: Mapping[str, pa.DataType]) -> tuple[Column, ...]:
    """Return columns of fields without a schema."""
    return shown(pa.field(name, kind) for name, kind in fields.items())
