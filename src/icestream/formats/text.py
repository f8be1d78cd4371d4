"""Values stored unchanged, in one column `value`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.arrow import conform
from icestream.contracts.decoder import Decoded, Decoder, Format
from icestream.formats.blocks import (
    BadValueError,
    empty_rows,
    not_utf8_reason,
    required_value_error,
)
from icestream.formats.values import MisfitError, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.decoder import FormatSettings


COLUMN = "value"
_CAST_FAULTS = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


class BytesDecoder(Decoder):
    """Keeps each value as bytes; a record without a value becomes null."""

    kind: pa.DataType = pa.binary()

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:  # noqa: ARG002 - it is always one
        """Return the one column."""
        return pa.schema([(COLUMN, self.kind)])

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Return the values unchanged; columns with other names are null."""
        pieces: list[pa.RecordBatch] = []
        bad: list[tuple[int, str]] = []
        self._divide(values, 0, columns, pieces, bad)
        if len(pieces) == 1 and not bad:
            return Decoded(pieces[0])
        is_bad = {index for index, _ in bad}
        kept = [index for index in range(len(values)) if index not in is_bad]
        rows = pa.concat_batches([empty_rows(columns), *pieces])
        return Decoded(rows, pa.array(kept, pa.int64()), tuple(bad))

    def _divide(
        self,
        values: pa.Array,
        first: int,
        columns: pa.Schema,
        pieces: list[pa.RecordBatch],
        bad: list[tuple[int, str]],
    ) -> None:
        """Decode values, in halves if one is bad, until the bad one is alone."""
        try:
            pieces.append(self._rows(values, columns))
        except (BadValueError, *_CAST_FAULTS) as exc:
            if len(values) == 1:
                is_named = isinstance(exc, BadValueError)
                bad.append((first, str(exc) if is_named else _misfit(values[0], columns)))
                return
            half = len(values) // 2
            self._divide(values.slice(0, half), first, columns, pieces, bad)
            self._divide(values.slice(half), first + half, columns, pieces, bad)

    def _rows(self, values: pa.Array, columns: pa.Schema) -> pa.RecordBatch:
        """Return values as rows.

        Raises:
            BadValueError: a value is not of the format's type, or a required one is missing.
            pa.ArrowException: a value does not fit its column.
        """
        rows = conform(pa.RecordBatch.from_arrays([self._cast(values)], [COLUMN]), columns)
        for field, array in zip(columns, rows.columns, strict=True):
            if array.null_count and not field.nullable:
                raise required_value_error(field.name)
        return rows

    def _cast(self, values: pa.Array) -> pa.Array:
        return values


class StringDecoder(BytesDecoder):
    """Keeps each value as text; a value that is not UTF-8 is bad."""

    kind = pa.string()

    def _cast(self, values: pa.Array) -> pa.Array:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            if len(values) > 1:
                raise
            raise BadValueError(f"not text: {not_utf8_reason(values[0].as_py())}") from None


def _misfit(value: pa.Scalar, columns: pa.Schema) -> str:
    text = (value.as_py() or b"").decode(errors="replace")
    return MisfitError(text, type_name(columns.field(COLUMN).type)).reason(COLUMN)


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
