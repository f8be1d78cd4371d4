"""The Kafka source: offsets on the driver, records in tasks.

An offset is `{"topics": {"orders": {"id": ..., "partitions": {"0": 1234}}}}`: for each partition
the offset of the next record. A partition that is new also has its lowest offset, under `begins`,
since the previous offset does not include it. `epochs` has the leader epoch in which the offset of
each partition was listed, if the broker reports one.

Consumer groups are not used: offsets live in Spark's checkpoint and in the mark of the table, and
nothing is committed to Kafka.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.faults import CheckStep
from icestream.contracts.source import Source, SourceTraits, Split
from icestream.errors import ConnectorError, IcestreamError, SourceChangedError, TransientError
from icestream.formats.lookup import (
    find_format,
    make_change_decoder,
    make_decoder,
    read_schema,
)
from icestream.sources.kafka.cluster import (
    Cluster,
    ListedOffset,
    Topic,
    error_location,
    expired_error,
    topic_deleted_error,
    truncated_error,
)
from icestream.sources.kafka.options import KafkaOptions, StartingPoint
from icestream.sources.kafka.reader import EXTRA_TYPES, Span, read_spans
from icestream.sources.kafka.sampling import RecordSampler

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import Decoder, Records
    from icestream.contracts.offset import Offset
    from icestream.sources.kafka.cluster import Partition

_log = logging.getLogger(__name__)

# Topics, partitions and retention rarely change, and describing costs as much as listing offsets.
_DESCRIBE_SECS = 10.0
# How long a topic that this process has read may be missing before it counts as deleted.
_MISSING_TOPIC_SECS = 60.0
# Below this, another task costs more than it saves.
_MIN_SPLIT_ROWS = 10_000


class KafkaSource(Source[KafkaOptions]):
    """Topics of a Kafka cluster: each record once, without aborted transactions."""

    options_type = KafkaOptions
    traits = SourceTraits(replayable=True, ordered=True)

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__(options)
        if find_format(options.format).gives_changes:
            self.traits = SourceTraits(replayable=True, ordered=True, changes=True)
        self._declared = None if options.schema_ is None else read_schema(options.schema_)
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_declared": self._declared, "traits": self.traits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._cluster: Cluster | None = None
        self._sampler: RecordSampler | None = None
        self._topics: dict[str, Topic] = {}
        self._missing_since: dict[str, float] = {}
        self._warned: set[str] = set()
        self._described_at = float("-inf")

    def required_packages(self) -> dict[str, str]:
        # The extra includes the packages of formats.
        packages = ("confluent_kafka", *find_format(self.options.format).required_packages)
        return dict.fromkeys(packages, "icestream[kafka]")

    def identity(self) -> str:
        """Name the topics; brokers may move."""
        if self.options.topic_pattern is not None:
            return f"kafka /{self.options.topic_pattern}/"
        return f"kafka {','.join(sorted(self.options.topics))}"

    def initial(self) -> Offset:
        """Return the offset that `starting` denotes, for every existing partition."""
        topics = self._describe()
        partitions = _partitions(topics)
        listed = self._starting_offsets(partitions)
        if len(listed) < len(partitions):
            # A partition left out here would later start at earliest, whatever `starting` says.
            raise TransientError(
                f"{_count(len(partitions) - len(listed), 'partition')} have no leader yet",
                where=error_location(self.options.brokers),
            )
        ids = {name: topic.id for name, topic in topics.items()}
        return build_offset(ids, _offsets(listed), epochs=_epochs(listed))

    def _starting_offsets(self, partitions: list[Partition]) -> dict[Partition, ListedOffset]:
        starting, cluster = self.options.starting, self._connect()
        if not isinstance(starting, StartingPoint):
            return (
                cluster.latest(partitions) if starting == "latest" else cluster.earliest(partitions)
            )
        if starting.millis is not None:
            return cluster.offsets_at(partitions, starting.millis)
        lowest = cluster.earliest(partitions)
        for topic, offsets in (starting.offsets or {}).items():
            for number, offset in offsets.items():
                if (topic, number) not in lowest:
                    raise ConnectorError(
                        f"`starting` names topic {topic!r}, partition {number}, which is not read",
                        where=error_location(self.options.brokers),
                    )
                earliest = lowest[topic, number].offset
                if offset < earliest:
                    partition = f"topic {topic!r}, partition {number}"
                    raise expired_error(partition, offset, earliest, self.options.brokers)
                lowest[topic, number] = ListedOffset(offset)
        return lowest

    def latest(self, current: Offset) -> Offset:
        """Return the end of every partition, or `current` if none has moved."""
        before = partition_offsets(current)
        is_due = time.monotonic() - self._described_at >= _DESCRIBE_SECS
        topics = self._describe(topic_ids(current)) if is_due else self._topics
        if is_due:
            self._warn_about_missing(current, topics)
            self._refuse_recreated_topics(current, topics)
        partitions = _partitions(topics)
        ends = self._connect().latest(partitions)
        if is_due:
            self._refuse_lost_records(before, ends)
        if len(ends) < len(partitions):
            # Some have no leader yet, so their offsets could not be compared.
            self._described_at = float("-inf")
        moved = {key: end for key, end in ends.items() if end.offset > before.get(key, -1)}
        new = [key for key in moved if key not in before]
        begins = _offsets(self._connect().earliest(new))
        # A new, empty partition has no row yet, so it is no progress.
        moved = {key: end for key, end in moved.items() if end.offset > begins.get(key, -1)}
        begins = {key: begin for key, begin in begins.items() if key in moved}
        if not moved:
            return current
        found = {name: topics[name].id for name, _ in moved}
        ids = {**found, **topic_ids(current)}
        epochs = partition_offsets(current, "epochs")
        kept = {key: epoch for key, epoch in epochs.items() if key not in moved}
        return build_offset(ids, {**before, **_offsets(moved)}, begins, {**kept, **_epochs(moved)})

    def rows_between(self, start: Offset, end: Offset) -> int:
        """Return the number of offsets: an upper bound, since compaction removes records."""
        return sum(span.rows for span in spans_between(start, end))

    def partition_ranges(self, start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
        """Return the offsets of each partition; a topic that was created again has none."""
        before = {**partition_offsets(end, "begins"), **partition_offsets(start)}
        ids, now = topic_ids(start), topic_ids(end)
        return {
            f"{topic}[{number}]": (before.get((topic, number), 0), high)
            for (topic, number), high in sorted(partition_offsets(end).items())
            if ids.get(topic, now[topic]) == now[topic]
        }

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        """Return an offset at which every partition has advanced by the same share.

        It is at most about `max_batch_mb` away, estimated from sampled records.
        """
        capped = limit_offset(start, end, max_rows)
        if self._sampler is None:
            self._sampler = RecordSampler(self.options)
        most_bytes = self.options.max_batch_mb << 20
        rows = self._sampler.rows_within(spans_between(start, capped), most_bytes)
        return limit_offset(start, capped, rows)

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        """Split by partition; with few partitions, split long ones further."""
        return make_splits(start, end, slots)

    def verify_offsets(self, start: Offset, end: Offset) -> None:
        """Compare the ids of the topics to read with those in the offsets.

        The reader reports a missing topic: what it can still read belongs to the old topic.
        """
        read = {span.topic for span in spans_between(start, end)}
        self._refuse_recreated_topics(end, self._connect().describe(read))

    def read(self, split: Split) -> Iterator[Records]:
        """Yield the records of a split, offset by offset."""
        return read_spans(self.options, split.what)

    def decoder(self) -> Decoder | None:
        """Return the decoder of `format`; None for one that gives changes."""
        if find_format(self.options.format).gives_changes:
            return None
        return make_decoder(
            self.options.format,
            schema=self._declared,
            registry=self.options.schema_registry,
            subjects=tuple(f"{topic}-value" for topic in self.options.topics),
        )

    def change_decoder(self) -> ChangeDecoder | None:
        """Return the decoder of a `format` that gives changes."""
        return make_change_decoder(
            self.options.format,
            registry=self.options.schema_registry,
            placeholder=self.options.unavailable_value,
            unrepresentable=self.options.unrepresentable,
        )

    def schema(self) -> pa.Schema | None:
        """Return the columns of `schema` or of the format, with those of `include`."""
        if self._declared is not None:
            columns = self._declared.columns
        else:
            columns = find_format(self.options.format).columns()
        if columns is None:
            return None
        return pa.schema([*columns, *(self.extra_columns() or ())])

    def extra_columns(self) -> pa.Schema | None:
        """Return the columns that `include` names."""
        wanted = self.options.include
        return pa.schema([(f"kafka_{name}", EXTRA_TYPES[name]) for name in wanted]) or None

    def check(self) -> Iterator[CheckStep]:
        """Check that the brokers answer and that the topics exist."""
        yield CheckStep("reach brokers", self._reach_brokers)
        yield CheckStep("find topics", self._find_topics)

    def _reach_brokers(self) -> str:
        count = len(self._connect().topic_names())
        return f"{','.join(self.options.brokers)}, {_count(count, 'topic')} in all"

    def _find_topics(self) -> str:
        topics = self._describe()
        partitions = len(_partitions(topics))
        return f"{_count(len(topics), 'topic')}, {_count(partitions, 'partition')}"

    def close(self) -> None:
        """Close the driver's connections."""
        if self._sampler is not None:
            self._sampler.close()
        self._reset()

    def _connect(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.options)
        return self._cluster

    def _describe(self, known: Collection[str] = ()) -> dict[str, Topic]:
        """Describe the topics to read; each topic in `topics` must exist.

        Args:
            known: topics that the checkpoint has offsets for.
        """
        cluster, names = self._connect(), list(self.options.topics)
        pattern = self.options.topic_pattern
        if pattern is not None:
            names = [name for name in cluster.topic_names() if re.fullmatch(pattern, name)]
        # A pattern's topics have just been listed: do not wait for one that vanished since.
        topics = cluster.describe(names, known if pattern is None else ())
        for name in self.options.topics:
            if name in topics:
                self._missing_since.pop(name, None)
            elif name in known:
                raise self._missing_topic_error(name)
            else:
                raise cluster.missing_topic_error(name)
        self._topics, self._described_at = topics, time.monotonic()
        return topics

    def _missing_topic_error(self, name: str) -> IcestreamError:
        """Return the error for a topic that was read before: transient at first."""
        now = time.monotonic()
        secs = now - self._missing_since.setdefault(name, now)
        # Brokers may not know a topic for a while after a start or failover.
        if name in self._topics and secs < _MISSING_TOPIC_SECS:
            return TransientError(
                f"topic {name!r} existed before, and no broker knows it now",
                where=error_location(self.options.brokers),
            )
        return topic_deleted_error(name, self.options.brokers)

    def _warn_about_missing(self, current: Offset, topics: dict[str, Topic]) -> None:
        for name in topic_ids(current):
            if name not in topics and name not in self._warned:
                _log.warning(
                    "topic %r is no longer read: it was deleted, or is no longer configured", name
                )
                self._warned.add(name)

    def _refuse_recreated_topics(self, offset: Offset, topics: dict[str, Topic]) -> None:
        for name, known in topic_ids(offset).items():
            found = topics.get(name)
            if found is not None and found.id != known:
                self._described_at = float("-inf")
                raise SourceChangedError(
                    f"topic {name!r} was deleted and created again since the checkpoint "
                    f"(id {known!r}, now {found.id!r})",
                    where=error_location(self.options.brokers),
                    todo="Its offsets refer to different records now. Restore the old topic, or "
                    "read the new one from the start with `icestream run --start-over`.",
                )

    def _refuse_lost_records(
        self, before: dict[Partition, int], ends: dict[Partition, ListedOffset]
    ) -> None:
        known = [key for key in before if key in ends]
        for key, lowest in _offsets(self._connect().earliest(known)).items():
            partition = f"topic {key[0]!r}, partition {key[1]}"
            if lowest > before[key]:
                self._described_at = float("-inf")
                raise expired_error(partition, before[key], lowest, self.options.brokers)
            if ends[key].offset < before[key]:
                self._described_at = float("-inf")
                raise truncated_error(
                    partition, before[key], ends[key].offset, self.options.brokers
                )


def _partitions(topics: dict[str, Topic]) -> list[Partition]:
    return [(name, number) for name, topic in topics.items() for number in topic.partitions]


def _offsets(listed: dict[Partition, ListedOffset]) -> dict[Partition, int]:
    return {key: each.offset for key, each in listed.items()}


def _epochs(listed: dict[Partition, ListedOffset]) -> dict[Partition, int]:
    return {key: each.epoch for key, each in listed.items() if each.epoch is not None}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
    topics = {topic for topic, _ in offsets} | set(topic_ids(start))
    ids = {
        topic: name
        for topic, name in {**topic_ids(end), **topic_ids(start)}.items()
        if topic in topics
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
