"""The driver's connection to a cluster: its topics and their offsets."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from concurrent.futures import wait
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from icestream.contracts.faults import transport_faults
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    PlanError,
    RefusedError,
    SourceChangedError,
    TransientError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka import (
        KafkaError,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient

    from icestream.sources.kafka.options import KafkaOptions

Partition: TypeAlias = tuple[str, int]

# Names of error codes.
_UNREACHABLE = frozenset(
    {
        "_ALL_BROKERS_DOWN",
        "_TRANSPORT",
        "_RESOLVE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
    }
)
_REFUSED = frozenset(
    {
        "_AUTHENTICATION",
        "_SSL",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SECURITY_DISABLED",
    }
)
_MISSING = frozenset(
    {
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "_NOENT",
        "UNKNOWN_TOPIC_OR_PART",
    }
)
_TRANSIENT = frozenset(
    {
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "BROKER_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "KAFKA_STORAGE_ERROR",
        "OFFSET_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
    }
)
_OUT_OF_RANGE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})

# librdkafka reports the same for a refused connection, a wrong name and a missing answer.
*_, NO_ANSWER = transport_faults("any broker", "`brokers`, and `security.protocol` in `options`")


def error_location(brokers: Sequence[str]) -> str:
    """Return the `where` of errors about a cluster."""
    return f"source kafka {','.join(brokers)}"


@cache
def _codes(names: frozenset[str]) -> frozenset[int]:
    from confluent_kafka import KafkaError

    return frozenset(getattr(KafkaError, name) for name in names)


def is_missing(error: KafkaError) -> bool:
    """Tell whether a broker says that it has no such topic or partition."""
    return error.code() in _codes(_MISSING)


def is_transient(error: KafkaError) -> bool:
    """Tell whether a retry a moment later may succeed."""
    return error.code() in _codes(_TRANSIENT)


def is_refusal(error: KafkaError) -> bool:
    """Tell whether credentials, a certificate or permissions were refused."""
    return error.code() in _codes(_REFUSED)


def is_out_of_range(error: KafkaError) -> bool:
    """Tell whether an offset is not, or no longer, in its partition."""
    return error.code() in _codes(_OUT_OF_RANGE)


def is_unknown_epoch(error: KafkaError) -> bool:
    """Tell whether a broker could not compare a leader epoch with its log.

    librdkafka has one code for this, a truncation, and an offset out of range.
    """
    return is_out_of_range(error) and "No epoch found" in error.str()


def is_truncation(error: KafkaError) -> bool:
    """Tell whether the log, in the leader epoch of an offset, ends before that offset."""
    return is_out_of_range(error) and "log truncation detected at" in error.str()


def unreachable_error(brokers: Sequence[str]) -> IcestreamError:
    """Return the error for a cluster of which no broker answers."""
    return NO_ANSWER.to_error(error_location(brokers))


def to_error(error: KafkaError, brokers: Sequence[str], what: str = "") -> IcestreamError:
    """Return the icestream error for one of librdkafka's.

    Args:
        error: of librdkafka.
        brokers: the cluster.
        what: what was requested, such as `orders[2]`.
    """
    code, where = error.code(), error_location(brokers)
    subject = f"{what}: " if what else ""
    if code in _codes(_UNREACHABLE):
        return unreachable_error(brokers)
    if code in _codes(_REFUSED):
        return RefusedError(
            f"{subject}access denied ({error.name()})",
            where=where,
            todo="Check `security.protocol`, the `sasl.` and the `ssl.` settings in `options`, and "
            "the user's permissions.",
        )
    if code in _codes(_MISSING):
        return SourceChangedError(f"{subject}there is no such topic or partition", where=where)
    kind = TransientError if code in _codes(_TRANSIENT) or error.retriable() else ConnectorError
    return kind(f"{subject}{error.str()} ({error.name()})", where=where)


def topic_deleted_error(topic: str, brokers: Sequence[str]) -> SourceChangedError:
    """Return the error for a topic that was read before and no longer exists."""
    return SourceChangedError(
        f"topic {topic!r} was deleted since the checkpoint",
        where=error_location(brokers),
        todo="Restore the topic with its records. If they are no longer needed, remove it from "
        "`topics`; if a new topic replaces it, create it and run `icestream run --start-over`.",
    )


def expired_error(
    partition: str, wanted: int, lowest: int, brokers: Sequence[str]
) -> SourceChangedError:
    """Return the error for records that retention removed before they were read."""
    return SourceChangedError(
        f"{partition}: offset {wanted} is gone, the lowest one left is {lowest}",
        where=error_location(brokers),
        todo="The topic's retention removed records before they were read. Restore them, or start "
        "over with `icestream run --start-over`: that reads all remaining records again, in "
        "addition to what the table holds. Longer retention avoids this.",
    )


def truncated_error(
    partition: str, wanted: int, end: int, brokers: Sequence[str]
) -> SourceChangedError:
    """Return the error for a partition that ends before an offset that was read or listed."""
    return SourceChangedError(
        f"{partition}: read up to offset {wanted}, and now it ends at {end}",
        where=error_location(brokers),
        todo="The partition lost records that were read. Check the cluster, then start over with "
        "`icestream run --start-over`: that reads every record again, in addition to what the "
        "table holds.",
    )


def overwritten_error(partition: str, wanted: int, brokers: Sequence[str]) -> SourceChangedError:
    """Return the error for a partition that was truncated and has been written to since."""
    return SourceChangedError(
        f"{partition}: records before offset {wanted} were lost after they were read, and others "
        "have taken their place",
        where=error_location(brokers),
        todo="The partition's log was truncated, as by an unclean leader election. Check the "
        "cluster, then start over with `icestream run --start-over`: that reads every record "
        "again, in addition to what the table holds.",
    )


_REQUEST_SECS = 10.0
_POLL_SECS = 0.02
_RETRY_SECS = 0.1
_REFRESH_SECS = 1.0

# librdkafka logs each failed connection to stderr; what matters is also raised as an error.
quiet_logger = logging.getLogger("icestream.librdkafka")
quiet_logger.addHandler(logging.NullHandler())
quiet_logger.propagate = False


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster describes it; `id` changes when it is deleted and recreated."""

    name: str
    id: str
    partitions: tuple[int, ...]


