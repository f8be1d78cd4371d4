"""Arrow data in pieces of bounded size.

A text or binary column has 32-bit offsets, which end at 2 GiB: to join chunks, or to take rows of
them, fails beyond that. So whatever joins rows works on pieces, and memory stays bounded too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

# Far below 2 GiB: values of other rows may be filled in, or take more room in another type.
PIECE_BYTES = 256 << 20


def cut(batch: pa.RecordBatch, most_bytes: int = PIECE_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in slices of at most `most_bytes`; a larger row is alone."""
    if batch.num_rows <= 1 or batch.nbytes <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half), most_bytes)
    yield from cut(batch.slice(half), most_bytes)


def pieces(
    batches: Iterable[pa.RecordBatch], most_bytes: int = PIECE_BYTES
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of batches, in order, in lists of at most `most_bytes` each."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part in cut(batch, most_bytes):
            if piece and size + part.nbytes > most_bytes:
                yield piece
                piece, size = [], 0
            piece.append(part)
            size += part.nbytes
    if piece:
        yield piece
