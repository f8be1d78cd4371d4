"""What the tasks of one batch came to, and what follows from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icestream.contracts.changes import NewShapesError
from icestream.engine.dead_letters.buffer import DEAD_LETTERS, DeadLetters
from icestream.errors import BadRecordError, IcestreamError
from icestream.formats.inference import join_columns, merge_fields

if TYPE_CHECKING:
    import pyarrow as pa

    from icestream.contracts.decoder import BadRecord
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import WrittenFile
    from icestream.engine.batch import tasks
    from icestream.plan.plan import PipelinePlan


@dataclass
class Outcome:
    """The reports of one batch's tasks, added up."""

    rows: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    dead_files: list[WrittenFile] = field(default_factory=list)
    bad: int = 0
    examples: list[tuple[int, BadRecord]] = field(default_factory=list)
    new_fields: dict[str, pa.DataType] = field(default_factory=dict)
    wider: dict[str, pa.Field] = field(default_factory=dict)
    unmet: Counter[str] = field(default_factory=Counter)
    unmet_rows: int = 0
    unmet_examples: dict[str, str] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    new_shapes: list[pa.Schema] = field(default_factory=list)
    error: IcestreamError | None = None
    reading: tasks.Reading | None = None

    def add(self, report: tasks.Report) -> None:
        """Take up the report of one task. Only those that read have examples."""
        if isinstance(report.error, NewShapesError):
            self.new_shapes += report.error.shapes
            self.files += report.error.files
        else:
            self.error = self.error or report.error
        self.rows += report.rows
        self.files += report.files
        self.dead_files += report.dead_files
        self.bad += report.bad
        self.examples += [(report.split, example) for example in report.examples]
        self.new_fields = merge_fields(self.new_fields, report.new_fields)
        self.wider = join_columns(self.wider, report.wider)
        self.unmet.update(report.unmet)
        self.unmet_rows += report.unmet_rows
        self.unmet_examples = {**report.unmet_examples, **self.unmet_examples}
        self.told.update(report.told)
        self.ignored.update(report.ignored)


def letters_of(plan: PipelinePlan, mark: BatchMark) -> DeadLetters | None:
    """Return where the bad records of a batch go; None if they are kept nowhere."""
    if plan.dead_letter is None:
        return None
    plan.dead_letter.prepare(DEAD_LETTERS)
    return DeadLetters(plan.dead_letter.writer(), plan.name, mark.epoch)


def discard(plan: PipelinePlan, outcome: Outcome) -> None:
    """Remove what the tasks of a batch wrote: it is written anew, or not at all."""
    plan.sink.discard(outcome.files)
    if plan.dead_letter is not None:
        plan.dead_letter.discard(outcome.dead_files)


def bad_record(plan: PipelinePlan, outcome: Outcome, mark: BatchMark) -> IcestreamError | None:
    """Return the error of the first record that can't be decoded, if that ends the batch."""
    if not outcome.bad or plan.on_error != "fail":
        return None
    _, first = min(outcome.examples, key=lambda found: found[0])
    return BadRecordError(
        f"record {first.position} can't be decoded: {first.reason}",
        where=f"pipeline {plan.name!r}, batch {mark.epoch}",
        todo="Nothing of the batch was written. Mend the record's producer, or set "
        "`on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`, on sink "
        f"{plan.sink_name!r}.",
    )
