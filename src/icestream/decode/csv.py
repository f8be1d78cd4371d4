"""CSV records, one line a value, without a header."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from icestream.decode.blocks import BadValueError, BlockDecoder, SlowOutcome
from icestream.decode.values import MisfitError, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence


class CsvDecoder(BlockDecoder):
    """Decodes lines whose cells are the columns of `layout`, in that order.

    An empty cell is null, except in a text column, where it is empty text.
    """

    def __init__(self, layout: pa.Schema, delimiter: str = ",") -> None:
        self.layout = layout
        self.delimiter = delimiter

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:  # noqa: ARG002 - it is given
        """Return the columns that were given: a line alone has no names."""
        return self.layout

    def plain(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Tell which values are one line each, so that as many rows as values means one of each."""
        is_line = pc.invert(pc.match_substring_regex(values, r"^\s*$|[\r\n]"))
        return np.asarray(is_line.fill_null(False).to_numpy(zero_copy_only=False))

    def read_block(
        self, values: pa.Array, columns: pa.Schema
    ) -> tuple[pa.RecordBatch, dict[str, pa.DataType]] | None:
        """Read a block with Arrow."""
        whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        text = pc.binary_join(whole, b"\n")[0].as_buffer()
        wanted = {field.name: field.type for field in columns if field.name in self.layout.names}
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(text),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=text.size + 1, column_names=self.layout.names
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=wanted, include_columns=list(wanted), null_values=[""]
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
            return None
        if table.num_rows != len(values):
            return None
        rows = _rows({name: table[name].combine_chunks() for name in wanted}, len(values), columns)
        return None if rows is None else (rows, {})

    def read_values(self, values: list[bytes], columns: pa.Schema, outcome: SlowOutcome) -> None:
        """Read lines with Python's parser."""
        pieces = []
        for place, value in enumerate(values):
            try:
                pieces.append(self._row(value, columns))
                outcome.kept.append(place)
            except BadValueError as exc:  # noqa: PERF203 - each value has its own fault
                outcome.bad.append((place, str(exc)))
        if pieces:
            outcome.rows = pa.concat_batches(pieces)

    def absent_fields(
        self, values: pa.Array, rows: pa.RecordBatch
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return the columns that no line has a cell for."""
        absent = [name for name in rows.schema.names if name not in self.layout.names]
        return {name: np.ones(len(values), np.bool_) for name in absent}

    def _row(self, value: bytes, columns: pa.Schema) -> pa.RecordBatch:
        try:
            lines = list(csv.reader([value.decode()], delimiter=self.delimiter, strict=True))
        except UnicodeDecodeError as exc:
            raise BadValueError(f"not CSV: byte {exc.start} is not UTF-8") from None
        except csv.Error:
            raise BadValueError("not CSV: a quote without its end, or a second line") from None
        cells = lines[0] if lines else []
        if len(cells) != len(self.layout):
            raise BadValueError(f"not CSV: {len(cells)} cells, not {len(self.layout)}")
        arrays = {}
        for name, cell in zip(self.layout.names, cells, strict=True):
            place = columns.get_field_index(name)
            if place >= 0:
                arrays[name] = _cell(name, cell, columns.field(place).type)
        row = _rows(arrays, 1, columns)
        if row is None:
            lacking = next(f.name for f in columns if not f.nullable and not _has(arrays, f.name))
            raise BadValueError(f"column {lacking!r}: no value, and it is required")
        return row


def _cell(name: str, text: str, kind: pa.DataType) -> pa.Array:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not text and not is_text:
        return pa.nulls(1, kind)
    try:
        # The same reader as for blocks, so that both agree on what a cell means.
        table = arrow_csv.read_csv(
            pa.BufferReader(b'"' + text.replace('"', '""').encode() + b'"'),
            read_options=arrow_csv.ReadOptions(use_threads=False, column_names=["cell"]),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types={"cell": kind}, null_values=[""]),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadValueError(MisfitError(text, type_name(kind)).reason(name)) from None
    return table["cell"].combine_chunks()


def _has(arrays: dict[str, pa.Array], name: str) -> bool:
    return name in arrays and not arrays[name].null_count


def _rows(arrays: dict[str, pa.Array], count: int, columns: pa.Schema) -> pa.RecordBatch | None:
    """Return the arrays as these columns; None if a required one has a null."""
    whole = [arrays.get(field.name, pa.nulls(count, field.type)) for field in columns]
    for field, array in zip(columns, whole, strict=True):
        if not field.nullable and array.null_count:
            return None
    return pa.RecordBatch.from_arrays(whole, schema=columns)
