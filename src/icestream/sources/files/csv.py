"""CSV files, whose first line may name the columns."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as arrow_csv

from icestream.contracts.decoder import Decoder
from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.sources.files.columns import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icestream.contracts.records import Decoded


class HeaderDecoder(Decoder):
    """Decodes lines whose cells are in the order of the files' header.

    The header is read on first use: at the start of a pipeline the folder may be empty.

    Args:
        header: finds the names of the columns.
        delimiter: what separates cells.
    """

    def __init__(self, header: Callable[[], tuple[str, ...]], delimiter: str) -> None:
        self._find_header = header
        self._delimiter = delimiter
        self._header: tuple[str, ...] | None = None

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        return infer_columns([line for line in sample if line], self._names(), self._delimiter)

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        from icestream.decode.csv import CsvDecoder

        layout = pa.schema([(name, pa.string()) for name in self._names()])
        return CsvDecoder(layout, self._delimiter).decode(values, columns)

    def _names(self) -> tuple[str, ...]:
        if self._header is None:
            self._header = self._find_header()
        return self._header


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


def refuse_other_header(found: tuple[str, ...], expected: tuple[str, ...], name: str) -> None:
    """Raise if a file's columns are others, or in another order, than the first file's."""
    if found != expected:
        raise SchemaMismatchError(
            f"file {name!r} has the columns {', '.join(found)}, and the first file has "
            f"{', '.join(expected)}",
            todo="Give every file the same header, or put the others into a folder of their own.",
        )


def infer_columns(lines: Sequence[bytes], names: tuple[str, ...], delimiter: str) -> pa.Schema:
    """Return the columns that lines show; text where nothing better fits all of them."""
    if not lines:
        return pa.schema([(name, pa.string()) for name in names])
    text = b"\n".join(lines)
    table = arrow_csv.read_csv(
        pa.BufferReader(text),
        # One block: types are inferred from the first block alone.
        read_options=arrow_csv.ReadOptions(
            column_names=list(names), use_threads=False, block_size=len(text) + 1
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter, invalid_row_handler=lambda _: "skip"
        ),
        convert_options=arrow_csv.ConvertOptions(null_values=[""]),
    )
    return pa.schema([(field.name, _text_or(storable(field.type))) for field in table.schema])


def _text_or(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_binary(kind) else kind
