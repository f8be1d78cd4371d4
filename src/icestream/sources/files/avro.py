"""Reads Avro container files."""

from __future__ import annotations

import json
import struct
import zlib
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from icestream.errors import DependencyError
from icestream.sources.files.columns import fit, refuse_new_columns, storable_columns
from icestream.sources.files.opened import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.decode.avro_types import AvroFields

ROWS_A_BLOCK = 20_000
# What fastavro raises for a broken file: it checks little itself.
_FAULTS = (
    EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, zlib.error,
)  # fmt: skip


def avro_schema(file: IO[bytes], name: str) -> pa.Schema:
    """Return the columns of a file."""
    return storable_columns(_fields(_reader(file, name)).columns)


def read_avro(
    file: IO[bytes], name: str, schema: pa.Schema, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `schema`.

    Args:
        file: the file, opened.
        name: what the file is called in an error.
        schema: the columns to give; one that the file lacks is null.
        strict: whether a column that `schema` lacks is an error.
    """
    reader = _reader(file, name)
    fields = _fields(reader)
    if strict:
        refuse_new_columns(fields.columns.names, schema, name)
    while records := _next_records(reader, name):
        yield fit(_batch(records, fields), schema, name)


def _reader(file: IO[bytes], name: str) -> Any:
    try:
        import fastavro
    except ModuleNotFoundError as exc:
        raise DependencyError(
            "source 'files' needs the package fastavro for Avro, which is not installed",
            todo="pip install 'icestream[avro]'",
        ) from exc
    try:
        return fastavro.reader(file)
    except _FAULTS as exc:
        raise unreadable(name, "avro", exc) from exc


def _fields(reader: Any) -> AvroFields:
    from icestream.decode.avro_types import AvroFields

    return AvroFields(json.loads(reader.metadata["avro.schema"]))


def _next_records(reader: Any, name: str) -> list[dict[str, Any]]:
    try:
        return list(islice(reader, ROWS_A_BLOCK))
    except _FAULTS as exc:
        raise unreadable(name, "avro", exc) from exc


def _batch(records: list[dict[str, Any]], fields: AvroFields) -> pa.RecordBatch:
    arrays = []
    for field in fields.columns:
        values = [record[field.name] for record in records]
        if (adapt := fields.adapt.get(field.name)) is not None:
            values = [adapt(value) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=fields.columns)
