"""Writes Arrow batches to Iceberg data files, in a task."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping, schema_to_pyarrow
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.types import ListType, MapType, StructType, UUIDType

from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.errors import SchemaMismatchError
from icestream.sinks.iceberg.column_metrics import FLOATS, column_metrics
from icestream.sinks.iceberg.partitioning import (
    apply_transform,
    field_path,
    partition_json,
    partition_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO, OutputStream
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.types import IcebergType

    from icestream.sinks.iceberg.partition_terms import SortTerm


Item = TypeVar("Item")
Result = TypeVar("Result")

# Concurrent requests to a store.
CONCURRENT_REQUESTS = 8


def as_arrow_file(stream: Any) -> pa.NativeFile:
    """Return an open PyIceberg file as an Arrow file.

    An Arrow file must not be wrapped again: Arrow would then seek to its end to find its size,
    which Google's store rejects as an invalid range.
    """
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def map_concurrently(items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Call `work` for each item in a few threads, since stores answer slowly.

    Returns:
        The results in the order of the items. If one fails, the others still run.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(CONCURRENT_REQUESTS, len(items)), "icestream-store") as pool:
        # Not `pool.map`, which cancels pending calls when one fails.
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]


def sort_rows(rows: pa.Table, order: Sequence[SortTerm]) -> pa.Table:
    """Return the rows sorted; each term says where its nulls go."""
    keys: dict[str, Any] = {}
    directions = []
    for number, term in enumerate(order):
        column = _column(rows, term.column)
        keys[f"null{number}"] = pc.is_null(column)
        directions.append((f"null{number}", "descending" if term.nulls_first else "ascending"))
        keys[f"value{number}"] = column
        directions.append((f"value{number}", "descending" if term.descending else "ascending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=directions))


def _column(rows: pa.Table, name: str) -> Any:
    if name in rows.column_names:
        return rows[name]
    top, *rest = name.split(".")
    return pc.struct_field(rows[top], rest)


def file_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a data file, with Iceberg's field ids at every level."""
    large = schema_to_pyarrow(schema, include_field_ids=True)
    return pa.schema([_with_32_bit_offsets(column) for column in large])


