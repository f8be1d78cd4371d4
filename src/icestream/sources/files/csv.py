"""CSV files, whose first line may name the columns."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.decoder import Decoded, Decoder
from icestream.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

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


def header_of(line: bytes, name: str, delimiter: str) -> tuple[str, ...]:
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
    from icestream.formats.inference import known_part

    found = _infer_cells(lines, names, delimiter, set(names))
    return pa.schema([(name, known_part(kind) or pa.string()) for name, kind in found.items()])


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
