"""Takes note of records that can't be decoded, in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.records import BadRecord
from icestream.contracts.reports import shortened
from icestream.engine.dead_letters import extra_as_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.contracts.records import Records
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
            extra = extra_as_json(records.extra, index)
            bad.add(BadRecord(raw, reason, records.position(index), extra))
