"""What librdkafka reports, as errors of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    SourceChangedError,
    TransientError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNREACHABLE = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
    }
)
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SECURITY_DISABLED,
    }
)
_MISSING = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_PASSING = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def where_is(brokers: Sequence[str]) -> str:
    """Return the place that messages about a cluster name."""
    return f"source kafka {','.join(brokers)}"


def is_missing(error: KafkaError) -> bool:
    """Tell whether a broker says that it has no such topic or partition."""
    return error.code() in _MISSING


def is_passing(error: KafkaError) -> bool:
    """Tell whether the same question may well be answered a moment later."""
    return error.code() in _PASSING


def is_refusal(error: KafkaError) -> bool:
    """Tell whether credentials, a certificate or permissions were refused."""
    return error.code() in _REFUSED


def is_out_of_range(error: KafkaError) -> bool:
    """Tell whether an offset is not in its partition (any more)."""
    return error.code() in _OUT_OF_RANGE


def is_unknown_epoch(error: KafkaError) -> bool:
    """Tell whether a broker could not compare a leader epoch with its log.

    librdkafka has one code for this, a truncation, and an offset out of range.
    """
    return is_out_of_range(error) and "No epoch found" in error.str()


def is_truncation(error: KafkaError) -> bool:
    """Tell whether a log was found to end before an offset, in the leader epoch of that offset."""
    return is_out_of_range(error) and "log truncation detected at" in error.str()


def unreachable(brokers: Sequence[str]) -> UnreachableError:
    """Return the error for a cluster of which no broker answers."""
    return UnreachableError(
        "no broker answers",
        where=where_is(brokers),
        todo="Is Kafka running there? Check `brokers`, and `security.protocol` in `options`.",
    )


def to_error(error: KafkaError, brokers: Sequence[str], what: str = "") -> IcestreamError:
    """Return the error of ours for one of librdkafka's.

    Args:
        error: what it reports.
        brokers: the cluster.
        what: what was asked for, such as `orders[2]`.
    """
    code, where = error.code(), where_is(brokers)
    subject = f"{what}: " if what else ""
    if code in _UNREACHABLE:
        return unreachable(brokers)
    if code in _REFUSED:
        return RefusedError(
            f"{subject}access was refused ({error.name()})",
            where=where,
            todo="Check `security.protocol`, the `sasl.` and the `ssl.` settings in `options`, and "
            "the permissions of that user.",
        )
    if code in _MISSING:
        return SourceChangedError(f"{subject}there is no such topic or partition", where=where)
    kind = TransientError if code in _PASSING or error.retriable() else ConnectorError
    return kind(f"{subject}{error.str()} ({error.name()})", where=where)


def deleted(topic: str, brokers: Sequence[str]) -> SourceChangedError:
    """Return the error for a topic that was read before and does not exist any more."""
    return SourceChangedError(
        f"topic {topic!r} was deleted since the checkpoint",
        where=where_is(brokers),
        todo="Restore the topic with its records. If they are not needed any more, remove it from "
        "`topics`; if a new topic takes its place, create it and use `icestream run --start-over`.",
    )


def expired(place: str, wanted: int, lowest: int, brokers: Sequence[str]) -> SourceChangedError:
    """Return the error for records that retention removed before they were read."""
    return SourceChangedError(
        f"{place}: offset {wanted} is gone, the lowest one left is {lowest}",
        where=where_is(brokers),
        todo="The topic's retention removed records before they were read. Restore them, or start "
        "over by `icestream run --start-over`: that reads every record which is left again, next "
        "to what the table holds. Longer retention avoids this.",
    )


def truncated(place: str, wanted: int, end: int, brokers: Sequence[str]) -> SourceChangedError:
    """Return the error for a partition that ends before what was read, or promised, of it."""
    return SourceChangedError(
        f"{place}: read up to offset {wanted}, and now it ends at {end}",
        where=where_is(brokers),
        todo="The partition lost records that were read. Check the cluster, then start over by "
        "`icestream run --start-over`: that reads every record again, next to what the table "
        "holds.",
    )


def overwritten(place: str, wanted: int, brokers: Sequence[str]) -> SourceChangedError:
    """Return the error for a partition that was truncated and has been written to since."""
    return SourceChangedError(
        f"{place}: records before offset {wanted} were lost after they were read, and others have "
        "taken their place",
        where=where_is(brokers),
        todo="The partition's log was truncated, as by an unclean leader election. Check the "
        "cluster, then start over by `icestream run --start-over`: that reads every record again, "
        "next to what the table holds.",
    )
