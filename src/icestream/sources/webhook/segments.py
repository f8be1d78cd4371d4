"""The segment files of a spool, and how the driver and tasks read them."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.decoder import Records
from icestream.contracts.source import Split
from icestream.errors import CorruptStateError, SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from icestream.sources.webhook.options import Extra

SEGMENT = struct.Struct("<8s16sQ")
MAGIC = b"ICEHOOK1"
FRAME = struct.Struct("<II")
# Number of the first event, epoch microseconds, key of the id; lengths of stream, id and headers;
# and the count of events, whose lengths follow.
HEAD = struct.Struct("<QQ16sHHII")
NO_KEY = bytes(16)
MAX_ID_BYTES = 1024


@dataclass(frozen=True)
class Arrival:
    """The events of one id, before they are numbered.

    Attributes:
        stream: name of the stream.
        received_us: when, in epoch microseconds.
        key: hash of the id; `NO_KEY` if the sender gave none.
        event_id: the id as sent.
        headers: of the request, as JSON; empty unless included.
        events: as sent.
    """

    stream: bytes
    received_us: int
    key: bytes
    event_id: bytes
    headers: bytes
    events: Sequence[bytes]

    @property
    def size(self) -> int:
        """How many bytes its record takes."""
        names = len(self.stream) + len(self.event_id) + len(self.headers)
        return FRAME.size + HEAD.size + names + sum(4 + len(event) for event in self.events)

    def pack(self, number: int) -> bytes:
        """Return the record of these events, numbered from `number` on."""
        head = HEAD.pack(
            number,
            self.received_us,
            self.key,
            len(self.stream),
            len(self.event_id),
            len(self.headers),
            len(self.events),
        )
        lengths = struct.pack(f"<{len(self.events)}I", *map(len, self.events))
        body = b"".join((head, self.stream, self.event_id, self.headers, lengths, *self.events))
        return FRAME.pack(len(body), zlib.crc32(body)) + body


def unpack_record(body: bytes | memoryview) -> tuple[int, Arrival]:
    """Unpack a verified record: the number of its first event, and its content."""
    number, received_us, key, streams, ids, headers, count = HEAD.unpack_from(body)
    position = HEAD.size
    stream = bytes(body[position : position + streams])
    position += streams
    event_id = bytes(body[position : position + ids])
    position += ids
    request_headers = bytes(body[position : position + headers])
    position += headers
    lengths = struct.unpack_from(f"<{count}I", body, position)
    position += 4 * count
    events = []
    for length in lengths:
        events.append(bytes(body[position : position + length]))
        position += length
    return number, Arrival(stream, received_us, key, event_id, request_headers, events)


SUFFIX = ".events"
# The distance of entries in a segment's index.
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
        marks: sparse index: event number and byte offset of its record.
    """

    path: Path
    first: int
    end: int
    size: int = SEGMENT.size
    marks: list[tuple[int, int]] = field(default_factory=list)

    def add(self, events: int, length: int) -> None:
        """Add a record that was written."""
        if not self.marks or self.size - self.marks[-1][1] >= MARK_BYTES:
            self.marks.append((self.end, self.size))
        self.end += events
        self.size += length

    def offset_of(self, number: int) -> int:
        """Return the byte offset of an indexed record at or before an event."""
        index = bisect_right(self.marks, (number, 1 << 62)) - 1
        return self.marks[index][1] if index >= 0 else SEGMENT.size


@dataclass(frozen=True)
class SegmentFault:
    """Why a record cannot be read."""

    offset: int
    reason: str


def segment_name(first: int) -> str:
    """Return the name of the segment that begins with an event."""
    return f"{first:020d}{SUFFIX}"


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments of a folder, oldest first."""
    return sorted(folder.glob("[0-9]" * 20 + SUFFIX))


def first_event(path: Path) -> int:
    """Return the number of a segment's first event, by its name."""
    return int(path.name.removesuffix(SUFFIX))


def read_records(
    path: Path, offset: int = SEGMENT.size
) -> Iterator[tuple[int, Arrival, int] | SegmentFault]:
    """Yield number, content and length of each record from a byte offset on.

    Ends at the end of the file, or with the fault of an incomplete record.
    """
    with path.open("rb") as file:
        file.seek(offset)
        buffer = b""
        while True:
            more = file.read(CHUNK_BYTES)
            buffer += more
            position = 0
            while len(buffer) - position >= FRAME.size:
                length, checksum = FRAME.unpack_from(buffer, position)
                if length < HEAD.size:
                    yield SegmentFault(offset + position, f"a record of {length} bytes")
                    return
                end = position + FRAME.size + length
                if end > len(buffer):
                    break
                body = buffer[position + FRAME.size : end]
                if zlib.crc32(body) != checksum:
                    yield SegmentFault(offset + position, "the checksum does not match")
                    return
                number, arrival = unpack_record(body)
                yield number, arrival, FRAME.size + length
                position = end
            offset += position
            buffer = buffer[position:]
            if not more:
                if buffer:
                    yield SegmentFault(offset, "the file ends inside a record")
                return


def refuse_foreign_file(path: Path, spool: bytes) -> None:
    """Refuse a file whose header is not that of the segment it is named after.

    Raises:
        CorruptStateError: the header differs.
    """
    with path.open("rb") as file:
        head = file.read(SEGMENT.size)
    if head != SEGMENT.pack(MAGIC, spool, first_event(path)):
        raise corrupt_error(path, "its header is not from this spool")


