"""How requests lie in a segment of the spool, byte by byte.

A segment begins with a head that names the spool and the number of its first event. Records
follow, one for each request (or for each event, where events have ids of their own): length,
checksum, and what was received. A record holds all events of its id or none, since a sender that
repeats the id repeats all of them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SEGMENT = struct.Struct("<8s16sQ")
MAGIC = b"ICEHOOK1"
FRAME = struct.Struct("<II")
# Number of the first event, micros of 1970, key of the id; lengths of stream, id and headers; and
# the count of events, whose lengths follow.
HEAD = struct.Struct("<QQ16sHHII")
NO_KEY = bytes(16)
MOST_ID_BYTES = 1024


@dataclass(frozen=True)
class Arrival:
    """What one id brought, before it has a number.

    Attributes:
        stream: name of the stream.
        received_us: when, in microseconds of 1970.
        key: what the id is remembered by; `NO_KEY` if the sender gave none.
        event_id: the id as it was sent.
        headers: of the request, as JSON; empty unless they are asked for.
        events: as they were sent.
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
        return FRAME.size + HEAD.size + names + sum(4 + len(each) for each in self.events)

    def packed(self, number: int) -> bytes:
        """Return the record of these events, the first of which has this number."""
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


def unpacked(body: bytes | memoryview) -> tuple[int, Arrival]:
    """Return the number of the first event of a record whose checksum is right, and all of it."""
    number, at, key, streams, ids, headers, count = HEAD.unpack_from(body)
    place = HEAD.size
    stream = bytes(body[place : place + streams])
    place += streams
    event_id = bytes(body[place : place + ids])
    place += ids
    told = bytes(body[place : place + headers])
    place += headers
    lengths = struct.unpack_from(f"<{count}I", body, place)
    place += 4 * count
    events = []
    for length in lengths:
        events.append(bytes(body[place : place + length]))
        place += length
    return number, Arrival(stream, at, key, event_id, told, events)
