"""JSON text: one object per value, or per line."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from icestream.contracts.decoder import Format
from icestream.formats.blocks import (
    BadValueError,
    BlockDecoder,
    DecodedValues,
    likely_format,
    not_utf8_reason,
    required_value_error,
    value_offsets,
)
from icestream.formats.exact_numbers import (
    decimals_are_safe,
    doubles_in,
    doubles_round,
    floats_fit,
    leaves,
    wraps_around,
)
from icestream.formats.inference import (
    columns_for,
    infer_fields,
    join_columns,
    new_columns,
    resolved_fields,
    unknown_fields,
)
from icestream.formats.values import MisfitError, converter, json_text, render_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from icestream.contracts.decoder import Decoder, FormatSettings


ONE_OBJECT = "write one object per record, in files one per line"
TOO_LARGE = "not JSON: a number with thousands of digits, or thousands of nested brackets"
# The escape of a surrogate, which JSON can write alone and UTF-8 cannot.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_DIGITS = 4300  # the most that Python's `int` takes


def _integer(text: str) -> int | Decimal:
    # A double has a negative zero, an `int` has not.
    return int(text) if text != "-0" else Decimal(text)


def _fraction(text: str) -> Decimal:
    if len(text) > _MAX_DIGITS:
        raise ValueError(TOO_LARGE)
    return Decimal(text)


_DECODER = json.JSONDecoder(parse_float=_fraction, parse_int=_integer)


def join_lines(texts: pa.Array) -> pa.Buffer:
    """Join texts into one, with a line each."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(whole, "\n")[0].as_buffer()


def read_text(text: pa.Buffer, schema: pa.Schema | None, others: str = "infer") -> pa.Table:
    """Read lines with Arrow.

    Args:
        text: one object per line.
        schema: the types of declared fields.
        others: what to do with other fields, `infer` or `ignore`.

    Raises:
        pa.ArrowInvalid: a line is not an object, or a value does not fit its type.
    """
    return arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=others, newlines_in_values=False
        ),
    )


