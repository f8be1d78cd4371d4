"""Reading changes to many tables: each block names its own, and comes in its own columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icestream.contracts.decoder import Records
from icestream.engine.bad_records import note_bad
from icestream.engine.dead_letters import LetterBuffer
from icestream.engine.tasks import Reading, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from icestream.contracts.changes import ChangeDecoder
    from icestream.engine.tasks import Report


@dataclass(frozen=True)
class ChangeReading(Reading):
    """Reads splits into blocks of changes.

    Attributes:
        change_decoder: decodes records; None if the source gives blocks already.
    """

    change_decoder: ChangeDecoder | None = None

    def rows(self, report: Report) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of a split, and note records that can't be decoded in its report."""
        bad = None
        if self.dead_letters is not None:
            bad = LetterBuffer(self.dead_letters, report.dead_files)
        for given in self.blocks(report.split):
            for block in self._blocks(given, report, bad):
                report.rows += block.num_rows
                yield block
        if bad is not None:
            bad.flush()

    def _blocks(
        self, given: Records | pa.RecordBatch, report: Report, bad: LetterBuffer | None
    ) -> Sequence[pa.RecordBatch]:
        if not isinstance(given, Records):
            return [given]
        assert self.change_decoder is not None  # noqa: S101 - a source of records has a decoder
        decoded = self.change_decoder.decode_changes(given)
        note_bad(given, decoded.bad, report, bad)
        report.ignored.update(decoded.ignored)
        if report.bad and self.stop_at_bad:
            raise Stop
        return decoded.blocks
