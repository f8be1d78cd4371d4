"""Avro records: plain, or in Confluent's wire format, which begins with a schema id."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Decoded, Decoder, Format
from icestream.errors import IcestreamError, PlanError
from icestream.formats.avro_types import AvroFields, reader_arguments
from icestream.formats.blocks import NO_VALUE, BadValueError, empty_rows, required_value_error
from icestream.formats.exact_numbers import cast_exactly
from icestream.formats.inference import join_columns, merge_fields, unknown_fields, wider_columns
from icestream.formats.values import MisfitError, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icestream.contracts.decoder import FormatSettings
    from icestream.formats.schema_registry import Registry


_HEADER = struct.Struct(">bI")
HEADER_SIZE = _HEADER.size
# What fastavro, which validates nothing, raises for bytes that do not match the schema.
_READ_FAULTS = (
    EOFError, ValueError, IndexError, KeyError, TypeError, StopIteration,
    OverflowError, struct.error, MemoryError, AttributeError,
)  # fmt: skip
_CAST_FAULTS = (pa.ArrowException, ValueError, TypeError, ArithmeticError)


@cache
def schema_faults() -> tuple[type[Exception], ...]:
    """Return what a faulty schema can raise: a registry validates little, and only Avro."""
    from fastavro.schema import SchemaParseException

    return (
        IcestreamError, SchemaParseException, pa.ArrowException, ValueError, KeyError, IndexError,
        TypeError, AttributeError, OverflowError, RecursionError,
    )  # fmt: skip


@cache
def _compiled_reader() -> Callable[..., Any]:
    import fastavro

    reader: Callable[..., Any] = fastavro.schemaless_reader
    return reader


class _WriterSchema:
    """A schema that records were written with, parsed.

    Raises:
        BadValueError: it is not an Avro record schema, or has a type that no column can have.
    """

    def __init__(self, schema: Any, named: dict[str, Any]) -> None:
        import fastavro
        from fastavro import _read_py as plain_reader

        named_schemas: dict[str, Any] = {}
        try:
            fields = AvroFields(schema, named)
            for reference in named.values():
                fastavro.parse_schema(reference, named_schemas=named_schemas)
            self.parsed = fastavro.parse_schema(schema, named_schemas=named_schemas)
        except schema_faults() as exc:
            raise BadValueError(f"its schema can't be used: {_first_line(exc)}") from exc
        self.columns, self.adapt = fields.columns, fields.adapt
        # A deeply nested value would crash the process in the compiled reader.
        self.read = plain_reader.schemaless_reader if fields.is_recursive else _compiled_reader()


def schema_id_of(value: bytes) -> int:
    """Return the id of the schema that a record was written with.

    Raises:
        BadValueError: the record does not start with a schema id.
    """
    if len(value) < HEADER_SIZE or value[0] != 0:
        raise BadValueError("not in the registry's wire format: no schema id at the start")
    return int(_HEADER.unpack_from(value)[1])


def read_record(
    value: bytes,
    parsed: Any,
    *,
    offset: int = HEADER_SIZE,
    adapt: Mapping[str, Callable[[Any], Any]] | None = None,
    read: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Read one record.

    Args:
        value: the bytes that hold it.
        parsed: the schema that it was written with, parsed by fastavro.
        offset: where in `value` it starts.
        adapt: by field, converts fastavro's value to one that Arrow takes.
        read: fastavro's pure Python reader, if not its compiled one.

    Raises:
        BadValueError: the bytes do not match the schema.
    """
    stream = io.BytesIO(value)
    stream.seek(offset)
    try:
        record: Any = (read or _compiled_reader())(stream, parsed, None, **reader_arguments())
        for name, adapt_value in (adapt or {}).items():
            record[name] = adapt_value(record[name])
    except RecursionError:
        raise BadValueError(
            "does not match the Avro schema: nested thousands of levels deep"
        ) from None
    except _READ_FAULTS as exc:
        raise BadValueError(f"does not match the Avro schema: {_first_line(exc)}") from None
    left = len(value) - stream.tell()
    if left:
        raise BadValueError(f"does not match the Avro schema: {left} bytes left over")
    return record  # type: ignore[no-any-return]


