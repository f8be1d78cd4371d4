"""JSON without schemas: types are inferred from the values.

Strings stay strings, whatever they look like: a column that holds dates today may hold words
tomorrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats.blocks import BadValueError
from icestream.formats.debezium.event_batch import (
    SOURCE,
    EventBatch,
    flat_event_batch,
    is_connector_event,
    row_columns,
    tables_of,
)
from icestream.formats.exact_numbers import doubles_are_exact, doubles_in
from icestream.formats.inference import NULL, infer_type, merge, resolved_type
from icestream.formats.json import TOO_LARGE, JsonDecoder, join_lines, parse_object, read_text
from icestream.formats.values import MisfitError, converter

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icestream.formats.debezium.assembly import Keys

    Bad = list[tuple[int, str]]


_ENVELOPE = pa.schema([("op", pa.string()), ("source", SOURCE)])
_NOT_NUMBERS = {"NaN", "Infinity", "-Infinity"}
_NUMBERS = (pa.int64(), pa.float64())


def read(indices: list[int], values: list[bytes], keys: Keys) -> tuple[list[EventBatch], Bad]:
    """Read values that have no schema."""
    array = pa.array(values, pa.binary())
    if JsonDecoder(ignores_new=True).fast_path_mask(array).all():
        event_batches = _read_fast(np.array(indices, np.int64), array, keys)
        if event_batches is not None:
            return event_batches, []
    return _read_slowly(indices, values, keys)


def _read_fast(
    indices: np.ndarray[Any, Any], values: pa.Array, keys: Keys
) -> list[EventBatch] | None:
    """Read values with Arrow; None if one is bad, or their types conflict."""
    try:
        has_envelope = is_envelope(parse_object(values[0].as_py()))
        text = join_lines(values.cast(pa.string()))
        table = _read_with_texts(text, _ENVELOPE if has_envelope else None)
        table.validate()  # Arrow 26 misreads lists of the first record that begin with a null
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, BadValueError):
        return None
    if table.num_rows != len(values) or not doubles_are_exact(text, doubles_in(table.columns)):
        return None
    if has_envelope:
        return _fast_envelopes(indices, values, keys, table)
    if {"op", "source"} <= set(table.schema.names):
        return None  # some of them may be envelopes
    if is_connector_event(set(table.schema.names), set(keys.names(int(indices[0])))):
        return []
    rows = table.to_struct_array().combine_chunks()
    kind = _row_type(rows.type)
    return None if kind is None else _flat(indices, _conform_struct(rows, kind))


def _fast_envelopes(
    indices: np.ndarray[Any, Any], values: pa.Array, keys: Keys, table: pa.Table
) -> list[EventBatch] | None:
    source = table.column("source").combine_chunks()
    lacks_table = pc.any(pc.is_null(source.field("table"))).as_py()
    if lacks_table or not {"before", "after"} & set(table.schema.names):
        return None
    tables, which = tables_of(source)
    if len(tables) == 1:
        return _envelopes(indices, table)
    # Each table has its own columns.
    event_batches: list[EventBatch] = []
    for number in range(len(tables)):
        of_table = which == number
        batches = _read_fast(indices[of_table], values.filter(pa.array(of_table)), keys)
        if batches is None:
            return None
        event_batches += batches
    return event_batches


def _read_with_texts(text: pa.Buffer, declared: pa.Schema | None) -> pa.Table:
    """Read lines, and once more if Arrow took some strings for timestamps."""
    table = read_text(text, declared)
    texts = [
        pa.field(field.name, kind)
        for field in table.schema
        if (kind := _texts_in(field.type)) is not None
        and (declared is None or field.name not in declared.names)
    ]
    if not texts:
        return table
    return read_text(text, pa.schema([*(declared or ()), *texts]))


def _texts_in(kind: pa.DataType) -> pa.DataType | None:
    """Return the part of a type to declare so that its strings stay strings; None if none."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = _texts_in(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        members = {part.name: _texts_in(part.type) for part in kind}
        declared = [(name, part) for name, part in members.items() if part is not None]
        return pa.struct(declared) if declared else None
    return None


def _envelopes(indices: np.ndarray[Any, Any], table: pa.Table) -> list[EventBatch] | None:
    arrays = {
        name: table.column(name).combine_chunks()
        for name in ("before", "after")
        if name in table.schema.names and table.schema.field(name).type != NULL
    }
    kinds = [array.type for array in arrays.values()]
    kind = _row_type(*kinds) if all(map(pa.types.is_struct, kinds)) else None
    if kind is None:
        return None
    try:
        rows = {name: _conform_struct(array, kind) for name, array in arrays.items()}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    nulls = pa.nulls(len(indices), kind)
    ops = table.column("op").combine_chunks()
    source = table.column("source").combine_chunks()
    columns = row_columns({part.name: part.type for part in kind})
    return [
        EventBatch(
            indices, ops, rows.get("before", nulls), rows.get("after", nulls), source, columns
        )
    ]


def _row_type(*kinds: pa.DataType) -> pa.DataType | None:
    """Return the type of rows of all these types; None if the slow path must infer it."""
    merged = pa.struct([])
    for kind in kinds:
        merged = merge(merged, kind)
    typed = [(part.name, part.type) for part in merged if part.type != NULL]
    # A list or struct with nothing but nulls, or strings in `before` and numbers in `after`.
    if any(resolved_type(kind) != kind for _, kind in typed) or _has_mixed(merged, kinds):
        return None
    return pa.struct(typed)


