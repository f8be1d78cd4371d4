"""Where a pipeline into many tables begins, when its checkpoint is lost or set aside.

The newest mark of any table tells how far the source was read, not that every table holds that
batch: a crash may have come between two of them. So that batch is read once more, and the tables
that hold it are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.errors import CheckpointLostError

if TYPE_CHECKING:
    from icestream.contracts.offset import BatchMark, Position
    from icestream.contracts.sink import ManyTables, Sink
    from icestream.engine.reconcile import Choice


def resumed_at(
    sink: ManyTables[Any], dead_letter: Sink[Any] | None, mark: BatchMark
) -> tuple[Position, Position | None]:
    """Return where to go on after `mark`, and where the first batch ends if that is fixed."""
    letters = dead_letter.last_mark() if dead_letter is not None else None
    if letters is not None and letters.query_id == mark.query_id and letters.epoch >= mark.epoch:
        # They come last, so every table holds that batch.
        sink.begin_anew(None)
        return letters.end, None
    sink.begin_anew(mark)
    return mark.start, mark.end


def still_ahead(sink: ManyTables[Any], current: Position) -> Position | None:
    """Return where the first batch ends if a run that resumed was cut off before it began."""
    again = sink.read_again()
    return again.end if again is not None and again.start == current else None


def refuse_renamed(choice: Choice, pipeline: str, table: str, old: BatchMark) -> None:
    """Refuse to go on under a new name: the marks of the tables go by the old one.

    Raises:
        CheckpointLostError: always, unless the choice is to start over.
    """
    if choice == "start-over":
        return
    raise CheckpointLostError(
        f"the tables hold rows of the same source by pipeline {old.pipeline!r}, which the file no "
        f"longer has, up to batch {old.epoch}",
        where=f"pipeline {pipeline!r}, table {table}",
        todo=f"Call the pipeline {old.pipeline!r} again: its marks in the tables have that name.\n"
        "To read the source from its beginning again, next to what the tables hold: list the "
        "tables in `allowed_tables` of the sink, since another pipeline created them, then run "
        f"icestream run --pipeline {pipeline} --start-over",
    )
