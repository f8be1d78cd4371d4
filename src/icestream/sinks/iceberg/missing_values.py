"""Finds rows that lack a required value, in a task, before the writer refuses them."""

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
    """Returns a reason for each row that lacks a required value.

    Attributes:
        required: columns for which every row must have a value, each with its role.
        required_unless_deleted: the same, except for deletes and for rows that were sent without
            the column.
        op: column that marks deletes; None if there are none.
        ignores_deletes: whether deletes are skipped, so that they may lack anything.
    """

    required: tuple[tuple[str, str], ...]
    required_unless_deleted: tuple[tuple[str, str], ...]
    op: str | None = None
    ignores_deletes: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return a reason for each bad row; None if there is none."""
        columns = [(name, role, False) for name, role in self.required]
        columns += [(name, role, True) for name, role in self.required_unless_deleted]
        # A column that is missing in all rows is no fault of a row: the writer reports it.
        missing = [
            (name, role, may_be_deleted)
            for name, role, may_be_deleted in columns
            if name in batch.schema.names and batch.column(name).null_count
        ]
        if not missing:
            return None
        reasons = pa.nulls(batch.num_rows, pa.string())
        exempt = self._exempt_rows(batch, {name: may_be for name, _, may_be in missing})
        for name, role, _ in missing:
            is_bad = batch.column(name).is_null()
            if name in exempt:
                is_bad = pc.and_not(is_bad, pa.array(exempt[name]))
            reason = f"column {name!r} is {role}, and the row has no value for it"
            reasons = pc.if_else(pc.and_(is_bad, reasons.is_null()), reason, reasons)
        return reasons if reasons.null_count < batch.num_rows else None

    def _exempt_rows(
        self, batch: pa.RecordBatch, missing: Mapping[str, bool]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Return, by column, which rows may lack it. `missing` says whether deletes may."""
        exempted = [name for name, may_be in missing.items() if may_be or self.ignores_deletes]
        if not exempted:
            return {}
        from icestream.sinks.iceberg.upsert.staging import delete_flags, unchanged_flags

        deletes, unchanged = delete_flags(batch, self.op), unchanged_flags(batch)
        return {
            name: deletes | unchanged[name] if missing[name] and name in unchanged else deletes
            for name in exempted
        }


def missing_values(schema: Schema | None, options: IcebergOptions) -> MissingValues | None:
    """Return the check for missing values; None if rows may lack any value.

    Args:
        schema: the table's schema; None if there is no table.
        options: the sink's options.
    """
    columns = schema.fields if schema is not None else ()
    required = [column.name for column in columns if column.required]
    if options.commit_mode != "upsert":
        always = tuple((name, "required by the table") for name in required)
        return MissingValues(always, ()) if always else None
    keys = [(name, "part of the key") for name in options.key_fields]
    if options.sequence_field is not None:
        keys.append((options.sequence_field, "the sequence field"))
    key_names = {name for name, _ in keys}
    return MissingValues(
        tuple(keys),
        tuple((name, "required by the table") for name in required if name not in key_names),
        op=options.op_field,
        ignores_deletes=options.delete_mode == "ignore",
    )
