"""Reads files of lines, each a record."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import pyarrow as pa

from icestream.contracts.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK_BYTES = 8 << 20
_BOM = b"\xef\xbb\xbf"


def read_lines(file: IO[bytes], name: str, *, before: int = 0) -> Iterator[Records]:
    """Yield the lines of a file as records, block by block. Empty lines are no records.

    Args:
        file: the file, opened.
        name: what the file is called in a record's position: `events/a.json:17`.
        before: lines at the file's beginning that were taken already.
    """
    number = 1 + before
    for lines in _blocks(file):
        records = _records(lines, name, number)
        number += len(lines)
        if records is not None:
            yield records


def first_line(file: IO[bytes]) -> bytes:
    """Return the first line of a file, without its end."""
    return file.readline(BLOCK_BYTES).removeprefix(_BOM).rstrip(b"\r\n")


def _blocks(file: IO[bytes]) -> Iterator[list[bytes]]:
    held: list[bytes] = []
    block = file.read(BLOCK_BYTES).removeprefix(_BOM)
    while block:
        cut = block.rfind(b"\n") + 1
        if cut:
            whole = b"".join([*held, block[:cut]])
            held = [block[cut:]]
            # Lines written on Windows end in \r, and decoders are faster without it.
            yield whole.replace(b"\r\n", b"\n").split(b"\n")[:-1]
        else:
            held.append(block)
        block = file.read(BLOCK_BYTES)
    if rest := b"".join(held):
        yield [rest.removesuffix(b"\r")]


def _records(lines: list[bytes], name: str, first: int) -> Records | None:
    numbers: Sequence[int] = range(first, first + len(lines))
    if not all(lines):
        kept = [(n, line) for n, line in zip(numbers, lines, strict=True) if line]
        numbers, lines = [n for n, _ in kept], [line for _, line in kept]
    if not lines:
        return None
    return Records(pa.array(lines, pa.binary()), {}, lambda index: f"{name}:{numbers[index]}")
