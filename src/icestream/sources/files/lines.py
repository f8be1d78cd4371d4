"""Reads files of lines, each a record."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def first_line(file: IO[bytes]) -> bytes:
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


def line_bytes(file: IO[bytes]) -> float | None:
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
