"""Decodes whole blocks, and single records only where a block has a bad one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Decoded, Decoder
from icestream.formats.inference import join_columns, merge_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


NO_VALUE = "no value"

_BLOCK_BYTES = 16 << 20
# A block that fails is cut in eight, again and again, down to pieces this small: one bad record
# then costs about one more read of its block, and its neighbours stay on the fast path.
_FAN_OUT = 8
_MIN_BLOCK_ROWS = 256
# If most values need the slow path anyway, trying the fast one first only adds cost.
_MAX_SLOW_ROWS = 2000


class BadValueError(ValueError):
    """One value cannot be decoded; the text is the reason, as the dead letter shows it."""


_SIGNATURES = {
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a Parquet file",
    b"Obj\x01": "an Avro file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x00": "a record of a schema registry, which needs `format: avro`",
}


def likely_format(value: bytes) -> str:
    """Return what a value that can't be read as text seems to be; empty if it is unknown."""
    return next((kind for start, kind in _SIGNATURES.items() if value.startswith(start)), "")


def not_utf8_reason(value: bytes) -> str:
    """Say where a value is not UTF-8 text, and what it may be instead."""
    try:
        value.decode()
    except UnicodeDecodeError as exc:
        start = exc.start
    else:
        return "not UTF-8 text"
    kind = likely_format(value)
    if kind:
        guess = f"it starts like {kind}"
    elif start and value[:start].decode().isprintable():
        guess = "is its text in another encoding?"
    else:
        guess = "is it compressed, or Avro?"
    return f"byte 0x{value[start]:02x} at position {start} is not UTF-8 text; {guess}"


def required_value_error(column: str) -> BadValueError:
    """Return the error of a record without a value for a required column."""
    return BadValueError(f"column {column!r}: no value, and it is required")


class DecodedBlocks:
    """What has been decoded so far, block by block and in any order."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns
        self.bad: list[tuple[int, str]] = []
        self.new_fields: dict[str, pa.DataType] = {}
        self.wider: dict[str, pa.Field] = {}
        self.fast = 0
        self.slow = 0
        self._rows: list[pa.RecordBatch] = []
        self._indices: list[np.ndarray[Any, Any]] = []

    def add(
        self,
        indices: np.ndarray[Any, Any],
        rows: pa.RecordBatch,
        new_fields: Mapping[str, pa.DataType],
    ) -> None:
        """Keep good rows; `indices` are the positions of their values."""
        self._indices.append(indices)
        self._rows.append(rows)
        if new_fields:
            self.new_fields = merge_fields(self.new_fields, new_fields)

    def decoded(self) -> Decoded:
        """Return everything as the contract's result, rows in the order of their values."""
        rows = self._concat_rows()
        bad = tuple(sorted(self.bad))
        indices = np.concatenate(self._indices) if self._indices else np.empty(0, np.int64)
        if (np.diff(indices) < 0).any():
            order = np.argsort(indices, kind="stable")
            rows, indices = rows.take(pa.array(order)), indices[order]
        return Decoded(rows, pa.array(indices) if bad else None, bad, self.new_fields, self.wider)

    def _concat_rows(self) -> pa.RecordBatch:
        if len(self._rows) == 1:
            return self._rows[0]  # not copied
        return pa.concat_batches(self._rows) if self._rows else empty_rows(self.columns)


class BlockDecoder(Decoder):
    """A decoder with a fast path for blocks and a slow path for single values."""

    @abstractmethod
    def fast_path_mask(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Flag the values that may take the fast path; null and empty ones never do."""

    @abstractmethod
    def read_block(
        self, values: pa.Array, columns: pa.Schema
    ) -> tuple[pa.RecordBatch, dict[str, pa.DataType]] | None:
        """Return the rows and new fields of a block of plain values; None if any is bad."""

    @abstractmethod
    def read_values(self, values: list[bytes], columns: pa.Schema, outcome: DecodedValues) -> None:
        """Decode values one by one; report each row, bad value and new field to `outcome`."""

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Decode by blocks of bounded size."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if values.type != pa.binary():
            values = values.cast(pa.binary())
        outcome = DecodedBlocks(columns)
        for first, block in _blocks(values):
            self._decode_block(block, first, outcome)
        return outcome.decoded()

    def _decode_block(self, block: pa.Array, first: int, outcome: DecodedBlocks) -> None:
        indices = np.arange(first, first + len(block))
        is_plain = self.fast_path_mask(block)
        if is_plain.all():
            self._divide(block, indices, outcome)
            return
        self._divide(block.filter(pa.array(is_plain)), indices[is_plain], outcome)
        self._read_slowly(block.filter(pa.array(~is_plain)), indices[~is_plain], outcome)

    def _divide(
        self, block: pa.Array, indices: np.ndarray[Any, Any], outcome: DecodedBlocks
    ) -> None:
        if not len(block):
            return
        is_hopeless = outcome.slow > max(_MAX_SLOW_ROWS, outcome.fast)
        read = None if is_hopeless else self.read_block(block, outcome.columns)
        if read is not None:
            outcome.fast += len(block)
            outcome.add(indices, *read)
        elif is_hopeless or len(block) <= _MIN_BLOCK_ROWS:
            outcome.slow += len(block)
            self._read_slowly(block, indices, outcome)
        else:
            step = -(-len(block) // _FAN_OUT)
            for begin in range(0, len(block), step):
                self._divide(block[begin : begin + step], indices[begin : begin + step], outcome)

    def _read_slowly(
        self, block: pa.Array, indices: np.ndarray[Any, Any], outcome: DecodedBlocks
    ) -> None:
        values, present = [], []
        for index, value in zip(indices.tolist(), block.to_pylist(), strict=True):
            if value is None:
                outcome.bad.append((index, NO_VALUE))
            else:
                values.append(value)
                present.append(index)
        slow = DecodedValues()
        self.read_values(values, outcome.columns, slow)
        outcome.bad.extend((present[at], reason) for at, reason in slow.bad)
        outcome.wider = join_columns(outcome.wider, slow.wider)
        if slow.rows is not None:
            kept = np.array([present[at] for at in slow.kept], np.int64)
            outcome.add(kept, slow.rows, slow.new_fields)


class DecodedValues:
    """The result of the slow path: rows, the index of each row's value, and bad values."""

    def __init__(self) -> None:
        self.rows: pa.RecordBatch | None = None
        self.kept: list[int] = []
        self.bad: list[tuple[int, str]] = []
        self.new_fields: dict[str, pa.DataType] = {}
        self.wider: dict[str, pa.Field] = {}


def empty_rows(columns: pa.Schema) -> pa.RecordBatch:
    """Return an empty batch with these columns."""
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in columns], schema=columns
    )


def value_offsets(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the offsets of values in their buffer (one more than values), and the buffer."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return ends, np.frombuffer(data if data is not None else b"", np.uint8)


def _blocks(values: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Cut values into blocks of at most `_BLOCK_BYTES`, or of a single longer value."""
    if not len(values):
        return
    ends, _ = value_offsets(values)
    begin = 0
    while begin < len(values):
        stop = int(np.searchsorted(ends, ends[begin] + _BLOCK_BYTES, side="right")) - 1
        stop = min(max(stop, begin + 1), len(values))
        yield begin, values[begin:stop]
        begin = stop
