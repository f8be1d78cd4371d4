"""Takes note of records that can't be decoded, in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.records import BadRecord, Decoded
from icestream.contracts.reports import shortened
from icestream.engine.dead_letters import extra_as_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icestream.contracts.records import Records
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


def without_refused(outcome: Decoded, refused: Sequence[RefusedField]) -> Decoded:
    """Return the outcome with the records that have a value for a refused field among the bad.

    Args:
        outcome: of decoding with the refused fields as further columns.
        refused: the fields.
    """
    if not refused:
        return outcome
    rows, names = outcome.rows, {field.column.name for field in refused}
    reasons = pa.nulls(rows.num_rows, pa.string())
    for field in refused:
        is_first = pc.and_(rows.column(field.column.name).is_valid(), reasons.is_null())
        reasons = pc.if_else(is_first, field.reason, reasons)
    numbers = pa.array(range(rows.num_rows), pa.int64()) if outcome.kept is None else outcome.kept
    is_bad = reasons.is_valid()
    found = zip(numbers.filter(is_bad).to_pylist(), reasons.drop_null().to_pylist(), strict=True)
    visible = rows.select([name for name in rows.schema.names if name not in names])
    return Decoded(
        rows=visible.filter(reasons.is_null()),
        kept=numbers.filter(reasons.is_null()),
        bad=tuple(sorted((*outcome.bad, *found))),
        new_fields={name: kind for name, kind in outcome.new_fields.items() if name not in names},
        wider={name: column for name, column in outcome.wider.items() if name not in names},
    )