def _has_mixed(merged: pa.DataType, kinds: tuple[pa.DataType, ...]) -> bool:
    texts = {part.name for part in merged if pa.types.is_string(part.type)}
    return any(
        part.name in texts and part.type != NULL and not pa.types.is_string(part.type)
        for kind in kinds
        for part in kind
    )


def _conform_struct(rows: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return rows with the fields of a type."""
    arrays = []
    for part in kind:
        index = rows.type.get_field_index(part.name)
        arrays.append(
            pa.nulls(len(rows), part.type) if index < 0 else rows.field(index).cast(part.type)
        )
    mask = rows.is_null() if rows.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def _flat(indices: np.ndarray[Any, Any], rows: pa.Array) -> list[EventBatch]:
    columns = row_columns({part.name: part.type for part in rows.type})
    return [flat_event_batch(indices, rows, columns)]


def is_envelope(record: Mapping[str, Any]) -> bool:
    """Return whether a record is a change event, and not a row."""
    return (
        isinstance(record.get("source"), dict)
        and isinstance(record.get("op"), str)
        and ("after" in record or "before" in record)
    )


def _read_slowly(
    indices: list[int], values: list[bytes], keys: Keys
) -> tuple[list[EventBatch], Bad]:
    bad: Bad = []
    envelopes: list[tuple[int, dict[str, Any]]] = []
    rows: list[tuple[int, dict[str, Any]]] = []
    for index, value in zip(indices, values, strict=True):
        try:
            record = parse_object(value)
        except BadValueError as exc:
            bad.append((index, str(exc)))
            continue
        if is_envelope(record):
            envelopes.append((index, record))
        elif not is_connector_event(set(record), set(keys.names(index))):
            rows.append((index, record))
    event_batches = [_slow_event_batch(of_table, bad) for of_table in _by_table(envelopes)]
    if rows:
        kind = _inferred_type([row for _, row in rows])
        at, (structs,) = _conform_rows(rows, [("", kind)], bad)
        event_batches += _flat(at, structs)
    return event_batches, bad


def _by_table(
    envelopes: list[tuple[int, dict[str, Any]]],
) -> list[list[tuple[int, dict[str, Any]]]]:
    by_table: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
    for index, record in envelopes:
        table = tuple(str(record["source"].get(name)) for name in ("db", "schema", "table"))
        by_table.setdefault(table, []).append((index, record))
    return list(by_table.values())


def _slow_event_batch(envelopes: list[tuple[int, dict[str, Any]]], bad: Bad) -> EventBatch:
    kind = _inferred_type(
        [record.get(part) for _, record in envelopes for part in ("before", "after")]
    )
    parts = [("before", kind), ("after", kind), ("source", SOURCE), ("op", pa.string())]
    at, (before, after, source, ops) = _conform_rows(envelopes, parts, bad)
    columns = row_columns({part.name: part.type for part in kind})
    return EventBatch(at, ops, before, after, source, columns)


def _inferred_type(rows: list[Any]) -> pa.DataType:
    """Return the type of rows; `NaN` and infinities count as numbers among numbers."""
    types: dict[str, pa.DataType] = {}
    not_numbers: set[str] = set()
    for row in (row for row in rows if isinstance(row, dict)):
        for name, value in row.items():
            if isinstance(value, str) and value in _NOT_NUMBERS:
                not_numbers.add(name)
            else:
                types[name] = merge(types.get(name, NULL), infer_type(value))
    for name in not_numbers:
        is_number = types.get(name, NULL) in _NUMBERS
        types[name] = pa.float64() if is_number else merge(types.get(name, NULL), pa.string())
    return pa.struct(list(without_timestamps(types).items()))


def without_timestamps(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return fields with string in place of date and timestamp; unknown types are left out."""
    resolved = {name: resolved_type(_as_texts(kind)) for name, kind in types.items()}
    return {name: kind for name, kind in resolved.items() if kind is not None}


def _as_texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_as_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _as_texts(part.type)) for part in kind])
    return kind


def _conform_rows(
    records: list[tuple[int, dict[str, Any]]], parts: list[tuple[str, pa.DataType]], bad: Bad
) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
    """Return which records are good, and each of their parts as an array.

    Args:
        records: the records, each with its position in the input.
        parts: the name and type of each part; an empty name means the whole record.
        bad: gains the records that have a value which does not fit its type.
    """
    indices: list[int] = []
    columns: list[list[Any]] = [[] for _ in parts]
    for index, record in records:
        try:
            row = [
                _conform_value(record.get(name) if name else record, kind) for name, kind in parts
            ]
        except MisfitError as exc:  # noqa: PERF203 - each record has its own fault
            bad.append((index, exc.reason("")))
        except RecursionError:
            bad.append((index, TOO_LARGE))
        else:
            indices.append(index)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, parts, strict=True)]
    return np.array(indices, np.int64), arrays


def _conform_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value converted to its type; for a row that is not an object, null."""
    if not pa.types.is_struct(kind):
        return converter(kind)(value)
    if not isinstance(value, dict):
        return None
    row: dict[str, Any] = {}
    for part in kind:
        item = value.get(part.name)
        if part.type == pa.float64() and isinstance(item, str) and item in _NOT_NUMBERS:
            item = float(item)
        try:
            row[part.name] = converter(part.type)(item)
        except MisfitError as exc:
            raise MisfitError(exc.value, exc.kind, part.name + exc.path) from None
    return row
