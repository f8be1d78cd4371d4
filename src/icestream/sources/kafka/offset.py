"""Offsets of the Kafka source, and the arithmetic on them.

An offset is `{"topics": {"orders": {"id": ..., "partitions": {"0": 1234}}}}`: for each partition
the offset of the next record. A partition that is new also has its lowest offset, under `begins`,
since the previous offset does not include it. `epochs` has the leader epoch in which the offset of
each partition was listed, if the broker reports one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from icestream.contracts.source import Split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.offset import Offset


Partition: TypeAlias = tuple[str, int]
# Below this, another task costs more than it saves.
_MIN_SPLIT_ROWS = 10_000


@dataclass(frozen=True)
class Span:
    """Offsets of one partition, from `begin` up to but not including `end`.

    `epoch` is the leader epoch in which `begin` was listed, if the log may have been truncated
    since; otherwise -1, librdkafka's value for none.
    """

    topic: str
    partition: int
    begin: int
    end: int
    epoch: int = -1

    @property
    def rows(self) -> int:
        """The number of offsets: an upper bound of the number of records."""
        return self.end - self.begin


def build_offset(
    ids: Mapping[str, str],
    offsets: Mapping[Partition, int],
    begins: Mapping[Partition, int] | None = None,
    epochs: Mapping[Partition, int] | None = None,
) -> Offset:
    """Return the offset of a source, in the canonical order that is stored and compared."""
    topics: dict[str, dict[str, object]] = {}
    for topic in sorted(ids):
        topics[topic] = {"id": ids[topic], "partitions": _partitions_of(offsets, topic)}
        for name, more in (("begins", begins), ("epochs", epochs)):
            if found := _partitions_of(more or {}, topic):
                topics[topic][name] = found
    return {"topics": topics}


def _partitions_of(offsets: Mapping[Partition, int], topic: str) -> dict[str, int]:
    numbers = sorted(number for name, number in offsets if name == topic)
    return {str(number): offsets[topic, number] for number in numbers}


def topic_ids(offset: Offset) -> dict[str, str]:
    """Return the id of each topic."""
    return {topic: entry["id"] for topic, entry in offset["topics"].items()}


def partition_offsets(offset: Offset, key: str = "partitions") -> dict[Partition, int]:
    """Return the offset of each partition, or its value under another `key`."""
    return {
        (topic, int(number)): value
        for topic, entry in offset["topics"].items()
        for number, value in entry.get(key, {}).items()
    }


def spans_between(start: Offset, end: Offset) -> list[Span]:
    """Return the spans between two offsets, without partitions that have nothing new."""
    before = {**partition_offsets(end, "begins"), **partition_offsets(start)}
    epochs, listed = partition_offsets(start, "epochs"), partition_offsets(end, "epochs")
    # Within one epoch a log only grows, so comparing it is needed only if the epoch changed.
    changed = {key: epoch for key, epoch in epochs.items() if listed.get(key) != epoch}
    found = [
        Span(*key, before.get(key, 0), offset, changed.get(key, -1))
        for key, offset in sorted(partition_offsets(end).items())
    ]
    return [span for span in found if span.rows > 0]


def limit_offset(start: Offset, end: Offset, max_rows: int) -> Offset:
    """Return an offset about `max_rows` past `start`; each partition advances by its share."""
    parts = spans_between(start, end)
    total = sum(span.rows for span in parts)
    if total <= max_rows:
        return end
    offsets, left = partition_offsets(start), max(max_rows, 1)
    new, listed = partition_offsets(end, "begins"), partition_offsets(end, "epochs")
    epochs = partition_offsets(start, "epochs")
    begins: dict[Partition, int] = {}
    shares = [max_rows * span.rows // total for span in parts]
    left -= sum(shares)
    for index, span in enumerate(parts):
        # Rounding down leaves less than one row per partition: the first partitions get them.
        share = shares[index] + (1 if index < left else 0)
        key = (span.topic, span.partition)
        if share:
            offsets[key] = span.begin + min(share, span.rows)
            epochs[key] = listed.get(key, -1)
            if key in new and key not in partition_offsets(start):
                begins[key] = new[key]
    met = {topic for topic, _ in offsets} | set(topic_ids(start))
    ids = {
        topic: name
        for topic, name in {**topic_ids(end), **topic_ids(start)}.items()
        if topic in met
    }
    known = {key: epoch for key, epoch in epochs.items() if epoch >= 0}
    return build_offset(ids, offsets, begins, known)


def make_splits(start: Offset, end: Offset, slots: int) -> list[Split]:
    """Split a range for `slots` parallel tasks.

    With more partitions than slots, several share a task, so that a small batch does not become
    many small files. With fewer, long ones are split.
    """
    parts = spans_between(start, end)
    if not parts:
        return []
    if len(parts) < slots:
        total = sum(span.rows for span in parts)
        cut = [piece for span in parts for piece in _split_span(span, total, slots)]
        return [Split((piece,), piece.rows) for piece in cut]
    groups: list[list[Span]] = [[] for _ in range(slots)]
    loads = [0] * slots
    for span in sorted(parts, key=lambda span: -span.rows):
        lightest = loads.index(min(loads))
        groups[lightest].append(span)
        loads[lightest] += span.rows
    return [Split(tuple(group), load) for group, load in zip(groups, loads, strict=True) if group]


def _split_span(span: Span, total: int, slots: int) -> list[Span]:
    pieces = min(round(slots * span.rows / total), span.rows // _MIN_SPLIT_ROWS)
    pieces = max(pieces, 1)
    edges = [span.begin + span.rows * number // pieces for number in range(pieces + 1)]
    # The epoch is that of the span's first offset.
    return [
        replace(span, begin=begin, end=end, epoch=span.epoch if begin == span.begin else -1)
        for begin, end in itertools.pairwise(edges)
    ]
