"""Values stored unchanged, in one column `value`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.arrow import conform
from icestream.contracts.decoder import Decoded, Decoder, Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.decoder import FormatSettings


COLUMN = "value"


class BytesDecoder(Decoder):
    """Keeps each value as bytes; a record without a value becomes null."""

    kind: pa.DataType = pa.binary()

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:  # noqa: ARG002 - it is always one
        """Return the one column."""
        return pa.schema([(COLUMN, self.kind)])

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Return the values unchanged; columns with other names are null."""
        return Decoded(_record_batch(values, columns))


class StringDecoder(BytesDecoder):
    """Keeps each value as text; a value that is not UTF-8 is bad."""

    kind = pa.string()

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Return the values as text."""
        try:
            return Decoded(_record_batch(values.cast(pa.string()), columns))
        except pa.ArrowInvalid:
            pass
        kept, bad = [], []
        for index, value in enumerate(values.to_pylist()):
            try:
                (value or b"").decode()
                kept.append(index)
            except UnicodeDecodeError as exc:  # noqa: PERF203 - each value has its own fault
                bad.append((index, f"not text: byte {exc.start} is not UTF-8"))
        indices = pa.array(kept, pa.int64())
        text = values.take(indices).cast(pa.string())
        return Decoded(_record_batch(text, columns), indices, tuple(bad))


def _record_batch(values: pa.Array, columns: pa.Schema) -> pa.RecordBatch:
    return conform(pa.RecordBatch.from_arrays([values], [COLUMN]), columns)


class BytesFormat(Format):
    """Values kept as bytes."""

    name = "bytes"

    def decoder(self, settings: FormatSettings) -> Decoder:  # noqa: ARG002 - it needs none
        return BytesDecoder()

    def columns(self) -> pa.Schema | None:
        return BytesDecoder().infer([])


class StringFormat(Format):
    """Values kept as text."""

    name = "string"

    def decoder(self, settings: FormatSettings) -> Decoder:  # noqa: ARG002 - it needs none
        return StringDecoder()

    def columns(self) -> pa.Schema | None:
        return StringDecoder().infer([])
