"""Reads files of lines, each a record."""

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
    """Yield the lines of a file as records, block by block. Empty lines are no records.

    Args:
        file: the file, opened, at the beginning of a line.
        name: what the file is called in a record's position: `events/a.json:17`.
        line: how many lines of the file come before.
        size: how many bytes to read; None for all that follow.
        context: that of the records.
    """
    number = 1 + line
    for lines in _blocks(file, size, is_start=line == 0):
        records = _records(lines, name, number, context)
        number += len(lines)
        if records is not None:
            yield records


def read_first_line(file: IO[bytes]) -> bytes:
    """Return the first line of a file, without its end."""
    return file.readline(BLOCK_BYTES).removeprefix(_BOM).rstrip(b"\r\n")


def cut_lines(file: IO[bytes], start: int, max_lines: int, max_bytes: int) -> tuple[int, int]:
    """Return the byte behind a run of lines, and how many lines it has.

    The run has at least one line, and otherwise at most as many lines and bytes as are given.
    """
    file.seek(start)
    end, lines, offset = start, 0, start
    while block := file.read(BLOCK_BYTES):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (offset + 1)
        ends = ends[: max_lines - lines]
        within = ends[ends <= start + max_bytes]
        taken = within if lines or len(within) else ends[:1]
        if len(taken):
            end = int(taken[-1])
            lines += len(taken)
        offset += len(block)
        if lines and (lines == max_lines or offset >= start + max_bytes):
            return end, lines
    return offset, lines + (1 if offset > end else 0)


def mean_line_bytes(file: IO[bytes]) -> float | None:
    """Return how many bytes a line has on average, by the first ones; None if there are none."""
    head = file.read(SAMPLE_BYTES)
    lines = head.count(b"\n")
    return len(head) / lines if lines else None


def _blocks(file: IO[bytes], size: int | None, *, is_start: bool) -> Iterator[list[bytes]]:
    left = sys.maxsize if size is None else size
    held: list[bytes] = []
    block = file.read(min(BLOCK_BYTES, left))
    left -= len(block)
    if is_start:
        block = block.removeprefix(_BOM)
    while block:
        cut = block.rfind(b"\n") + 1
        if cut:
            whole = b"".join([*held, block[:cut]])
            held = [block[cut:]]
            # Lines written on Windows end in \r, and decoders are faster without it.
            yield whole.replace(b"\r\n", b"\n").split(b"\n")[:-1]
        else:
            held.append(block)
        block = file.read(min(BLOCK_BYTES, left))
        left -= len(block)
    if rest := b"".join(held):
        yield [rest.removesuffix(b"\r")]


def _records(
    lines: list[bytes], name: str, first: int, context: Mapping[str, Any]
) -> Records | None:
    numbers: Sequence[int] = range(first, first + len(lines))
    if not all(lines):
        kept = [(n, line) for n, line in zip(numbers, lines, strict=True) if line]
        numbers, lines = [n for n, _ in kept], [line for _, line in kept]
    if not lines:
        return None
    values = pa.array(lines, pa.binary())
    return Records(values, {}, lambda index: f"{name}:{numbers[index]}", context)


HEADER_UNKNOWN = "the header of its file is not known: the dead letter was kept without it"


class HeaderDecoder(Decoder):
    """Decodes lines whose cells are in the order of their own file's header.

    Args:
        delimiter: what separates cells.
        evolving: whether columns that only the header has are of interest, and types are inferred.
        header: the names of the columns; None if they are not known.
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
        assert self._header is not None  # noqa: S101 - looked at by the caller
        new = [name for name in self._header if name not in columns.names]
        if not new or not self._evolving:
            return {}
        lines = values.drop_null().to_pylist()
        return _infer_cells(lines, self._header, self._delimiter, set(new))


def parse_header(line: bytes, name: str, delimiter: str) -> tuple[str, ...]:
    """Return the columns that a file's first line names.

    Raises:
        BadRecordError: the line is no header.
    """
    try:
        [cells] = csv.reader([line.decode()], delimiter=delimiter, strict=True)
    except (UnicodeDecodeError, ValueError, csv.Error):
        cells = []
    names = tuple(cell.strip() for cell in cells)
    if not all(names) or len(set(names)) != len(names) or not names:
        raise BadRecordError(
            f"file {name!r} begins with {line[:80]!r}, which does not name its columns",
            todo="Each column needs a name of its own in the first line. If the files have no "
            "such line,\nset `options: {header: false}` and give `schema`.",
        )
    return names


def infer_columns(lines: Sequence[bytes], names: tuple[str, ...], delimiter: str) -> pa.Schema:
    """Return the columns that lines show; text where no other type gives every cell back."""
    from icestream.formats.inference import resolved_type

    found = _infer_cells(lines, names, delimiter, set(names))
    return pa.schema([(name, resolved_type(kind) or pa.string()) for name, kind in found.items()])


def _infer_cells(
    lines: Sequence[bytes], names: tuple[str, ...], delimiter: str, wanted: set[str]
) -> dict[str, pa.DataType]:
    """Return the unresolved types of the wanted columns."""
    from icestream.formats.csv import cell_type
    from icestream.formats.inference import NULL, merge

    places = [(place, name) for place, name in enumerate(names) if name in wanted]
    found = {name: NULL for _, name in places}
    for line in lines:
        try:
            cells = next(csv.reader([line.decode()], delimiter=delimiter, strict=True), [])
        except (UnicodeDecodeError, csv.Error):  # decode reports it
            continue
        if len(cells) == len(names):
            for place, name in places:
                found[name] = merge(found[name], cell_type(cells[place]))
    return found
