"""What flows between a source, a decoder and a sink, in Arrow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa


@dataclass(frozen=True)
class Records:
    """Records of a source that are still encoded.

    Attributes:
        values: the encoded records (Arrow binary); null where a record has no value.
        extra: columns that the source adds beside the decoded ones, each as long as `values`.
        position: tells where record `i` came from, in words fit for an error: `orders[2]@1234`.
        context: what a decoder needs beside the values, such as the header of a CSV file, as JSON.
            A dead letter keeps it, so that its record means the same when it is replayed.
    """

    values: pa.Array
    extra: Mapping[str, pa.Array]
    position: Callable[[int], str]
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be decoded, cast or validated.

    Attributes:
        raw: the record as the source gave it; a row as JSON where the source gives rows.
        reason: why.
        position: where it came from; None for a row that a transform made of several records.
        extra: what the source tells beside it, as JSON.
    """

    raw: bytes | None
    reason: str
    position: str | None
    extra: str | None = None


@dataclass(frozen=True)
class Decoded:
    """The outcome of decoding one block of values.

    Attributes:
        rows: the good rows, in order, with exactly the columns asked for.
        kept: for each good row the index of its value (Arrow int64); None when all were good.
        bad: index and reason of each value that could not be decoded.
        new_fields: fields met in the data that the columns asked for do not have.
        wider: columns by name, as they would have to be to hold what the writer declares, or to
            make some of `bad` good: of a wider type, or optional.
    """

    rows: pa.RecordBatch
    kept: pa.Array | None = None
    bad: tuple[tuple[int, str], ...] = ()
    new_fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    wider: Mapping[str, pa.Field] = field(default_factory=dict)