class AvroDecoder(Decoder):
    """Decodes Avro records.

    Args:
        schema: the schema of every record, as parsed JSON; not needed with a registry.
        registry: resolves the schema id that each record starts with.
        subjects: subjects of the registry whose latest schemas define the columns.
    """

    def __init__(
        self,
        schema: Any = None,
        registry: Registry | None = None,
        subjects: tuple[str, ...] = (),
    ) -> None:
        self.schema, self.registry, self.subjects = schema, registry, subjects
        # By schema id; a string says why the schema can't be used.
        self._writers: dict[int, _WriterSchema | str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writers": {}}

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        """Return the columns of the given schema, of the subjects, or of the sample's schemas."""
        if self.registry is None:
            return self._writer(0).columns
        types: dict[str, pa.DataType] = {}
        for subject in self.subjects:
            latest = self.registry.latest(subject)
            if latest is not None:
                types = merge_fields(types, _types(_WriterSchema(*latest).columns))
        if not types:
            for value in sample:
                try:
                    writer, _ = self._split(value or b"")
                    types = merge_fields(types, _types(writer.columns))
                except BadValueError:  # noqa: PERF203 - decode reports it
                    continue
        return pa.schema(list(types.items()))

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return a record, written with the given schema."""
        from icestream.formats.json import JsonDecoder

        if self.registry is not None:
            raise PlanError(
                "records of a schema registry can't be given in a test",
                todo="Test the pipeline with `schema: FILE.avsc` in place of `schema_registry`.",
            )
        writer = self._writer(0)
        values = pa.array([json.dumps(record).encode()], pa.binary())
        outcome = JsonDecoder().decode(values, writer.columns)
        if outcome.bad or outcome.new_fields:
            reasons = [reason for _, reason in outcome.bad]
            reasons += [f"the schema has no field {name!r}" for name in outcome.new_fields]
            raise PlanError(reasons[0])
        import fastavro

        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, writer.parsed, outcome.rows.to_pylist()[0])
        return stream.getvalue()

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Decode each value with the schema it was written with."""
        by_writer: dict[_WriterSchema, list[tuple[int, dict[str, Any]]]] = {}
        bad: list[tuple[int, str]] = []
        for index, value in enumerate(values.to_pylist()):
            if value is None:
                bad.append((index, NO_VALUE))
                continue
            try:
                writer, record = self._read(value)
            except BadValueError as exc:
                bad.append((index, str(exc)))
            else:
                by_writer.setdefault(writer, []).append((index, record))
        pieces: list[pa.RecordBatch] = []
        kept: list[int] = []
        new_fields: dict[str, pa.DataType] = {}
        wider: dict[str, pa.Field] = {}
        for writer, records in by_writer.items():
            rows, indices, misfits = _conform_records(records, writer.columns, columns)
            pieces.append(rows)
            kept += indices
            bad += misfits
            if misfits:
                wider = join_columns(wider, _optional_columns(records, columns))
            types = _types(writer.columns)
            new_fields = merge_fields(new_fields, unknown_fields(columns, types))
            wider = join_columns(wider, wider_columns(columns, types))
        whole = pa.concat_batches(pieces) if pieces else empty_rows(columns)
        if len(pieces) > 1:
            order = np.argsort(kept)
            whole, kept = whole.take(pa.array(order)), sorted(kept)
        kept_rows = pa.array(kept, pa.int64()) if bad else None
        return Decoded(whole, kept_rows, tuple(sorted(bad)), new_fields, wider)

    def absent_fields(
        self, values: pa.Array, rows: pa.RecordBatch
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Flag, by column, the records whose schema has no field for it."""
        writers = [self._split(value)[0] for value in values.to_pylist()]
        names = {writer: set(writer.columns.names) for writer in set(writers)}
        return {
            name: np.array([name not in names[writer] for writer in writers], np.bool_)
            for name in rows.schema.names
        }

    def _read(self, value: bytes) -> tuple[_WriterSchema, dict[str, Any]]:
        writer, offset = self._split(value)
        return writer, read_record(
            value, writer.parsed, offset=offset, adapt=writer.adapt, read=writer.read
        )

    def _split(self, value: bytes) -> tuple[_WriterSchema, int]:
        if self.registry is None:
            return self._writer(0), 0
        return self._writer(schema_id_of(value)), HEADER_SIZE

    def _writer(self, schema_id: int) -> _WriterSchema:
        writer = self._writers.get(schema_id)
        if writer is None:
            schema = (self.schema, {}) if self.registry is None else self.registry.by_id(schema_id)
            try:
                writer = _WriterSchema(*schema)
            except BadValueError as exc:
                writer = str(exc)
            self._writers[schema_id] = writer
        if isinstance(writer, str):
            raise BadValueError(writer)
        return writer


def _types(columns: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in columns}


def _first_line(exc: BaseException) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:80]


def _conform_records(
    records: list[tuple[int, dict[str, Any]]], own: pa.Schema, columns: pa.Schema
) -> tuple[pa.RecordBatch, list[int], list[tuple[int, str]]]:
    """Return records of one schema as columns, the indices of the good ones, and the bad ones.

    Args:
        records: the records, each with its index.
        own: the columns of their schema.
        columns: the columns to return.
    """
    try:
        arrays = [_column_array([record for _, record in records], own, field) for field in columns]
        rows = pa.RecordBatch.from_arrays(arrays, schema=columns)
        return rows, [index for index, _ in records], []
    except BadValueError as exc:
        if len(records) == 1:
            return empty_rows(columns), [], [(records[0][0], str(exc))]
    halves = (records[: len(records) // 2], records[len(records) // 2 :])
    results = [_conform_records(half, own, columns) for half in halves]
    return (
        pa.concat_batches([rows for rows, _, _ in results]),
        [index for _, kept, _ in results for index in kept],
        [fault for _, _, bad in results for fault in bad],
    )


def _column_array(records: list[dict[str, Any]], own: pa.Schema, field: pa.Field) -> pa.Array:
    """Return the values of one column. Raises `BadValueError` if one does not fit."""
    values = [record.get(field.name) for record in records]
    index = own.get_field_index(field.name)
    kind = pa.null() if index < 0 else own.field(index).type
    try:
        # In their own type first: Arrow would turn the double 1.5 into 1 for an integer column.
        array = cast_exactly(pa.array(values, kind), field.type)
    except _CAST_FAULTS:
        value = values[0]
        scalar = value if isinstance(value, (int, float, str, Decimal)) else str(value)
        raise BadValueError(MisfitError(scalar, type_name(field.type)).reason(field.name)) from None
    if array.null_count and not field.nullable:
        raise required_value_error(field.name)
    return array


def _optional_columns(
    records: list[tuple[int, dict[str, Any]]], columns: pa.Schema
) -> dict[str, pa.Field]:
    """Return the required columns that some record has no value for, made optional."""
    return {
        field.name: field.with_nullable(True)
        for field in columns
        if not field.nullable and any(record.get(field.name) is None for _, record in records)
    }


class AvroFormat(Format):
    """Avro records, with a schema or a schema registry."""

    name = "avro"
    required_packages = {"fastavro": "icestream[avro]"}

    def decoder(self, settings: FormatSettings) -> Decoder:
        from icestream.formats.schema_registry import registry_of

        registry = registry_of(settings)
        if registry is not None:
            return AvroDecoder(None, registry, settings.subjects)
        if settings.schema is None or settings.schema.avro is None:
            raise PlanError(
                "format 'avro' needs an Avro schema or a schema registry, and neither is given",
                todo="Add e.g. `schema: orders.avsc`, or `schema_registry: {url: ...}`.",
            )
        return AvroDecoder(settings.schema.avro)

    def missing_option(self, *, schema: bool, registry: bool) -> str | None:
        return None if schema or registry else "`schema` or `schema_registry`"