def parse_object(value: bytes) -> dict[str, Any]:
    """Parse one record.

    Raises:
        BadValueError: the value is not an object.
    """
    try:
        record = _DECODER.decode(value.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadValueError(f"not JSON: {not_utf8_reason(value)}") from None
    except json.JSONDecodeError as exc:
        raise BadValueError(f"not JSON: {_syntax_error(value, exc)}") from None
    # Thousands of digits or of brackets, or an exponent that no decimal can have.
    except (ValueError, RecursionError, ArithmeticError):
        raise BadValueError(TOO_LARGE) from None
    if isinstance(record, list):
        raise BadValueError(f"not a JSON object but an array; {ONE_OBJECT}")
    if not isinstance(record, dict):
        raise BadValueError(f"not a JSON object: {render_value(record)}")
    if _SURROGATE.search(value) is not None:
        _refuse_lone_surrogates(record)
    return record


def _syntax_error(value: bytes, exc: json.JSONDecodeError) -> str:
    """Say what the parser says, and the likely cause."""
    text, kind = value.strip(), likely_format(value)
    where = f"{exc.msg.lower()} at character {exc.pos}"
    if not text:
        return f"{where}, the value is empty"
    if kind:
        return f"{where}; it starts like {kind}"
    if text.startswith(b"["):
        return f"{where}; it starts like an array, {ONE_OBJECT}"
    if not text.startswith(b"{"):
        return "an object starts with '{'"
    is_cut = exc.pos >= len(exc.doc.rstrip()) or exc.msg.startswith("Unterminated")
    return f"{where}; the object does not end here, {ONE_OBJECT}" if is_cut else where


def _refuse_lone_surrogates(record: dict[str, Any]) -> None:
    try:
        json_text(record).encode()
    except UnicodeEncodeError:
        raise BadValueError("not JSON: lone surrogate, which UTF-8 can't encode") from None
    except RecursionError:
        raise BadValueError(TOO_LARGE) from None


_OPEN, _CLOSE = ord("{"), ord("}")
# Arrow's parser recurses, and a value nested 30,000 deep crashes the process, so a long value with
# this many brackets is left to Python, which has a limit.
_MAX_BRACKETS = 2000
# The years 1 to 9999, as microseconds: Arrow reads years outside of them, Python does not.
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999


class JsonDecoder(BlockDecoder):
    """Decodes JSON objects; fields are matched to columns by their exact name.

    Args:
        ignores_new: whether to skip fields that have no column.
    """

    def __init__(self, *, ignores_new: bool = False) -> None:
        self.ignores_new = ignores_new
        self._reader: _ColumnReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        """Return the fields of the sample; a field that is null everywhere is left out."""
        return pa.schema(list(resolved_fields(_infer(sample)).items()))

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return a JSON object."""
        return json.dumps(record, ensure_ascii=False).encode()

    def fast_path_mask(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Flag the values that start with `{` and end with `}`.

        Arrow's parser reads objects from one long text, regardless of where values end. With values
        that start and end like this and newlines between them, an object that spans two values is
        malformed, so an equal row count means one row each. A bare `null` would even crash the
        process (pyarrow 26).
        """
        ends, data = value_offsets(values)
        begin, stop = ends[:-1], ends[1:]
        is_plain = stop > begin + 1
        if values.null_count:
            is_plain &= values.is_valid().to_numpy(zero_copy_only=False)
        if is_plain.any():
            inside = np.where(is_plain, begin, begin[is_plain][0])
            last = np.where(is_plain, stop, stop[is_plain][0]) - 1
            is_plain &= (data[inside] == _OPEN) & (data[last] == _CLOSE)
        for index in np.flatnonzero(is_plain & (stop - begin > _MAX_BRACKETS)).tolist():
            text = data[begin[index] : stop[index]].tobytes()
            is_plain[index] = text.count(b"{") + text.count(b"[") <= _MAX_BRACKETS
        return is_plain

    def read_block(
        self, values: pa.Array, columns: pa.Schema
    ) -> tuple[pa.RecordBatch, dict[str, pa.DataType]] | None:
        """Read a block with Arrow."""
        reader = self._reader_for(columns)
        if reader.readable is None:
            return None
        try:
            # Arrow's reader takes any bytes for text; the cast refuses what is not UTF-8.
            text = join_lines(values.cast(pa.string()))
            if reader.has_decimals and not decimals_are_safe(text):
                return None
            table = reader.read(text)
            if table.num_rows != len(values):
                return None
            rows = reader.fit(table, text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if rows is None:
            return None
        return rows, _new_fields(table, values, columns)

    def read_values(self, values: list[bytes], columns: pa.Schema, outcome: DecodedValues) -> None:
        """Read values with Python's parser."""
        reader = self._reader_for(columns)
        good: list[list[Any]] = []
        unknown: list[dict[str, Any]] = []
        for index, value in enumerate(values):
            record: dict[str, Any] = {}
            try:
                record = self.parse(value)
                good.append(reader.row(record))
            except BadValueError as exc:
                outcome.bad.append((index, str(exc)))
                if record:
                    wider = columns_for(columns, record)
                    outcome.wider = join_columns(outcome.wider, wider)
            except RecursionError:
                outcome.bad.append((index, TOO_LARGE))
            else:
                outcome.kept.append(index)
                if not self.ignores_new and not reader.scalar_names.issuperset(record):
                    unknown.append(record)
        if good:
            outcome.rows = reader.rows(good)
            outcome.new_fields = unknown_fields(columns, infer_fields(unknown))

    def absent_fields(
        self, values: pa.Array, rows: pa.RecordBatch
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Flag, by column, the records that have no field for it: those whose value is null."""
        is_null = {
            name: column.is_null().to_numpy(zero_copy_only=False)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
            if column.null_count
        }
        if not is_null:
            return {}
        for index in np.flatnonzero(np.any(list(is_null.values()), axis=0)).tolist():
            record = parse_object(values[index].as_py())
            for name in is_null.keys() & record.keys():
                is_null[name][index] = False
        return is_null

    def parse(self, value: bytes) -> dict[str, Any]:
        """Return one record, or raise `BadValueError`."""
        return parse_object(value)

    def _reader_for(self, columns: pa.Schema) -> _ColumnReader:
        if self._reader is None or not self._reader.columns.equals(columns, check_metadata=True):
            self._reader = _ColumnReader(columns, ignores_new=self.ignores_new)
        return self._reader


def _new_fields(table: pa.Table, values: pa.Array, columns: pa.Schema) -> dict[str, pa.DataType]:
    """Return the unresolved types of fields that `columns` lacks, by the same rules as `infer`.

    Arrow infers by other rules: it drops the time zone of a timestamp and rounds numbers. So
    records that have such a field are parsed in Python, until the field is a column.
    """
    new = unknown_fields(columns, {field.name: field.type for field in table.schema})
    if not new_columns(columns, new):
        return new  # null, `[]` or `{}` everywhere
    has_value = np.zeros(len(values), np.bool_)
    for name in new:
        has_value |= table.column(name).is_valid().to_numpy()
    records = values.filter(pa.array(has_value)).to_pylist()
    return unknown_fields(columns, _infer(records, new.keys()))


class _ColumnReader:
    """Reads the requested columns, with Arrow or with Python."""

    def __init__(self, columns: pa.Schema, *, ignores_new: bool) -> None:
        self.columns = columns
        self._others = "ignore" if ignores_new else "infer"
        readable = [_readable(field.type) for field in columns]
        self.readable: pa.Schema | None = None
        if None not in readable:
            self.readable = pa.schema(
                [field.with_type(kind) for field, kind in zip(columns, readable, strict=True)]
            )
        self._decimals = {field.name for field in columns if "decimal" in str(field.type)}
        self.has_decimals = bool(self._decimals)
        self._floats = {field.name for field in columns if "float" in str(field.type)}
        self.scalar_names = {field.name for field in columns if not pa.types.is_nested(field.type)}
        self._convert: list[tuple[pa.Field, Callable[[Any], Any]]] = [
            (field, converter(field.type)) for field in columns
        ]

    def read(self, text: pa.Buffer) -> pa.Table:
        """Read a block of text as columns that can be cast to the requested ones."""
        try:
            return read_text(text, self.readable, self._others)
        except pa.ArrowInvalid as exc:
            if "to timestamp[us" not in str(exc) or self.readable is None:
                raise
        # Fractions of 7 to 9 digits, which Go, Rust and .NET write, can only be read as
        # nanoseconds. A source that writes them will keep doing so.
        finer = pa.schema([field.with_type(_in_nanos(field.type)) for field in self.readable])
        table = read_text(text, finer, self._others)
        self.readable = finer
        return table

    def fit(self, table: pa.Table, text: pa.Buffer) -> pa.RecordBatch | None:
        """Return a block as the requested columns.

        None if a required value is missing, or a value may differ from the text.
        """
        if not table.num_columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * table.num_rows, pa.struct([])))
        read = [table.column(field.name) for field in self.columns]
        if not doubles_round(text, doubles_in(read)):
            return None
        arrays = []
        for field, chunks in zip(self.columns, read, strict=True):
            column = chunks.combine_chunks()
            is_float = field.name in self._floats and column.type != field.type
            if is_float and not all(map(floats_fit, doubles_in([chunks]))):
                return None
            if field.name in self._decimals:
                # Arrow's reader checks a number's precision before it adds the digits of the scale.
                column.validate(full=True)
            if column.type != field.type:
                column = column.cast(field.type)
            if (not field.nullable and column.null_count) or not is_in_calendar(column):
                return None
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def row(self, record: dict[str, Any]) -> list[Any]:
        """Return the values of one parsed record, in the order of the columns."""
        row = []
        for field, convert in self._convert:
            try:
                value = convert(record.get(field.name))
            except MisfitError as exc:
                raise BadValueError(exc.reason(field.name)) from None
            if value is None and not field.nullable:
                raise required_value_error(field.name)
            row.append(value)
        return row

    def rows(self, good: list[list[Any]]) -> pa.RecordBatch:
        """Return converted rows as columns."""
        if not self._convert:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(good), pa.struct([])))
        columns = zip(*good, strict=True)
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, self.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)


def _readable(kind: pa.DataType) -> pa.DataType | None:
    """Return a type that Arrow's JSON reader supports and that casts to `kind`; None if none."""
    if pa.types.is_struct(kind):
        members = [kind.field(index) for index in range(kind.num_fields)]
        inner = [_readable(member.type) for member in members]
        if None in inner:
            return None
        return pa.struct([m.with_type(k) for m, k in zip(members, inner, strict=True)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _readable(kind.value_type)
        return None if element is None else pa.list_(kind.value_field.with_type(element))
    return _readable_scalar(kind)


def _readable_scalar(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_date(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_float32(kind):
        return pa.float64()  # Arrow detects its overflow
    if wraps_around(kind):
        return pa.decimal256(kind.precision, kind.scale)
    is_unsupported = (
        pa.types.is_map(kind)
        or pa.types.is_time(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    return None if is_unsupported else kind


def is_in_calendar(column: pa.Array) -> bool:
    """Return whether all dates and timestamps are in the years 1 to 9999."""
    for leaf in leaves(column):
        if not pa.types.is_date(leaf.type) and not pa.types.is_timestamp(leaf.type):
            continue
        if pa.types.is_timestamp(leaf.type) and leaf.type.unit == "ns":
            continue  # nanoseconds range from 1677 to 2262
        first, last = pc.min_max(leaf.cast(pa.timestamp("us"))).values()
        if first.is_valid and (first.value < _FIRST_MICROS or last.value > _LAST_MICROS):
            return False
    return True


def _in_nanos(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if pa.types.is_struct(kind):
        members = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([member.with_type(_in_nanos(member.type)) for member in members])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_nanos(kind.value_type)))
    return kind


def _infer(
    sample: Sequence[bytes | None], names: Collection[str] | None = None
) -> dict[str, pa.DataType]:
    """Return the unresolved types of all fields, or of those with the given names."""
    records = []
    for value in sample:
        try:
            record = parse_object(value or b"")
        except BadValueError:  # decode reports it
            continue
        if names is not None:
            record = {name: record[name] for name in names if name in record}
        records.append(record)
    return infer_fields(records)


class JsonFormat(Format):
    """JSON objects."""

    name = "json"
    is_line_based = True

    def decoder(self, settings: FormatSettings) -> Decoder:
        return JsonDecoder(ignores_new=settings.schema is not None)
