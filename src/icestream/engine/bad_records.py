"""Takes note of records that can't be decoded, in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.decoder import BadRecord, Decoded
from icestream.contracts.reports import shortened
from icestream.decode.exact import cast_exactly
from icestream.decode.inference import merge_fields, unknown_fields
from icestream.decode.widening import widest_field
from icestream.engine.dead_letters import extra_as_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icestream.contracts.decoder import Records
    from icestream.engine.columns import RefusedField
    from icestream.engine.dead_letters import LetterBuffer
    from icestream.engine.tasks import Report

BAD_EXAMPLES = 20


def note_bad(
    records: Records,
    found: Iterable[tuple[int, str]],
    report: Report,
    bad: LetterBuffer | None,
    first: int | None = None,
) -> None:
    """Count bad records; keep some as examples, and all as dead letters.

    The report says where an example is and why it is bad. Its bytes may be many, and only the
    dead letter holds them.

    Args:
        records: the records, good and bad.
        found: index and reason of each bad one.
        report: the report of their split.
        bad: takes the dead letters; None to keep none.
        first: the number of the first record, where the report names every bad one.
    """
    for index, reason in found:
        report.bad += 1
        if first is not None:
            report.told[first + index] = shortened(reason)
        if len(report.examples) < BAD_EXAMPLES:
            where = shortened(records.position(index))
            report.examples.append(BadRecord(None, shortened(reason), where))
        if bad is not None:
            raw = records.values[index].as_py()
            extra = extra_as_json(records, index)
            bad.add(BadRecord(raw, reason, records.position(index), extra))


def with_refused(columns: pa.Schema, refused: Sequence[RefusedField]) -> pa.Schema:
    """Return columns to decode with, so that `without_refused` finds values of refused fields."""
    found: dict[str, pa.DataType] = {}
    for field in refused:
        found = merge_fields(found, {field.column.name: field.column.type})
    grown = unknown_fields(columns, found)
    known = [column.with_type(grown.pop(column.name, column.type)) for column in columns]
    return pa.schema([*known, *grown.items()])


def without_refused(
    outcome: Decoded, columns: pa.Schema, refused: Sequence[RefusedField]
) -> Decoded:
    """Return the outcome with the records that have a value for a refused field among the bad.

    Args:
        outcome: of decoding with the columns that `with_refused` returned.
        columns: the columns without refused fields.
        refused: the fields.
    """
    if not refused:
        return outcome
    rows = outcome.rows
    reasons = pa.nulls(rows.num_rows, pa.string())
    for field in refused:
        if not has_member(rows.schema.field(field.column.name).type, field.members):
            continue  # somebody has changed the column to another type
        has_value = _has_value(rows.column(field.column.name), field.members)
        reasons = pc.if_else(pc.and_(has_value, reasons.is_null()), field.reason, reasons)
    numbers = pa.array(range(rows.num_rows), pa.int64()) if outcome.kept is None else outcome.kept
    is_bad = reasons.is_valid()
    found = zip(numbers.filter(is_bad).to_pylist(), reasons.drop_null().to_pylist(), strict=True)
    good = rows.filter(reasons.is_null())
    visible = [cast_exactly(good.column(column.name), column.type) for column in columns]
    names = {field.column.name for field in refused if not field.members}
    wider = {
        column.name: widest_field(column, outcome.wider[column.name]) or column
        for column in columns
        if column.name in outcome.wider
    }
    return Decoded(
        rows=pa.RecordBatch.from_arrays(visible, schema=columns),
        kept=numbers.filter(reasons.is_null()),
        bad=tuple(sorted((*outcome.bad, *found))),
        new_fields={name: kind for name, kind in outcome.new_fields.items() if name not in names},
        # A refused member alone may have become wider.
        wider={name: field for name, field in wider.items() if field != columns.field(name)},
    )


def _has_value(array: pa.Array, members: tuple[str, ...]) -> pa.Array:
    """Tell which values have something at a member; see `RefusedField.members`."""
    if not members:
        return array.is_valid()
    if pa.types.is_list(array.type):
        inner = _has_value(array.flatten(), members[1:])
        found = pc.list_parent_indices(array).filter(inner)
        return pc.is_in(pa.array(range(len(array)), pa.int64()), value_set=found)
    return pc.and_(array.is_valid(), _has_value(array.field(members[0]), members[1:]))


def has_member(kind: pa.DataType, members: tuple[str, ...]) -> bool:
    """Tell whether a type has a member; see `RefusedField.members`."""
    if not members:
        return True
    if pa.types.is_list(kind):
        return has_member(kind.value_type, members[1:])
    index = kind.get_field_index(members[0]) if pa.types.is_struct(kind) else -1
    return index >= 0 and has_member(kind.field(index).type, members[1:])
