"""Writes dead letters: records that could not be written, to a separate table."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icestream.contracts.decoder import BadRecord, Records
    from icestream.contracts.sink import TaskWriter, WrittenFile


DEAD_LETTERS = pa.schema(
    [
        pa.field("raw", pa.binary(), metadata={"doc": "The record as the source gave it."}),
        pa.field("reason", pa.string(), metadata={"doc": "Why it could not be written."}),
        pa.field(
            "position",
            pa.string(),
            metadata={"doc": "Location in the source, e.g. `orders[2]@1234`."},
        ),
        pa.field("pipeline", pa.string(), metadata={"doc": "The pipeline that read it."}),
        pa.field("epoch", pa.int64(), metadata={"doc": "The batch that it was read in."}),
        pa.field(
            "failed_at", pa.timestamp("us", tz="UTC"), metadata={"doc": "Time of the failure."}
        ),
        pa.field(
            "extra",
            pa.string(),
            metadata={"doc": "Metadata from the source, as JSON."},
        ),
    ]
)

# The key in `extra` of a record's context, next to the columns that the source adds.
CONTEXT = "decoded_with"

# Each buffer becomes a separate file.
BUFFER_BYTES = 64 << 20
RECORD_BYTES = 500  # overhead of a record besides its own bytes


@dataclass(frozen=True)
class DeadLetterWriter:
    """Writes bad records as dead letters, in a task."""

    writer: TaskWriter
    pipeline: str
    epoch: int

    def write(self, blocks: Iterable[list[BadRecord]]) -> list[WrittenFile]:
        """Write blocks of bad records, one after the other."""
        return self.writer.write(self._batches(blocks))

    def _batches(self, blocks: Iterable[list[BadRecord]]) -> Iterator[pa.RecordBatch]:
        now = datetime.now(tz=timezone.utc)
        for block in blocks:
            if block:
                yield pa.RecordBatch.from_pylist(
                    [
                        {
                            "raw": record.raw,
                            "reason": record.reason,
                            "position": record.position,
                            "pipeline": self.pipeline,
                            "epoch": self.epoch,
                            "failed_at": now,
                            "extra": record.extra,
                        }
                        for record in block
                    ],
                    schema=DEAD_LETTERS,
                )


@dataclass
class DeadLetterBuffer:
    """Buffers bad records, a few in memory at a time: a whole topic may be in another format.

    Attributes:
        letters: the writer for dead letters.
        files: the files written so far.
    """

    letters: DeadLetterWriter
    files: list[WrittenFile]
    _waiting: list[BadRecord] = field(default_factory=list)
    _bytes: int = 0

    def add(self, record: BadRecord) -> None:
        """Add a record; a full buffer is written."""
        self._waiting.append(record)
        self._bytes += RECORD_BYTES + len(record.raw or b"") + len(record.extra or "")
        if self._bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records."""
        if self._waiting:
            self.files += self.letters.write([self._waiting])
        self._waiting, self._bytes = [], 0


def row_as_json(batch: pa.RecordBatch, index: int) -> str:
    """Return a row as the JSON that our own decoder reads back."""
    names = batch.schema.names
    return _json({name: batch.column(column)[index] for column, name in enumerate(names)})


def extra_as_json(records: Records, index: int) -> str | None:
    """Return the extra columns of a record as JSON; None if there are none."""
    if not records.extra and not records.context:
        return None
    context = {CONTEXT: records.context} if records.context else {}
    return _json({name: column[index] for name, column in records.extra.items()}, **context)


def _json(scalars: Mapping[str, pa.Scalar], **others: Any) -> str:
    row = {name: _plain(scalar.as_py(), scalar.type) for name, scalar in scalars.items()}
    return json.dumps({**row, **others}, ensure_ascii=False, default=str)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {str(key): _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind.fields}
    return [_plain(item, kind.value_type) for item in value]
