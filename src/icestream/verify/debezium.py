"""Mirrors of databases that Debezium captures.

Debezium's offsets mean nothing to the database, so there is no common point: a table is compared
once it has every record of its topics, and again after a pause if it differs then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import DependencyError
from icestream.sources.kafka.source import build_offset, partition_offsets, topic_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.offset import Offset
    from icestream.sources.kafka import KafkaSource
    from icestream.sources.kafka.database import DatabaseOptions
    from icestream.verify.side import DatabaseSide, LakeTable, TableNames

PASSES = 3
RETRY_SECS = 5.0


def debezium_side(source: KafkaSource, tables: Mapping[TableNames, LakeTable]) -> DatabaseSide:
    """Return the database of a Kafka source with changes of Debezium.

    Args:
        source: the source, whose options have a `database`.
        tables: the mirrored tables, by their names in the database.
    """
    options = source.options.database
    assert options is not None  # noqa: S101 - the caller checks
    lag = TopicLag(source, tables)
    if options.type == "postgres":
        try:
            from icestream.verify.debezium_postgres import DebeziumPostgresSide
        except ModuleNotFoundError as exc:
            raise missing_package(options, exc, "postgres") from exc
        return DebeziumPostgresSide(options, tables, lag)
    from icestream.verify.debezium_mysql import MySqlSide

    return MySqlSide(options, tables, lag)


def missing_package(
    options: DatabaseOptions, fault: ModuleNotFoundError, extra: str
) -> DependencyError:
    """Return the error for a database whose client library is not installed."""
    return DependencyError(
        f"verifying tables of {options.type!r} needs the package {fault.name}, which is not "
        "installed",
        todo=f"pip install 'icestream[{extra}]'",
    )


class TopicLag:
    """Counts the records in topics that the mirror does not have yet.

    Args:
        source: the source of the pipeline.
        tables: the mirrored tables.
    """

    def __init__(self, source: KafkaSource, tables: Mapping[TableNames, LakeTable]) -> None:
        self._source = source
        self._newest: Offset = build_offset({}, {})
        for table in tables.values():
            if table.mark is not None:
                self._add(table.mark.end)

    def behind(self, marks: Mapping[TableNames, Offset]) -> dict[TableNames, int]:
        """Return how many records of each table's topics no batch has read, if any.

        The mark of a table advances only with its own rows, so the newest offset of any table
        counts. A topic belongs to the table whose name it ends with; without such a topic, all
        topics count.
        """
        for mark in marks.values():
            self._add(mark)
        ranges = self._source.partition_ranges(self._newest, self._source.latest(self._newest))
        by_topic: dict[str, int] = {}
        for name, (low, high) in ranges.items():
            topic = name.rpartition("[")[0]
            by_topic[topic] = by_topic.get(topic, 0) + max(high - low, 0)
        counts = {}
        for table in marks:
            suffix = ".".join(table)
            own = [topic for topic in by_topic if f".{topic}".endswith(f".{suffix}")]
            counts[table] = sum(by_topic[topic] for topic in own or by_topic)
        return {table: count for table, count in counts.items() if count}

    def close(self) -> None:
        self._source.close()

    def _add(self, offset: Offset) -> None:
        offsets = partition_offsets(self._newest)
        for key, number in partition_offsets(offset).items():
            offsets[key] = max(number, offsets.get(key, 0))
        self._newest = build_offset({**topic_ids(self._newest), **topic_ids(offset)}, offsets)
