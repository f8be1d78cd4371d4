"""Turns the records that a test gives into blocks, as the pipeline's source would read them."""

from __future__ import annotations

import base64
import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.decoder import Records
from icestream.errors import IcestreamError, PlanError
from icestream.formats.json import JsonDecoder
from icestream.formats.lookup import RECORD_KEY, RECORD_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.source import Source

# The columns that change decoders need, by the names that the Kafka source has for them.
CHANGE_EXTRA = pa.schema([("kafka_key", pa.binary()), ("kafka_topic", pa.string())])


class GivenRecordError(IcestreamError):
    """A record of a test file can't be given to the pipeline.

    Attributes:
        index: which of the records.
    """

    def __init__(self, index: int, what: str, *, todo: str = "") -> None:
        super().__init__(what, todo=todo)
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.index, self.what, self.todo))


def _rebuild(index: int, what: str, todo: str) -> GivenRecordError:
    return GivenRecordError(index, what, todo=todo)


def given_decoder(source: Source[Any]) -> Decoder | None:
    """Return the decoder of records that stand for rows; None if the source has its own."""
    if source.decoder() is not None or source.traits.changes:
        return None
    return JsonDecoder()


def given_records(source: Source[Any], given: Sequence[Any]) -> list[Records]:
    """Return records that a test gives, in blocks.

    Fields with the name of a column that the source adds, such as `kafka_key`, become that column.

    Args:
        source: the source that they stand for; nothing is read from it.
        given: for each record its fields, its text, or None for a record without a value.

    Raises:
        GivenRecordError: one of them can't be encoded.
    """
    extra_columns = source.extra_columns() or pa.schema([])
    decoder = source.decoder() or JsonDecoder()
    if source.traits.changes:
        extra_columns = CHANGE_EXTRA
        if source.change_decoder() is None:
            raise PlanError(
                "the source reads changes from a database, which a test can't give",
                todo="Test pipelines of Kafka, files and webhooks, or check this one with "
                "`icestream preview`.",
            )
    split = [_split(record, extra_columns) for record in given]
    fields = [record for record, _ in split]
    context, skipped = decoder.context_of(fields)
    encoder = decoder.in_context(context)
    values = [_encode(encoder, index, record) for index, record in enumerate(fields)][skipped:]
    extra = _extra([each for _, each in split[skipped:]], extra_columns)
    positions = [f"given[{index}]" for index in range(skipped, len(given))]
    records = Records(pa.array(values, pa.binary()), extra, positions.__getitem__, context)
    return list(_by_topic(records)) if source.traits.changes else [records]


def _split(record: Any, extra_columns: pa.Schema) -> tuple[Any, dict[str, Any]]:
    """Return a record's own fields, or its bytes, and the columns that the source adds."""
    if isinstance(record, str):
        return record.encode(), {}
    if not isinstance(record, dict):
        return record, {}
    names = set(extra_columns.names)
    own = {name: value for name, value in record.items() if name not in names}
    return own, {name: value for name, value in record.items() if name in names}


def _encode(decoder: Decoder, index: int, record: Any) -> bytes | None:
    if record is None or isinstance(record, bytes):
        return record
    if not isinstance(record, dict):
        raise GivenRecordError(
            index,
            f"expected a mapping, a text or null, found {record!r}",
            todo="Put the record in quotes if it is this text.",
        )
    try:
        return decoder.encode(record)
    except PlanError as exc:
        raise GivenRecordError(index, exc.what, todo=exc.todo) from exc


def _extra(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> dict[str, pa.Array]:
    if not len(columns):
        return {}
    optional = pa.schema([column.with_nullable(True) for column in columns])
    values = [
        json.dumps({name: _plain(row[name], optional.field(name).type) for name in row}).encode()
        for row in rows
    ]
    outcome = JsonDecoder(ignores_new=True).decode(pa.array(values, pa.binary()), optional)
    for index, reason in outcome.bad:
        raise GivenRecordError(index, reason)
    return {name: outcome.rows.column(name) for name in optional.names}


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value as JSON for its column: a mapping, such as a key, is text or bytes."""
    is_bytes = pa.types.is_binary(kind)
    if isinstance(value, dict | list) and (is_bytes or pa.types.is_string(kind)):
        value = json.dumps(value)
    return base64.b64encode(str(value).encode()).decode() if is_bytes and value else value


def _by_topic(records: Records) -> Iterator[Records]:
    """Yield the records of each topic by themselves, in order, as change decoders take them."""
    keys = records.extra["kafka_key"]
    topics = records.extra["kafka_topic"].fill_null("given")
    extra = {RECORD_KEY: keys, RECORD_TOPIC: topics}
    whole, first = Records(records.values, extra, records.position), 0
    for _, run in groupby(topics.to_pylist()):
        count = len(list(run))
        yield whole.slice(first, count)
        first += count
