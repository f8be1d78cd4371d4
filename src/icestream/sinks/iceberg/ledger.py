"""The marks of a table: which batch of which pipeline it holds.

The newest mark of each pipeline is a table property, written in the same commit as the rows. A
snapshot can be expired by anyone's tool and takes its summary along; properties stay. Each
snapshot's summary tells people which batch it holds, in a few hundred bytes: every metadata file
repeats the summaries of all snapshots, so offsets, which may be large, are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.offset import SHORT_LENGTH, BatchMark, short_form
from icestream.errors import CorruptStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "icestream.mark."


def property_key(pipeline: str) -> str:
    """Return the table property that holds a pipeline's newest mark."""
    return PREFIX + pipeline


def read_mark(properties: Mapping[str, str], pipeline: str) -> BatchMark | None:
    """Return a pipeline's newest mark, or None if it never wrote to the table."""
    text = properties.get(property_key(pipeline))
    return None if text is None else parse_mark(text, property_key(pipeline))


def read_marks(properties: Mapping[str, str]) -> dict[str, BatchMark]:
    """Return the newest mark of every pipeline that wrote to the table."""
    return {
        key.removeprefix(PREFIX): parse_mark(text, key)
        for key, text in sorted(properties.items())
        if key.startswith(PREFIX)
    }


def parse_mark(text: str, key: str) -> BatchMark:
    """Read a mark; one that can't be read is never passed over."""
    try:
        return BatchMark.from_json(text)
    except (ValueError, TypeError) as exc:
        raise CorruptStateError(
            f"table property {key!r} is not a mark of icestream: {text!r}",
            todo="Restore the property from an older metadata file of the table, or unset it to "
            "start the pipeline over.",
        ) from exc


def summary_of(mark: BatchMark) -> dict[str, str]:
    """Return what the snapshot's summary says of the batch, whatever the size of its offsets."""
    facts = {
        "icestream.pipeline": mark.pipeline,
        "icestream.query-id": mark.query_id,
        "icestream.epoch": str(mark.epoch),
        "icestream.source": mark.source[:SHORT_LENGTH],
        "icestream.position": short_form(mark.end),
        "icestream.rows": str(mark.rows),
        "icestream.instance": mark.instance,
    }
    return {**facts, "icestream.load": mark.load} if mark.load else facts


def covers(held: BatchMark | None, mark: BatchMark) -> bool:
    """Tell whether a table whose newest mark is `held` has the batch of `mark` already."""
    # A wiped checkpoint restarts epochs at 0 under a new query id, so an epoch left by another
    # query tells nothing about this batch.
    return held is not None and held.query_id == mark.query_id and mark.epoch <= held.epoch