def load_segment(
    path: Path, visit: Callable[[int, Arrival], None] = lambda *_: None
) -> tuple[Segment, SegmentFault | None]:
    """Return a segment up to its last complete record, and the fault of the next, if any.

    Calls `visit` for each record.
    """
    segment = Segment(path, first_event(path), first_event(path))
    for record in read_records(path):
        if isinstance(record, SegmentFault):
            return segment, record
        number, arrival, length = record
        if number != segment.end:
            return segment, SegmentFault(
                segment.size, f"event {number} where {segment.end} was expected"
            )
        segment.add(len(arrival.events), length)
        visit(number, arrival)
    return segment, None


def corrupt_error(path: Path, reason: str) -> CorruptStateError:
    """Return the error for a corrupt file of the spool."""
    return CorruptStateError(
        f"cannot read {path}: {reason}",
        todo="Restore it from a backup. It holds events that were acknowledged, so it must not be "
        "skipped.",
    )


# Below this, another task costs more than it saves.
MIN_SPLIT_EVENTS = 10_000
MAX_EVENTS = 20_000
MAX_BYTES = 16 << 20

EXTRA_TYPES: dict[Extra, pa.DataType] = {
    "event_id": pa.string(),
    "received_at": pa.timestamp("us", tz="UTC"),
    "stream": pa.string(),
    "number": pa.int64(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
}


@dataclass(frozen=True)
class Slice:
    """Events of one segment, from `begin` up to but not including `end`.

    Attributes:
        path: the segment.
        offset: byte offset of a record at or before `begin`.
    """

    path: str
    offset: int
    begin: int
    end: int


def make_splits(segments: Sequence[Segment], begin: int, end: int, slots: int) -> list[Split]:
    """Split the events between two numbers for `slots` parallel tasks."""
    rows = end - begin
    if rows <= 0:
        return []
    pieces = max(1, min(slots, rows // MIN_SPLIT_EVENTS))
    edges = [begin + rows * piece // pieces for piece in range(pieces + 1)]
    return [
        Split(tuple(_slices(segments, low, high)), high - low)
        for low, high in itertools.pairwise(edges)
    ]


def _slices(segments: Sequence[Segment], begin: int, end: int) -> Iterator[Slice]:
    for segment in segments:
        low, high = max(begin, segment.first), min(end, segment.end)
        if low < high:
            yield Slice(str(segment.path), segment.offset_of(low), low, high)


def read_slices(slices: Sequence[Slice], extras: Sequence[Extra]) -> Iterator[Records]:
    """Yield the events of some slices, in order of arrival."""
    for part in slices:
        block = _RecordBlock(extras)
        for number, arrival in _arrivals(part):
            for index in range(
                max(part.begin - number, 0), min(part.end - number, len(arrival.events))
            ):
                block.add(number + index, arrival, arrival.events[index])
            if block.is_full():
                yield block.records()
                block = _RecordBlock(extras)
        if block.values:
            yield block.records()


def _arrivals(part: Slice) -> Iterator[tuple[int, Arrival]]:
    path = Path(part.path)
    reached = part.begin
    try:
        for record in read_records(path, part.offset):
            if isinstance(record, SegmentFault):
                raise corrupt_error(path, f"at byte {record.offset}: {record.reason}")
            number, arrival, _ = record
            reached = number + len(arrival.events)
            yield number, arrival
            if reached >= part.end:
                return
    except FileNotFoundError as exc:
        raise SourceChangedError(
            f"events {part.begin} to {part.end - 1} are gone: file {path} does not exist",
            todo="Was the spool removed? On a cluster, can every worker access the folder?",
        ) from exc
    raise corrupt_error(path, f"it ends at event {reached} instead of {part.end}")


class _RecordBlock:
    """Collects events into one block of records."""

    def __init__(self, extras: Sequence[Extra]) -> None:
        self._extras = extras
        self._origins: list[tuple[int, Arrival]] = []
        self._size = 0
        self.values: list[bytes] = []

    def add(self, number: int, arrival: Arrival, event: bytes) -> None:
        self.values.append(event)
        self._origins.append((number, arrival))
        self._size += len(event)

    def is_full(self) -> bool:
        return len(self.values) >= MAX_EVENTS or self._size >= MAX_BYTES

    def records(self) -> Records:
        first = self._origins[0][0]
        extra = {
            f"webhook_{name}": pa.array(
                [_EXTRA_VALUES[name](*origin) for origin in self._origins], EXTRA_TYPES[name]
            )
            for name in self._extras
        }
        return Records(
            pa.array(self.values, pa.binary()), extra, lambda index: f"event {first + index}"
        )


_EXTRA_VALUES: dict[Extra, Callable[[int, Arrival], Any]] = {
    "event_id": lambda _, arrival: arrival.event_id.decode("utf-8", "replace") or None,
    "received_at": lambda _, arrival: arrival.received_us,
    "stream": lambda _, arrival: arrival.stream.decode(),
    "number": lambda number, _: number,
    "headers": lambda _, arrival: json.loads(arrival.headers) if arrival.headers else None,
}
