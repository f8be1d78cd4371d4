"""Keeps a replayed batch from writing its dead letters twice.

Normally `holds(mark)` is enough. After `--resume`, the query id is new, so offsets are compared
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import AttentionError

if TYPE_CHECKING:
    from icestream.contracts.offset import BatchMark, Offset
    from icestream.plan.plan import PipelinePlan


def find_dead_letters_end(
    plan: PipelinePlan, mark: BatchMark | None, current: Offset, ignored: str | None
) -> Offset | None:
    """Return the offset up to which dead letters are ahead of the table; None if they are not.

    They are ahead after a batch of only bad records, or after a crash. The first batch ends there,
    so that its letters count as written.

    Args:
        plan: the pipeline.
        mark: the newest mark of its table.
        current: the offset from which it resumes.
        ignored: a mark of letters that the user chose to ignore when starting over.
    """
    held = plan.dead_letter.last_mark() if plan.dead_letter is not None else None
    if held is None or held.source != plan.source.identity() or held.end == current:
        return None
    if held.to_json() == ignored:
        return None
    if mark is None:
        # Letters of later offsets may belong to a dropped table, and how many there were before
        # them is unknown.
        return held.end if held.start == current else None
    is_later = held.query_id == mark.query_id and held.epoch > mark.epoch
    return held.end if mark.end == current and (is_later or held.start == mark.end) else None


def are_already_written(
    plan: PipelinePlan, count: int, mark: BatchMark, dead_letters_end: Offset | None
) -> bool:
    """Return whether the dead-letter table already holds the letters of this batch.

    Args:
        plan: the pipeline.
        count: how many letters the batch has now.
        mark: the mark of the batch.
        dead_letters_end: the end of the first batch if an earlier query wrote its letters.

    Raises:
        AttentionError: the table holds another number of letters for the very same records.
    """
    assert plan.dead_letter is not None  # noqa: S101 - the caller checks
    held = plan.dead_letter.last_mark()
    if held is None or not (
        plan.dead_letter.holds(mark) or _is_first(held, mark, dead_letters_end)
    ):
        return False
    if _is_same_batch(held, mark) and held.rows != count:
        table = plan.dead_letter.identity()
        raise AttentionError(
            f"the batch was interrupted after writing {held.rows} dead letters to {table}; on "
            f"replay it has {count}, because what counts as a bad record has changed",
            where=f"pipeline {plan.name!r}, batch {mark.epoch}",
            todo="Nothing else of the batch was written. Undo the change (to `expect`, `on_error`, "
            "the transforms or the columns) until this batch is committed, then apply it again: "
            "`icestream dlq replay` replays dead letters that now pass. If a condition uses "
            "`now()`, replace it with the original timestamp.",
        )
    return True


def are_held_by_earlier_query(
    plan: PipelinePlan, count: int, mark: BatchMark, dead_letters_end: Offset | None
) -> bool:
    """Return whether an earlier query wrote the same number of letters for the same records.

    For a batch of many tables, which are committed before the letters: it is too late to refuse.
    """
    held = plan.dead_letter.last_mark() if plan.dead_letter is not None else None
    if held is None or not _is_first(held, mark, dead_letters_end):
        return False
    return _is_same_batch(held, mark) and held.rows == count


def _is_first(held: BatchMark, mark: BatchMark, dead_letters_end: Offset | None) -> bool:
    return (
        mark.epoch == 0
        and dead_letters_end is not None
        and held.end == mark.end == dead_letters_end
    )


def _is_same_batch(held: BatchMark, mark: BatchMark) -> bool:
    return (held.source, held.start, held.end) == (mark.source, mark.start, mark.end)
