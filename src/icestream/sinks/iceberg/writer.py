"""Writes Arrow batches to Iceberg data files, in a task."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.transforms import (
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    DateType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.sinks.iceberg.column_metrics import FLOATS, column_metrics
from icestream.sinks.iceberg.conform import conform, file_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO, OutputStream
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType, StructType

    from icestream.sinks.iceberg.partition_terms import SortTerm


Item = TypeVar("Item")
Result = TypeVar("Result")

# Requests to a store that wait for their answers together.
CONCURRENT_REQUESTS = 8


def as_arrow_file(stream: Any) -> pa.NativeFile:
    """Return an open file of PyIceberg's as one of Arrow's.

    One that is Arrow's already must not be wrapped: Arrow then looks for its end by moving there,
    which Google's store takes for a wrong range.
    """
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def map_concurrently(items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Call `work` for each item in a few threads, for stores that answer slowly.

    Returns:
        The results in the order of the items. If one fails, the others are done all the same.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(CONCURRENT_REQUESTS, len(items)), "icestream-store") as pool:
        # Not `pool.map`, which cancels what has not begun when one fails.
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]


def sort_rows(rows: pa.Table, order: Sequence[SortTerm]) -> pa.Table:
    """Return the rows sorted; each term says by itself where its nulls go."""
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


def apply_transform(
    column: pa.Array, kind: IcebergType, transform: Transform[Any, Any]
) -> pa.Array:
    """Return the partition value of each value of a column."""
    is_nano = isinstance(kind, TimestampNanoType | TimestamptzNanoType)
    if is_nano and not isinstance(transform, IdentityTransform | VoidTransform):
        # PyIceberg has no hours of nanoseconds, and rounds those before 1970 up for a bucket.
        # Arrow's `floor_temporal` overflows for the earliest nanoseconds.
        nanos = column.cast(pa.int64()).fill_null(0).to_numpy()
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        micros = pa.array(nanos // 1_000, mask=is_null)
        column, kind = micros.cast(pa.timestamp("us")), TimestampType()
    result: pa.Array = transform.pyarrow_transform(kind)(column)
    return result


def partition_values(column: pa.Array) -> list[Any]:
    """Return partition values, dates and timestamps as numbers: Python lacks some of them."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def partition_json(spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values of a partition by field id, in the single-value form of the spec."""
    described: dict[str, Any] = {}
    for item, value in zip(spec.fields, values, strict=True):
        if value is None:
            continue
        if isinstance(item.transform, DayTransform):
            # Java's partition type of a day is a date, Arrow's transform gives a number.
            described[str(item.field_id)] = _iso(value, "D")
        elif isinstance(item.transform, IdentityTransform | TruncateTransform):
            source = schema.find_type(item.source_id)
            described[str(item.field_id)] = _to_json(source, value)
        else:
            described[str(item.field_id)] = value
    return described


def _to_json(kind: IcebergType, value: Any) -> Any:
    if isinstance(kind, DateType):
        return _iso(value, "D")
    if isinstance(kind, TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType):
        is_nano = isinstance(kind, TimestampNanoType | TimestamptzNanoType)
        has_zone = isinstance(kind, TimestamptzType | TimestamptzNanoType)
        return _iso(value, "ns" if is_nano else "us") + ("+00:00" if has_zone else "")
    return to_json(kind, value)  # type: ignore[arg-type]


def _iso(value: int, unit: Literal["D", "us", "ns"]) -> str:
    """Return a date or a timestamp as ISO 8601 has it, also outside of the years 1 to 9999."""
    text = str(np.datetime64(value, unit)).removesuffix(".000000")
    year, month, rest = text.rsplit("-", 2)
    # Java wants four digits at least, and a sign before more of them.
    sign = "-" if int(year) < 0 else "+" if int(year) > 9999 else ""
    return f"{sign}{abs(int(year)):04}-{month}-{rest}"


def field_path(struct: StructType, field_id: int) -> list[int]:
    """Return the way to a field through nested structs, as the index at each level."""
    from pyiceberg.types import StructType

    for index, column in enumerate(struct.fields):
        if column.field_id == field_id:
            return [index]
        if isinstance(column.field_type, StructType):
            rest = field_path(column.field_type, field_id)
            if rest:
                return [index, *rest]
    return []


logger = logging.getLogger(__name__)

ROW_GROUP_BYTES = 64 << 20
# With many partitions open at once the buffers, not the files, are what fills memory.
BUFFERED_BYTES = 256 << 20
OPEN_FILES = 64
# File systems take names of up to 255 bytes, and object stores keys of up to 1,024.
MOST_NAME_BYTES, MOST_PATH_BYTES = 200, 500

PartitionValues = tuple[Any, ...]


@dataclass(frozen=True)
class WriteSettings:
    """How files look."""

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
    """Writes rows into Parquet files with Iceberg's field ids, one set of files a partition.

    It is pickled into each task, so the schema and the spec travel as JSON.

    Args:
        schema: the table's schema as JSON.
        spec: the table's partition spec as JSON.
        location: the table's location.
        properties: the table's properties.
        io_properties: how PyIceberg reaches the store, secrets included.
        sort_order_id: order that the rows come in, 0 if none.
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
        kept = [path for path, kind in kinds.items() if not isinstance(kind, UUIDType)]
        return True if len(kept) == len(paths) else kept

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
        # One thread: several would mix up the order of a partition's rows.
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
        """Write the rows that wait as one row group, and end the file if it is long enough."""
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
        partition = None
        if self._spec.fields:
            values = [
                PartitionFieldValue(field=item, value=value)
                for item, value in zip(self._spec.fields, key, strict=True)
            ]
            partition = PartitionKey(values, self._spec, self._schema)
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
        described = partition_json(self._spec, self._schema, key)
        nan_counts = dict.fromkeys(self._float_columns, 0)
        self._open_files[key] = _OpenFile(path, stream, parquet, described, nan_counts)
        return self._open_files[key]

    def _new_path(self, partition: PartitionKey | None) -> str:
        """Return a path with the partition in it, if that is a valid one: readers don't need it."""
        name = f"{uuid.uuid4()}.parquet"
        try:
            path = "" if partition is None else partition.to_path()
        except (OverflowError, TypeError, ValueError):
            partition = None  # a time that PyIceberg cannot show
        else:
            lengths = map(len, path.split("/"))
            if max(lengths) > MOST_NAME_BYTES or len(path) > MOST_PATH_BYTES:
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
        """Remove what this attempt wrote: nobody will ever commit it."""
        for file in self._open_files.values():
            # Or its footer would be written when it is garbage, to a stream that is closed.
            file.parquet.is_open = False
            with suppress(OSError):
                file.stream.close()
        for path in self._paths:
            try:
                self._io.delete(path)
            except OSError as exc:  # noqa: PERF203 - each file by itself
                logger.warning("could not delete %s: %s", path, exc)
