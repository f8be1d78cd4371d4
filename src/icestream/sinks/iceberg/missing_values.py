"""Rows without a value that the table, or a change by key, can't do without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt
    from pyiceberg.schema import Schema

    from icestream.sinks.iceberg.options import IcebergOptions


@dataclass(frozen=True)
class MissingValues:
    """Tells in a task, before the writer would refuse them, which rows lack a value.

    Attributes:
        always: columns that every row has a value for, each with what it is.
        unless_deleted: those that a delete, or a row that was sent without them, may lack.
        op: column that tells which rows are deletes; None if none is.
        ignores_deletes: whether deletes are passed over, whatever they have.
    """

    always: tuple[tuple[str, str], ...]
    unless_deleted: tuple[tuple[str, str], ...]
    op: str | None = None
    ignores_deletes: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return a reason for each row that is bad; None if no row is."""
        wanted = [(name, role, False) for name, role in self.always]
        wanted += [(name, role, True) for name, role in self.unless_deleted]
        # A column that no row has is no fault of a row: the writer says what to do.
        lacking = [
            (name, role, may_be_deleted)
            for name, role, may_be_deleted in wanted
            if name in batch.schema.names and batch.column(name).null_count
        ]
        if not lacking:
            return None
        reasons = pa.nulls(batch.num_rows, pa.string())
        excused = self._excused(batch, {name: may_be for name, _, may_be in lacking})
        for name, role, _ in lacking:
            is_bad = batch.column(name).is_null()
            if name in excused:
                is_bad = pc.and_not(is_bad, pa.array(excused[name]))
            reason = f"column {name!r} is {role}, and the row has no value for it"
            reasons = pc.if_else(pc.and_(is_bad, reasons.is_null()), reason, reasons)
        return reasons if reasons.null_count < batch.num_rows else None

    def _excused(
        self, batch: pa.RecordBatch, lacking: Mapping[str, bool]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Return by column which rows may lack it, given whether rows that are deleted may."""
        excusable = [name for name, may_be in lacking.items() if may_be or self.ignores_deletes]
        if not excusable:
            return {}
        from icestream.sinks.iceberg.modes.upsert.staging import deletes_in, unsent_in

        deletes, unsent = deletes_in(batch, self.op), unsent_in(batch)
        return {
            name: deletes | unsent[name] if lacking[name] and name in unsent else deletes
            for name in excusable
        }


def missing_values(schema: Schema | None, options: IcebergOptions) -> MissingValues | None:
    """Return what finds rows that lack a value; None if they may lack any.

    Args:
        schema: the table's, None while there is no table.
        options: the sink's.
    """
    columns = schema.fields if schema is not None else ()
    required = [column.name for column in columns if column.required]
    if options.commit_mode != "upsert":
        always = tuple((name, "required by the table") for name in required)
        return MissingValues(always, ()) if always else None
    keys = [(name, "part of the key") for name in options.key_fields]
    if options.sequence_field is not None:
        keys.append((options.sequence_field, "the sequence field"))
    own = {name for name, _ in keys}
    return MissingValues(
        tuple(keys),
        tuple((name, "required by the table") for name in required if name not in own),
        op=options.op_field,
        ignores_deletes=options.delete_mode == "ignore",
    )