def _with_32_bit_offsets(field: pa.Field) -> pa.Field:
    """Use 32-bit offsets: 64-bit ones would cost a copy of every incoming string."""
    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_with_32_bit_offsets(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_32_bit_offsets(kind.key_field), _with_32_bit_offsets(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct(
            [_with_32_bit_offsets(kind.field(index)) for index in range(kind.num_fields)]
        )
    return field.with_type(kind)


def types_by_id(schema: Schema) -> dict[int, pa.DataType]:
    """Return the types of a table's columns in its data files, by field id."""
    columns = zip(schema.fields, file_columns(schema), strict=True)
    return {field.field_id: column.type for field, column in columns}


def cast_array(array: pa.Array, into: pa.DataType) -> pa.Array:
    """Cast values to a primitive type; nanoseconds are truncated if it has none."""
    if array.type == into:
        return array
    return array.cast(into, safe=not pa.types.is_timestamp(into))


def conform(batch: pa.RecordBatch, schema: Schema, target: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the columns of `target`.

    Args:
        batch: the rows, with the table's own names.
        schema: the table's schema.
        target: the same columns as in the files; their names may differ, since not every name
            is valid in a file.

    Raises:
        SchemaMismatchError: a column that the table requires has no value in some row.
    """
    columns = []
    for column, into in zip(schema.fields, target, strict=True):
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            values = pa.nulls(batch.num_rows, into.type)
        else:
            values = _conform_array(batch.column(index), column.field_type, into.type)
        if column.required and values.null_count:
            raise SchemaMismatchError(
                f"column {column.name!r} is required by the table, and a row has no value for it",
                todo="Leave such rows out with a `filter` transform, or make the column optional.",
            )
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _conform_array(array: pa.Array, kind: IcebergType, into: pa.DataType) -> pa.Array:
    if array.type == into:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), into)
    if isinstance(kind, StructType):
        return _conform_struct(array, kind, into)
    if isinstance(kind, ListType):
        array = _rebase_offsets(array)
        values = _conform_array(array.values, kind.element_type, into.value_type)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=into, mask=array.is_null())
    if isinstance(kind, MapType):
        array = _rebase_offsets(array)
        keys = _conform_array(array.keys, kind.key_type, into.key_type)
        items = _conform_array(array.items, kind.value_type, into.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=into, mask=array.is_null())
    return cast_array(array, into)


def _conform_struct(array: pa.Array, kind: StructType, into: pa.DataType) -> pa.Array:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    members = dict(zip(names, array.flatten(), strict=True))
    fields = [into.field(index) for index in range(into.num_fields)]
    arrays = [
        _conform_array(members[member.name], member.field_type, field.type)
        if member.name in members
        else pa.nulls(len(array), field.type)
        for member, field in zip(kind.fields, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())


def _rebase_offsets(array: pa.Array) -> pa.Array:
    """Return the array with offsets that start at its own values, unlike those of a slice."""
    return array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array


logger = logging.getLogger(__name__)

ROW_GROUP_BYTES = 64 << 20
# With many open partitions, the buffers and not the files fill the memory.
BUFFERED_BYTES = 256 << 20
OPEN_FILES = 64
# File systems allow names of up to 255 bytes, and object stores keys of up to 1,024.
MAX_NAME_BYTES, MAX_PATH_BYTES = 200, 500

PartitionValues = tuple[Any, ...]


@dataclass(frozen=True)
class WriteSettings:
    """Codec and size of data files."""

    codec: str
    level: int | None
    target_bytes: int


@dataclass
class _OpenFile:
    path: str
    stream: OutputStream
    parquet: pq.ParquetWriter
    partition: dict[str, Any]
    nan_counts: dict[int, int]
    rows: int = 0


@dataclass
class _Buffer:
    """Rows of one partition that wait to become a row group."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class IcebergWriter(TaskWriter):
    """Writes rows into Parquet files with Iceberg's field ids, one set of files per partition.

    It is pickled into each task, so the schema and the spec travel as JSON.

    Args:
        schema: the table's schema as JSON.
        spec: the table's partition spec as JSON.
        location: the table's location.
        properties: the table's properties.
        io_properties: how PyIceberg reaches the store, secrets included.
        sort_order_id: sort order of the incoming rows; 0 for none.
        settings: codec and sizes.
    """

    def __init__(
        self,
        *,
        schema: str,
        spec: str,
        location: str,
        properties: Mapping[str, str],
        io_properties: Mapping[str, str],
        sort_order_id: int,
        settings: WriteSettings,
    ) -> None:
        self._schema_json = schema
        self._spec_json = spec
        self._location = location
        self._properties = dict(properties)
        self._io_properties = dict(io_properties)
        self._sort_order_id = sort_order_id
        self._settings = settings
        self._reset()

    def _reset(self) -> None:
        self._buffers: dict[PartitionValues, _Buffer] = {}
        self._buffered_bytes = 0
        self._open_files: dict[PartitionValues, _OpenFile] = {}
        self._paths: list[str] = []
        self._closed: list[WrittenFile] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        self._reset()
        try:
            for batch in batches:
                if batch.num_rows:
                    rows = conform(batch, self._schema, self._arrow_schema)
                    for key, part in self._by_partition(rows):
                        self._add(key, part)
            for key in list(self._buffers):
                self._flush(key)
                if key in self._open_files:
                    self._close(key)
        except BaseException:
            self._discard()
            raise
        return self._closed

    @cached_property
    def _schema(self) -> Schema:
        return Schema.model_validate_json(self._schema_json)

    @cached_property
    def _spec(self) -> PartitionSpec:
        return PartitionSpec.model_validate_json(self._spec_json)

    @cached_property
    def _file_schema(self) -> Schema:
        return sanitize_column_names(self._schema)

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        return file_columns(self._file_schema)

    @cached_property
    def _ordered_columns(self) -> bool | list[str]:
        """Paths of the columns whose order every reader agrees on; True for all columns.

        Iceberg's Java readers skip row groups by statistics and by dictionaries. They order UUIDs
        as signed numbers, not as bytes, and would skip rows that match.
        """
        paths = parquet_path_to_id_mapping(self._file_schema)
        kinds = {path: self._schema.find_type(field_id) for path, field_id in paths.items()}
        ordered = [path for path, kind in kinds.items() if not isinstance(kind, UUIDType)]
        return True if len(ordered) == len(paths) else ordered

    @cached_property
    def _float_columns(self) -> dict[int, int]:
        """Positions of the top-level columns that can hold NaN, by field id."""
        return {
            column.field_id: position
            for position, column in enumerate(self._schema.fields)
            if isinstance(column.field_type, FLOATS)
        }

    @cached_property
    def _io(self) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self._io_properties), self._location)

    @cached_property
    def _locations(self) -> LocationProvider:
        from pyiceberg.table.locations import load_location_provider

        return load_location_provider(self._location, dict(self._properties))

    def _by_partition(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
        if not self._spec.fields:
            yield (), batch
            return
        keys = pa.table(
            [
                apply_transform(
                    self._source_column(batch, item.source_id),
                    self._schema.find_type(item.source_id),
                    item.transform,
                )
                for item in self._spec.fields
            ],
            names=[str(item.field_id) for item in self._spec.fields],
        )
        rows = keys.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
        # One thread: several would change the order of a partition's rows.
        grouped = rows.group_by(keys.column_names, use_threads=False)
        for group in grouped.aggregate([("row", "list")]).to_batches():
            columns = group.columns[: len(keys.column_names)]
            values = [partition_values(column) for column in columns]
            for index, members in enumerate(group.column("row_list")):
                yield tuple(column[index] for column in values), batch.take(members.values)

    def _source_column(self, batch: pa.RecordBatch, source_id: int) -> pa.Array:
        top, *rest = field_path(self._schema.as_struct(), source_id)
        column = batch.column(top)
        return pc.struct_field(column, rest) if rest else column

    def _add(self, key: PartitionValues, batch: pa.RecordBatch) -> None:
        buffer = self._buffers.setdefault(key, _Buffer())
        buffer.batches.append(batch)
        buffer.bytes += batch.nbytes
        self._buffered_bytes += batch.nbytes
        if buffer.bytes >= min(ROW_GROUP_BYTES, self._settings.target_bytes):
            self._flush(key)
        elif self._buffered_bytes > BUFFERED_BYTES:
            self._flush(max(self._buffers, key=lambda k: self._buffers[k].bytes))

    def _flush(self, key: PartitionValues) -> None:
        """Write the buffered rows as one row group, and close the file if it is large enough."""
        buffer = self._buffers[key]
        if not buffer.batches:
            return
        file = self._open_files.get(key) or self._open(key)
        table = pa.Table.from_batches(buffer.batches)
        file.parquet.write_table(table, row_group_size=table.num_rows)
        file.rows += table.num_rows
        for field_id, position in self._float_columns.items():
            nan_count = pc.sum(pc.is_nan(table.column(position))).as_py()
            file.nan_counts[field_id] += nan_count or 0
        self._buffered_bytes -= buffer.bytes
        self._buffers[key] = _Buffer()
        if file.stream.tell() >= self._settings.target_bytes:
            self._close(key)

    def _open(self, key: PartitionValues) -> _OpenFile:
        if len(self._open_files) >= OPEN_FILES:
            self._close(next(iter(self._open_files)))
        partition, described = None, {}
        if self._spec.fields:
            values = [
                PartitionFieldValue(field=item, value=value)
                for item, value in zip(self._spec.fields, key, strict=True)
            ]
            partition = PartitionKey(values, self._spec, self._schema)
            described = partition_json(self._spec, self._schema, key)
        path = self._new_path(partition)
        stream = self._io.new_output(path).create()
        self._paths.append(path)
        parquet = pq.ParquetWriter(
            stream,
            self._arrow_schema,
            compression=self._settings.codec,
            compression_level=self._settings.level,
            store_decimal_as_integer=True,
            write_statistics=self._ordered_columns,
            use_dictionary=self._ordered_columns,
        )
        nan_counts = dict.fromkeys(self._float_columns, 0)
        self._open_files[key] = _OpenFile(path, stream, parquet, described, nan_counts)
        return self._open_files[key]

    def _new_path(self, partition: PartitionKey | None) -> str:
        """Return a path that names the partition if it can; readers don't need it."""
        name = f"{uuid.uuid4()}.parquet"
        try:
            path = "" if partition is None else partition.to_path()
        except (OverflowError, TypeError, ValueError):
            partition = None  # a timestamp that PyIceberg cannot format
        else:
            lengths = map(len, path.split("/"))
            if max(lengths) > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES:
                partition = None
        return self._locations.new_data_location(name, partition)

    def _close(self, key: PartitionValues) -> None:
        file = self._open_files[key]
        file.parquet.close()
        size = file.stream.tell()
        file.stream.close()
        del self._open_files[key]
        self._closed.append(WrittenFile(file.rows, size, self._describe(file, size)))

    def _describe(self, file: _OpenFile, size: int) -> dict[str, Any]:
        """Return the file in the JSON form of Iceberg's REST specification."""
        described = {
            "spec-id": self._spec.spec_id,
            "content": "data",
            "file-path": file.path,
            "file-format": "parquet",
            "partition": file.partition,
            "file-size-in-bytes": size,
            "record-count": file.rows,
            **column_metrics(
                file.parquet.writer.metadata, self._schema, self._properties, file.nan_counts
            ),
        }
        if self._sort_order_id:
            described["sort-order-id"] = self._sort_order_id
        return described

    def _discard(self) -> None:
        """Remove what this attempt wrote: it will never be committed."""
        for file in self._open_files.values():
            # Otherwise garbage collection would write the footer to a closed stream.
            file.parquet.is_open = False
            with suppress(OSError):
                file.stream.close()
        for path in self._paths:
            try:
                self._io.delete(path)
            except OSError as exc:  # noqa: PERF203 - one file each
                logger.warning("could not delete %s: %s", path, exc)
