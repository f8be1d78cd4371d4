"""Reads text files with one record per line."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Decoded, Decoder, Records
from icestream.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt


BLOCK_BYTES = 8 << 20
SAMPLE_BYTES = 64 << 10
_BOM = b"\xef\xbb\xbf"


def read_lines(
    file: IO[bytes], name: str, *, line: int, size: int | None, context: Mapping[str, Any]
) -> Iterator[Records]:
    """Yield the lines of a file as records, block by block, skipping empty lines.

    Args:
        file: the open file, at the start of a line.
        name: the file's name for record positions such as `events/a.json:17`.
        line: the number of lines before it.
        size: how many bytes to read; None for the rest of the file.
        context: the context of the records.
    """
    number = 1 + line
    for lines in _blocks(file, size, is_start=line == 0):
        records = _records(lines, name, number, context)
        number += len(lines)
        if records is not None:
            yield records


def read_first_line(file: IO[bytes]) -> bytes:
    """Return the first line of a file, without the line break."""
    return file.readline(BLOCK_BYTES).removeprefix(_BOM).rstrip(b"\r\n")


def cut_lines(file: IO[bytes], start: int, max_lines: int, max_bytes: int) -> tuple[int, int]:
    """Return the end byte of a run of lines, and its number of lines.

    The run has at most `max_lines` lines and `max_bytes` bytes, but at least one line.
    """
    file.seek(start)
    end, lines, offset = start, 0, start
    while block := file.read(BLOCK_BYTES):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (offset + 1)
        ends = ends[: max_lines - lines]
        within_limit = ends[ends <= start + max_bytes]
        chosen = within_limit if lines or len(within_limit) else ends[:1]
        if len(chosen):
            end = int(chosen[-1])
            lines += len(chosen)
        offset += len(block)
        if lines and (lines == max_lines or offset >= start + max_bytes):
            return end, lines
    return offset, lines + (1 if offset > end else 0)


def mean_line_bytes(file: IO[bytes]) -> float | None:
    """Return the mean length of the first lines in bytes; None if there are none."""
    head = file.read(SAMPLE_BYTES)
    lines = head.count(b"\n")
    return len(head) / lines if lines else None


def _blocks(file: IO[bytes], size: int | None, *, is_start: bool) -> Iterator[list[bytes]]:
    remaining = sys.maxsize if size is None else size
    pieces: list[bytes] = []
    block = file.read(min(BLOCK_BYTES, remaining))
    remaining -= len(block)
    if is_start:
        block = block.removeprefix(_BOM)
    while block:
        cut = block.rfind(b"\n") + 1
        if cut:
            complete = b"".join([*pieces, block[:cut]])
            pieces = [block[cut:]]
            # Windows lines end with \r\n, and decoders are faster without the \r.
            yield complete.replace(b"\r\n", b"\n").split(b"\n")[:-1]
        else:
            pieces.append(block)
        block = file.read(min(BLOCK_BYTES, remaining))
        remaining -= len(block)
    if rest := b"".join(pieces):
        yield [rest.removesuffix(b"\r")]


def _records(
    lines: list[bytes], name: str, first: int, context: Mapping[str, Any]
) -> Records | None:
    numbers: Sequence[int] = range(first, first + len(lines))
    if not all(lines):
        numbered = [(n, line) for n, line in zip(numbers, lines, strict=True) if line]
        numbers, lines = [n for n, _ in numbered], [line for _, line in numbered]
    if not lines:
        return None
    values = pa.array(lines, pa.binary())
    return Records(values, {}, lambda index: f"{name}:{numbers[index]}", context)


HEADER_UNKNOWN = "the header of its file is unknown: the dead letter was stored without it"


class HeaderDecoder(Decoder):
    """Decodes CSV lines whose cells follow the header of their own file.

    Args:
        delimiter: the cell separator.
        evolving: whether to report new columns of the header and to infer types.
        header: the column names; None if they are unknown.
    """

    def __init__(
        self, delimiter: str, *, evolving: bool, header: tuple[str, ...] | None = None
    ) -> None:
        self._delimiter = delimiter
        self._evolving = evolving
        self._header = header

    def in_context(self, context: Mapping[str, Any]) -> HeaderDecoder:
        header = tuple(context["header"]) if "header" in context else None
        return HeaderDecoder(self._delimiter, evolving=self._evolving, header=header)

    def context_of(
        self, records: Sequence[Mapping[str, Any] | bytes | None]
    ) -> tuple[Mapping[str, Any], int]:
        """Return the header: the first line if it is given as text, else the fields' names."""
        first = next(iter(records), None)
        if isinstance(first, bytes):
            return {"header": list(parse_header(first, "given", self._delimiter))}, 1
        fields = [name for record in records if isinstance(record, dict) for name in record]
        return {"header": list(dict.fromkeys(fields))}, 0

    def encode(self, record: Mapping[str, Any]) -> bytes:
        from icestream.formats.csv import CsvDecoder

        layout = pa.schema([(name, pa.string()) for name in self._header or ()])
        return CsvDecoder(layout, self._delimiter).encode(record)

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        lines = [line for line in sample if line]
        return infer_columns(lines, self._header or (), self._delimiter)

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        from icestream.formats.csv import CsvDecoder

        if self._header is None:
            bad = tuple((index, HEADER_UNKNOWN) for index in range(len(values)))
            empty = pa.RecordBatch.from_pylist([], schema=columns)
            return Decoded(empty, pa.array([], pa.int64()), bad)
        layout = pa.schema([(name, pa.string()) for name in self._header])
        decoder = CsvDecoder(layout, self._delimiter, inferred=self._evolving)
        decoded = decoder.decode(values, columns)
        return replace(decoded, new_fields=self._new_fields(values, columns))

    def absent_fields(
        self, values: pa.Array, rows: pa.RecordBatch
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        from icestream.formats.csv import CsvDecoder

        layout = pa.schema([(name, pa.string()) for name in self._header or ()])
        return CsvDecoder(layout, self._delimiter).absent_fields(values, rows)

    def _new_fields(self, values: pa.Array, columns: pa.Schema) -> dict[str, pa.DataType]:
        assert self._header is not None  # noqa: S101 - checked by the caller
        new = [name for name in self._header if name not in columns.names]
        if not new or not self._evolving:
            return {}
        lines = values.drop_null().to_pylist()
        return _infer_cells(lines, self._header, self._delimiter, set(new))


def parse_header(line: bytes, name: str, delimiter: str) -> tuple[str, ...]:
    """Return the column names in a file's first line.

    Raises:
        BadRecordError: the line is not a header.
    """
    try:
        [cells] = csv.reader([line.decode()], delimiter=delimiter, strict=True)
    except (UnicodeDecodeError, ValueError, csv.Error):
        cells = []
    names = tuple(cell.strip() for cell in cells)
    if not all(names) or len(set(names)) != len(names) or not names:
        raise BadRecordError(
            f"the first line of file {name!r}, {line[:80]!r}, is not a header",
            todo="A header has a unique name for each column. If the files have no header,\nset "
            "`options: {header: false}` and declare the columns in `schema`.",
        )
    return names


def infer_columns(lines: Sequence[bytes], names: tuple[str, ...], delimiter: str) -> pa.Schema:
    """Infer columns from lines; a column is text unless another type preserves every cell."""
    from icestream.formats.inference import resolved_type

    types = _infer_cells(lines, names, delimiter, set(names))
    return pa.schema([(name, resolved_type(kind) or pa.string()) for name, kind in types.items()])


def _infer_cells(
    lines: Sequence[bytes], names: tuple[str, ...], delimiter: str, wanted: set[str]
) -> dict[str, pa.DataType]:
    """Return the unresolved types of the wanted columns; see `formats.inference`."""
    from icestream.formats.csv import cell_type
    from icestream.formats.inference import NULL, merge

    positions = [(position, name) for position, name in enumerate(names) if name in wanted]
    types = {name: NULL for _, name in positions}
    for line in lines:
        try:
            cells = next(csv.reader([line.decode()], delimiter=delimiter, strict=True), [])
        except (UnicodeDecodeError, csv.Error):  # decode reports it
            continue
        if len(cells) == len(names):
            for position, name in positions:
                types[name] = merge(types[name], cell_type(cells[position]))
    return types
