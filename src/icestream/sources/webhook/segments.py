"""The files of a spool, looked at by whoever reads: the driver, and tasks elsewhere."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icestream.errors import CorruptStateError
from icestream.sources.webhook.records import FRAME, HEAD, MAGIC, SEGMENT, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icestream.sources.webhook.records import Arrival

SUFFIX = ".events"
# So many bytes apart, a segment knows where an event begins.
MARK_BYTES = 64 << 10
CHUNK_BYTES = 4 << 20


@dataclass
class Segment:
    """One file of the spool.

    Attributes:
        path: the file; its name is the number of its first event.
        first: that number.
        end: the number after its last event.
        size: bytes that hold whole records.
        marks: number of an event and where its record begins, now and then.
    """

    path: Path
    first: int
    end: int
    size: int = SEGMENT.size
    marks: list[tuple[int, int]] = field(default_factory=list)

    def add(self, events: int, length: int) -> None:
        """Note a record that was written."""
        if not self.marks or self.size - self.marks[-1][1] >= MARK_BYTES:
            self.marks.append((self.end, self.size))
        self.end += events
        self.size += length

    def offset_of(self, number: int) -> int:
        """Return where a record begins that is at or before an event."""
        place = bisect_right(self.marks, (number, 1 << 62)) - 1
        return self.marks[place][1] if place >= 0 else SEGMENT.size


@dataclass(frozen=True)
class Fault:
    """Why a record can't be read."""

    offset: int
    reason: str


def name_of(first: int) -> str:
    """Return the name of the segment that begins with an event."""
    return f"{first:020d}{SUFFIX}"


def paths_in(folder: Path) -> list[Path]:
    """Return the segments of a folder, oldest first."""
    return sorted(folder.glob("[0-9]" * 20 + SUFFIX))


def first_of(path: Path) -> int:
    """Return the number of a segment's first event, by its name."""
    return int(path.name.removesuffix(SUFFIX))


def records_in(
    path: Path, offset: int = SEGMENT.size
) -> Iterator[tuple[int, Arrival, int] | Fault]:
    """Yield number, content and length of each record from an offset on.

    Ends at the end of the file, or with the fault of a record that is not whole.
    """
    with path.open("rb") as file:
        file.seek(offset)
        held = b""
        while True:
            more = file.read(CHUNK_BYTES)
            held += more
            place = 0
            while len(held) - place >= FRAME.size:
                length, checksum = FRAME.unpack_from(held, place)
                if length < HEAD.size:
                    yield Fault(offset + place, f"a record of {length} bytes")
                    return
                end = place + FRAME.size + length
                if end > len(held):
                    break
                body = held[place + FRAME.size : end]
                if zlib.crc32(body) != checksum:
                    yield Fault(offset + place, "the checksum does not match")
                    return
                number, arrival = unpacked(body)
                yield number, arrival, FRAME.size + length
                place = end
            offset += place
            held = held[place:]
            if not more:
                if held:
                    yield Fault(offset, "the file ends inside a record")
                return


def refuse_other_file(path: Path, spool: bytes) -> None:
    """Refuse a file that is not the segment which its name promises.

    Raises:
        CorruptStateError: it begins otherwise.
    """
    with path.open("rb") as file:
        head = file.read(SEGMENT.size)
    if head != SEGMENT.pack(MAGIC, spool, first_of(path)):
        raise corrupt(path, "its head is not the one of this spool")


def loaded(
    path: Path, meet: Callable[[int, Arrival], None] = lambda *_: None
) -> tuple[Segment, Fault | None]:
    """Return a segment by its whole records, and what is wrong with the one after them, if any.

    `meet` is given each record.
    """
    segment = Segment(path, first_of(path), first_of(path))
    for found in records_in(path):
        if isinstance(found, Fault):
            return segment, found
        number, arrival, length = found
        if number != segment.end:
            return segment, Fault(segment.size, f"event {number} stands where {segment.end} should")
        segment.add(len(arrival.events), length)
        meet(number, arrival)
    return segment, None


def corrupt(path: Path, reason: str) -> CorruptStateError:
    """Return the error for a file of the spool that can't be trusted."""
    return CorruptStateError(
        f"the file {path} can't be read: {reason}",
        todo="Restore it from a backup. It holds events that were answered with success, so none "
        "of it is passed over.",
    )
