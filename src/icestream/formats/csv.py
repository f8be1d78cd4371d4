"""CSV without a header: each record is one line."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from icestream.contracts.decoder import Format
from icestream.errors import PlanError
from icestream.formats.blocks import (
    BadValueError,
    BlockDecoder,
    DecodedValues,
    not_utf8_reason,
    required_value_error,
    value_offsets,
)
from icestream.formats.exact_numbers import (
    cast_decimals,
    floats_fit,
    rounds_to_double,
    texts_fit_doubles,
)
from icestream.formats.inference import EMPTY, infer_type
from icestream.formats.json import is_in_calendar
from icestream.formats.values import NUMBER, MisfitError, converter, parse_time, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.contracts.decoder import Decoder, FormatSettings


_CAST_FAULTS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError)
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_MAX_DIGITS = 4300  # the most digits that Python's `int` takes
_LOGICAL = {
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False
}  # fmt: skip
# What a declared column also accepts.
_DECLARED_LOGICAL = {**_LOGICAL, "1": True, "0": False}
_LENIENT = re.compile(
    r"([+-]?)(?:0*([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))((?:[eE][+-]?[0-9]+)?)", re.ASCII
)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_ANY_ZERO = r"^[+-]?[0.]+(?:[eE].*)?$"
_ANY_WHOLE = r"^[+-]?[0-9]+$"
_EXACT_DOUBLES = 2.0**53


def _csv_cell(value: Any) -> Any:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


class CsvDecoder(BlockDecoder):
    """Decodes lines whose cells are the columns of `layout`, in that order.

    An empty cell is null, except in a text column, where it is empty text.

    Args:
        layout: the columns.
        delimiter: the character between cells.
        inferred: whether the types were inferred; a number must then be written as in JSON. A
            declared number column also takes `007`, `+7`, `.7` and ` 7`.
    """

    def __init__(self, layout: pa.Schema, delimiter: str = ",", *, inferred: bool = False) -> None:
        self.layout = layout
        self.delimiter = delimiter
        self.inferred = inferred

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:  # noqa: ARG002 - it is given
        """Return the given columns: a line alone has no names."""
        return self.layout

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return a line; a field that is missing is an empty cell."""
        unknown = [name for name in record if name not in self.layout.names]
        if unknown:
            raise PlanError(
                f"the lines have no column {unknown[0]!r}",
                todo=f"Their columns: {', '.join(self.layout.names)}.",
            )
        cells = [_csv_cell(record.get(name)) for name in self.layout.names]
        line = io.StringIO()
        csv.writer(line, delimiter=self.delimiter, lineterminator="").writerow(cells)
        return line.getvalue().encode()

    def fast_path_mask(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Flag the values that are exactly one line, so that an equal row count means one row each.

        Arrow takes text after a closing quote as part of the cell, so a value with quotes anywhere
        but around whole cells is left to Python.
        """
        if _are_simple(values):
            return np.ones(len(values), np.bool_)
        is_line = pc.invert(pc.match_substring_regex(values, r"^\s*$|[\r\n]"))
        quoted = pc.fill_null(pc.match_substring(values, '"'), False)
        if pc.any(quoted).as_py():
            delimiter = re.escape(self.delimiter)
            cell = rf'(?:[^"{delimiter}]*|"(?:[^"]|"")*")'
            is_whole = pc.match_substring_regex(values, rf"^{cell}(?:{delimiter}{cell})*$")
            is_line = pc.and_(is_line, pc.or_(pc.invert(quoted), is_whole))
        return np.asarray(is_line.fill_null(False).to_numpy(zero_copy_only=False))

    def read_block(
        self, values: pa.Array, columns: pa.Schema
    ) -> tuple[pa.RecordBatch, dict[str, pa.DataType]] | None:
        """Read a block with Arrow."""
        whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        text = pc.binary_join(whole, b"\n")[0].as_buffer()
        fields = [field for field in columns if field.name in self.layout.names]
        names = [field.name for field in fields]
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(text),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=text.size + 1, column_names=self.layout.names
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), include_columns=names
                ),
            )
            if table.num_rows != len(values):
                return None
            arrays = {
                field.name: self._cast(table[field.name].combine_chunks(), field.type)
                for field in fields
            }
        except _CAST_FAULTS:
            return None
        rows = _record_batch(arrays, len(values), columns)
        return None if rows is None else (rows, {})

    def _cast(self, cells: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return cells cast to a type. Raises `pa.ArrowInvalid` if the slow path must decide."""
        if _is_text(kind):
            return cells.cast(kind)
        if pc.min(pc.binary_length(cells)).as_py() == 0:
            cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return cells.cast(kind)
        if self.inferred:
            return _strict_cast(cells, kind)
        try:
            return _declared_cast(cells, kind)
        except _CAST_FAULTS:
            return _declared_cast(_normalise(cells, kind), kind)

    def read_values(self, values: list[bytes], columns: pa.Schema, outcome: DecodedValues) -> None:
        """Read lines with Python's parser."""
        good: list[list[Any]] = []
        for index, value in enumerate(values):
            try:
                good.append(self._row(value, columns))
                outcome.kept.append(index)
            except BadValueError as exc:  # noqa: PERF203 - each value has its own fault
                outcome.bad.append((index, str(exc)))
        if good:
            arrays = [
                pa.array([row[index] for row in good], field.type)
                for index, field in enumerate(columns)
            ]
            outcome.rows = pa.RecordBatch.from_arrays(arrays, schema=columns)

    def absent_fields(
        self, values: pa.Array, rows: pa.RecordBatch
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return the columns that no line has a cell for."""
        absent = [name for name in rows.schema.names if name not in self.layout.names]
        return {name: np.ones(len(values), np.bool_) for name in absent}

    def _row(self, value: bytes, columns: pa.Schema) -> list[Any]:
        cells = dict(zip(self.layout.names, self._cells(value), strict=True))
        row = []
        for field in columns:
            cell = cells.get(field.name)
            try:
                parsed = (
                    None if cell is None else cell_value(cell, field.type, inferred=self.inferred)
                )
            except MisfitError as exc:
                raise BadValueError(exc.reason(field.name)) from None
            if parsed is None and not field.nullable:
                raise required_value_error(field.name)
            row.append(parsed)
        return row

    def _cells(self, value: bytes) -> list[str]:
        try:
            lines = list(csv.reader([value.decode()], delimiter=self.delimiter, strict=True))
        except UnicodeDecodeError:
            raise BadValueError(f"not CSV: {not_utf8_reason(value)}") from None
        except csv.Error:
            raise BadValueError("not CSV: unclosed quote, or more than one line") from None
        cells = lines[0] if lines else []
        if len(cells) != len(self.layout):
            raise BadValueError(f"not CSV: expected {len(self.layout)} cells, got {len(cells)}")
        return cells


def cell_value(text: str, kind: pa.DataType, *, inferred: bool = False) -> Any:
    """Return the value of one cell, which is null if it is empty and its column is not text.

    Args:
        text: the cell.
        kind: the type of its column.
        inferred: whether the type was inferred, see `CsvDecoder`.

    Raises:
        MisfitError: the cell does not fit the type.
    """
    if _is_text(kind):
        return text
    if not text:
        return None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.encode()
    if pa.types.is_nested(kind):
        raise MisfitError(text, type_name(kind))
    cell = text if inferred else text.strip()
    if pa.types.is_boolean(kind):
        value = (_LOGICAL if inferred else _DECLARED_LOGICAL).get(cell)
    elif _is_number(kind):
        value = _numeric(cell, kind, inferred=inferred)
    else:
        value = converter(kind)(cell)
    if value is None:
        raise MisfitError(text, type_name(kind))
    return value


def _numeric(cell: str, kind: pa.DataType, *, inferred: bool) -> Any:
    """Return the number in a cell; None if it is not a number."""
    if inferred:
        number = _number(cell)
    elif pa.types.is_floating(kind) and _NOT_FINITE.fullmatch(cell) is not None:
        return float(cell)
    else:
        number = _number(_json_number(cell))
    return None if number is None else converter(kind)(number)


def _json_number(cell: str) -> str:
    """Return a number as JSON writes it, and any other cell unchanged."""
    match = _LENIENT.fullmatch(cell)
    if match is None:
        return cell
    sign, whole, fraction, only_fraction, power = match.groups()
    digits = fraction or only_fraction
    point = f".{digits}" if digits else ""
    return f"{sign.removeprefix('+')}{whole or '0'}{point}{power}"


def cell_type(text: str) -> pa.DataType:
    """Return the type that holds a cell and can be written back as the same text."""
    if not text:
        return EMPTY
    if text in _LOGICAL:
        return pa.bool_()
    number = _number(text)
    if number is not None:
        return infer_type(number)
    try:
        parse_time(text)
    except ValueError:
        return infer_type(text)
    return pa.time64("us")


def _number(text: str) -> int | Decimal | None:
    """Return a number written as in JSON; None if the text is no such number."""
    if len(text) > _MAX_DIGITS or NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text != "-0" and _WHOLE.fullmatch(text) else Decimal(text)


def _are_simple(values: pa.Array) -> bool:
    """Return whether no value is null or empty, starts with a blank, or has a quote or newline."""
    ends, data = value_offsets(values)
    if values.null_count or not len(values) or (np.diff(ends) == 0).any():
        return False
    text = data[ends[0] : ends[-1]].tobytes()
    has_marks = b'"' in text or b"\n" in text or b"\r" in text
    return not has_marks and not bool((data[ends[:-1]] <= ord(" ")).any())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _strict_cast(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the cells of an inferred column, whose numbers are written as in JSON."""
    if pa.types.is_integer(kind):
        array = cells.cast(kind)
        _require_all(cells, pc.equal(array.cast(pa.string()), cells))
        return array
    if _is_number(kind):
        _require_all(cells, pc.match_substring_regex(cells, f"^{NUMBER.pattern}$"))
    if not pa.types.is_floating(kind):
        return _plain_cast(cells, kind, _LOGICAL)
    doubles = cells.cast(pa.float64())
    if not texts_fit_doubles(cells):
        raise pa.ArrowInvalid("a value would change")
    return _as_floating(doubles, kind)


def _declared_cast(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the cells of a declared column.

    Arrow reads leading zeros, `.5` and `nan`; nothing else is accepted.
    """
    if pa.types.is_integer(kind):
        # Arrow reads `0x10`, too.
        data = np.frombuffer(cells.buffers()[2] or b"", np.uint8)
        if ((data | 32) == ord("x")).any():
            raise pa.ArrowInvalid("a cell for the slow path")
        return cells.cast(kind)
    if not pa.types.is_floating(kind):
        return _plain_cast(cells, kind, _DECLARED_LOGICAL)
    doubles = cells.cast(pa.float64())
    values = np.asarray(doubles.to_numpy(zero_copy_only=False), np.float64)
    if (not_finite := ~np.isfinite(values)).any():
        texts = cells.filter(pa.array(not_finite))
        _require_all(
            texts, pc.match_substring_regex(texts, f"^{_NOT_FINITE.pattern}$", ignore_case=True)
        )
    if (is_zero := values == 0).any():
        zeros = cells.filter(pa.array(is_zero))
        _require_all(zeros, pc.match_substring_regex(zeros, _ANY_ZERO))
    if (is_large := np.abs(values) >= _EXACT_DOUBLES).any():
        large = cells.filter(pa.array(is_large & ~not_finite))
        whole = large.filter(pc.match_substring_regex(large, _ANY_WHOLE)).to_pylist()
        if not all(len(text) < _MAX_DIGITS and rounds_to_double(int(text)) for text in whole):
            raise pa.ArrowInvalid("a value would change")
    return _as_floating(doubles, kind)


def _plain_cast(cells: pa.Array, kind: pa.DataType, logical: dict[str, bool]) -> pa.Array:
    if pa.types.is_boolean(kind):
        allowed = pc.is_in(cells, value_set=pa.array([*logical, None], pa.string()))
        return _require_all(cells, allowed).cast(kind)
    if pa.types.is_decimal(kind):
        return cast_decimals(cells, kind)
    array = cells.cast(kind)
    if not is_in_calendar(array):
        raise pa.ArrowInvalid("a year outside 1 to 9999")
    return array


def _as_floating(doubles: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_float32(kind) and not floats_fit(doubles):
        raise pa.ArrowInvalid("a value would change")
    return doubles.cast(kind)


def _normalise(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return cells trimmed, and numbers without a plus sign.

    Timestamps become UTC if none of them has a time zone.
    """
    cells = pc.ascii_trim_whitespace(cells)
    if _is_number(kind):
        return pc.replace_substring_regex(cells, r"^\+([0-9.])", r"\1")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return cells.cast(pa.timestamp(kind.unit)).cast(kind)
    return cells


def _require_all(cells: pa.Array, allowed: pa.Array) -> pa.Array:
    """Return the cells if all of them are allowed, else raise `pa.ArrowInvalid`."""
    if not pc.all(allowed).as_py():
        raise pa.ArrowInvalid("a cell for the slow path")
    return cells


def _record_batch(
    arrays: dict[str, pa.Array], count: int, columns: pa.Schema
) -> pa.RecordBatch | None:
    """Return the arrays as these columns; None if a required column has a null."""
    ordered = [arrays.get(field.name, pa.nulls(count, field.type)) for field in columns]
    for field, array in zip(columns, ordered, strict=True):
        if not field.nullable and array.null_count:
            return None
    return pa.RecordBatch.from_arrays(ordered, schema=columns)


class CsvFormat(Format):
    """Lines of CSV without a header."""

    name = "csv"
    is_line_based = True

    def decoder(self, settings: FormatSettings) -> Decoder:
        if settings.schema is None:
            raise PlanError(
                "format 'csv' needs a schema, and none is given",
                todo="Add e.g. `schema: id bigint, name string`: a line alone has no names.",
            )
        return CsvDecoder(settings.schema.columns)

    def missing_option(self, *, schema: bool, registry: bool) -> str | None:  # noqa: ARG002
        return None if schema else "`schema`, e.g. `id bigint, name string`"
