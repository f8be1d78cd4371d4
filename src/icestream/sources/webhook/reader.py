"""Reads parts of segments in a task."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.decoder import Records
from icestream.contracts.source import Split
from icestream.errors import SourceChangedError
from icestream.sources.webhook.segments import Fault, corrupt, records_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from icestream.sources.webhook.options import Extra
    from icestream.sources.webhook.records import Arrival
    from icestream.sources.webhook.segments import Segment

# Below this a second task costs more than it saves.
WORTH_CUTTING = 10_000
MOST_EVENTS = 20_000
MOST_BYTES = 16 << 20

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
        offset: where a record begins that is at or before `begin`.
    """

    path: str
    offset: int
    begin: int
    end: int


def splits_of(segments: Sequence[Segment], begin: int, end: int, slots: int) -> list[Split]:
    """Cut the events between two numbers for `slots` tasks at a time."""
    rows = end - begin
    if rows <= 0:
        return []
    pieces = max(1, min(slots, rows // WORTH_CUTTING))
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


def read_slices(slices: Sequence[Slice], wanted: Sequence[Extra]) -> Iterator[Records]:
    """Yield the events of some slices, in the order in which they came."""
    for part in slices:
        block = _Block(wanted)
        for number, arrival in _arrivals(part):
            for place in range(
                max(part.begin - number, 0), min(part.end - number, len(arrival.events))
            ):
                block.add(number + place, arrival, arrival.events[place])
            if block.is_full():
                yield block.records()
                block = _Block(wanted)
        if block.values:
            yield block.records()


def _arrivals(part: Slice) -> Iterator[tuple[int, Arrival]]:
    path = Path(part.path)
    reached = part.begin
    try:
        for found in records_in(path, part.offset):
            if isinstance(found, Fault):
                raise corrupt(path, f"at byte {found.offset}: {found.reason}")
            number, arrival, _ = found
            reached = number + len(arrival.events)
            yield number, arrival
            if reached >= part.end:
                return
    except FileNotFoundError as exc:
        raise SourceChangedError(
            f"events {part.begin} to {part.end - 1} are gone: there is no file {path}",
            todo="Was the spool removed? On a cluster, is it a folder that every worker sees?",
        ) from exc
    raise corrupt(path, f"it ends at event {reached}, and those up to {part.end} were promised")


class _Block:
    """Events that become one block of records."""

    def __init__(self, wanted: Sequence[Extra]) -> None:
        self._wanted = wanted
        self._facts: list[tuple[int, Arrival]] = []
        self._size = 0
        self.values: list[bytes] = []

    def add(self, number: int, arrival: Arrival, event: bytes) -> None:
        self.values.append(event)
        self._facts.append((number, arrival))
        self._size += len(event)

    def is_full(self) -> bool:
        return len(self.values) >= MOST_EVENTS or self._size >= MOST_BYTES

    def records(self) -> Records:
        first = self._facts[0][0]
        extra = {
            f"webhook_{name}": pa.array(
                [_FACTS[name](*each) for each in self._facts], EXTRA_TYPES[name]
            )
            for name in self._wanted
        }
        return Records(
            pa.array(self.values, pa.binary()), extra, lambda index: f"event {first + index}"
        )


_FACTS: dict[Extra, Callable[[int, Arrival], Any]] = {
    "event_id": lambda _, arrival: arrival.event_id.decode("utf-8", "replace") or None,
    "received_at": lambda _, arrival: arrival.received_us,
    "stream": lambda _, arrival: arrival.stream.decode(),
    "number": lambda number, _: number,
    "headers": lambda _, arrival: json.loads(arrival.headers) if arrival.headers else None,
}