class ListedOffset(NamedTuple):
    """An offset as a partition's leader lists it, and the leader's epoch; None if unknown.

    An epoch is one term of one leader. If a later leader has a shorter log, the epoch ends there:
    an offset with its epoch shows whether the records before it are still the same.
    """

    offset: int
    epoch: int | None = None


def _offset_spec() -> Any:
    import confluent_kafka.admin

    # Not in the package's type stubs.
    return confluent_kafka.admin.OffsetSpec  # type: ignore[attr-defined]


def build_client(kind: Any, settings: dict[str, Any], brokers: tuple[str, ...]) -> Any:
    """Build a librdkafka client, which connects later in the background.

    Raises:
        PlanError: a setting is unknown or has an invalid value.
    """
    from confluent_kafka import KafkaException

    try:
        return kind(settings, logger=quiet_logger)
    except (KafkaException, ValueError, TypeError) as exc:
        # The value may be a secret, so only show the name of the setting.
        named = re.search(r'property:? "?([\w.]+)"?', str(exc))
        setting = f"option {named[1]!r}" if named else "one of the options"
        raise PlanError(
            f"the Kafka client rejects {setting}",
            where=error_location(brokers),
            todo="Check its name and value in librdkafka's list of configuration properties.",
        ) from None


class Cluster:
    """A connection, opened on first use. Thread-safe: one request at a time."""

    def __init__(self, options: KafkaOptions) -> None:
        from confluent_kafka.admin import AdminClient

        self._brokers = options.brokers
        self._faults: list[KafkaError] = []
        self._has_answered = False
        self._lock = Lock()
        settings = {**options.client_settings(), "error_cb": self._faults.append}
        self._admin: AdminClient = build_client(AdminClient, settings, options.brokers)

    def describe(self, names: Iterable[str], expected: Collection[str] = ()) -> dict[str, Topic]:
        """Return the topics with these names, without those that do not exist.

        A topic in `expected` existed before: retry before it counts as missing.
        """
        wanted = set(names)
        topics = self._describe_once(wanted)
        deadline = time.monotonic() + _REQUEST_SECS
        # A new topic is listed before every broker can describe it.
        while missing := wanted - topics.keys():
            if not missing & set(expected) and not missing & set(self.topic_names()):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(_RETRY_SECS)
            topics = self._describe_once(wanted)
        return topics

    def _describe_once(self, names: set[str]) -> dict[str, Topic]:
        from confluent_kafka import TopicCollection

        if not names:
            return {}
        futures = self._admin.describe_topics(
            TopicCollection(sorted(names)), request_timeout=_REQUEST_SECS
        )
        answers, faults = self._answers(futures)
        for fault in faults:
            raise to_error(fault, self._brokers)
        return {
            name: Topic(name, str(found.topic_id), tuple(p.id for p in found.partitions))
            for name, found in answers.items()
        }

    def topic_names(self) -> list[str]:
        """Return the names of all topics except Kafka's internal ones."""
        from confluent_kafka import KafkaException

        # This call returns no future, so first send one that notices a dead cluster quickly.
        _, faults = self._answers({"": self._admin.describe_cluster(request_timeout=_REQUEST_SECS)})
        for fault in faults:
            raise to_error(fault, self._brokers)
        try:
            found = self._admin.list_topics(timeout=_REQUEST_SECS).topics
        except KafkaException as exc:
            raise to_error(exc.args[0], self._brokers) from exc
        return sorted(name for name in found if not name.startswith("__"))

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, ListedOffset]:
        """Return the lowest offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, _offset_spec().earliest()))

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, ListedOffset]:
        """Return the end of each partition: at most the start of the first open transaction."""
        return self._offsets(dict.fromkeys(partitions, _offset_spec().latest()))

    def offsets_at(
        self, partitions: Iterable[Partition], millis: int
    ) -> dict[Partition, ListedOffset]:
        """Return each partition's first offset at or after a timestamp, else its end."""
        wanted = list(partitions)
        found = self._offsets(dict.fromkeys(wanted, _offset_spec().for_timestamp(millis)))
        later = self.latest(key for key in wanted if key not in found or found[key].offset < 0)
        return {**found, **later}

    def missing_topic_error(self, name: str) -> ConnectorError:
        """Return the error for a topic that does not exist."""
        close = get_close_matches(name, self.topic_names(), n=3)
        hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        return ConnectorError(
            f"topic {name!r} does not exist",
            where=error_location(self._brokers),
            todo=f"{hint}Create the topic, or correct `topics`.",
        )

    def _offsets(self, asked: Mapping[Partition, Any]) -> dict[Partition, ListedOffset]:
        """List offsets; retry for partitions that are electing a leader."""
        from confluent_kafka import TopicPartition

        found: dict[Partition, ListedOffset] = {}
        deadline, refreshed_at = time.monotonic() + _REQUEST_SECS, float("-inf")
        while len(found) < len(asked):
            left = {TopicPartition(*key): spec for key, spec in asked.items() if key not in found}
            answers, fault = self._ask_offsets(left)
            found.update(answers)
            if fault is None:
                break
            if time.monotonic() > deadline or not is_transient(fault):
                raise to_error(fault, self._brokers)
            time.sleep(_RETRY_SECS)
            if time.monotonic() - refreshed_at >= _REFRESH_SECS:
                # Fetching the metadata of all topics makes librdkafka look up the leader again;
                # otherwise it keeps the old epoch.
                with contextlib.suppress(TransientError):
                    self.topic_names()
                refreshed_at = time.monotonic()
        return found

    def _ask_offsets(
        self, asked: dict[TopicPartition, Any]
    ) -> tuple[dict[Partition, ListedOffset], KafkaError | None]:
        from confluent_kafka import IsolationLevel

        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_SECS
        )
        answers, faults = self._answers(futures)
        found = {
            (key.topic, key.partition): ListedOffset(listed.offset, listed.leader_epoch)
            for key, listed in answers.items()
        }
        # The worst error decides: a retry helps only if all are transient.
        lasting = [fault for fault in faults if not is_transient(fault)]
        return found, next(iter(lasting or faults), None)

    def _answers(self, asked: Mapping[Any, Future[Any]]) -> tuple[dict[Any, Any], list[KafkaError]]:
        """Wait for answers; what does not exist is in neither result."""
        from confluent_kafka import KafkaException

        with self._lock:
            self._await(asked)
        answers, faults = {}, []
        for key, future in asked.items():
            try:
                answers[key] = future.result()
            except KafkaException as exc:  # noqa: PERF203 - each has its own
                if not is_missing(exc.args[0]):
                    faults.append(exc.args[0])
        self._has_answered = True
        return answers, faults

    def _await(self, asked: Mapping[Any, Future[Any]]) -> None:
        deadline = time.monotonic() + _REQUEST_SECS + 1
        self._faults.clear()
        while not all(future.done() for future in asked.values()):
            self._admin.poll(0)  # runs the error callback
            wait(asked.values(), _POLL_SECS)
            for fault in self._faults:
                if is_refusal(fault):
                    raise to_error(fault, self._brokers)
                # Brokers that answered before may be restarting: wait for the full timeout.
                if fault.name() == "_ALL_BROKERS_DOWN" and not self._has_answered:
                    raise unreachable_error(self._brokers)
            if time.monotonic() > deadline:
                raise unreachable_error(self._brokers)
