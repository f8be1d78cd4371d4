"""Checksums of rows that do not depend on their order, computed the same way on both sides.

Rows are put into chunks by a hash of their key, not by ranges of it, since two systems may sort
text differently. DuckDB's hash depends on the type, so both sides are cast to the same types first.

DuckDB's `hash` alone is not enough: values that are equal under `=` (0.0 and -0.0) get the same
hash, and a nested value is hashed by combining its leaves, so that null, `[]` and `[null]`, or
`[[1],[2]]` and `[[1,2]]`, collide. `ComparisonSpec.hash` gives it an input that differs wherever
two values do. NaN is one value: neither PostgreSQL nor Iceberg distinguishes two of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb

    from icestream.verify.side import SideReader


MAX_PRECISION = 38


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if there is none."""
    one, other = plain_type(one), plain_type(other)
    if one == other:
        return one
    for kind, widest in ((pa.types.is_integer, pa.int64()), (pa.types.is_floating, pa.float64())):
        if kind(one) and kind(other):
            return widest
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale)
        fits = scale + digits <= MAX_PRECISION
        return pa.decimal128(scale + digits, scale) if fits else None
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = common_type(one.value_type, other.value_type)
        return None if element is None else pa.list_(element)
    return None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what does not affect values: offset width, time zone, extension."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def convert(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values cast to a type that `common_type` returned."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.type == kind:
        return values
    if pa.types.is_list(kind):
        # Arrow does not cast extension types inside a list.
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        elements = convert(values.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, elements, mask=values.is_null())
    return pc.cast(values, kind)


MAX_TEXT_LENGTH = 80
MODULUS = 1 << 64


@dataclass(frozen=True)
class ComparisonSpec:
    """What to compare of two tables, and how.

    Attributes:
        columns: the columns that both have, in the types to compare them in.
        key: the columns that identify a row; empty if none do: then whole rows are compared.
        chunks: the number of chunks.
        excluded_keys: keys of rows that are not compared, in the types of `columns`.
        hidden_columns: columns that mean nothing to a user.
    """

    columns: pa.Schema
    key: tuple[str, ...]
    chunks: int
    excluded_keys: pa.Table | None = None
    hidden_columns: tuple[str, ...] = ()

    @property
    def display_columns(self) -> list[str]:
        """The columns that identify a row to a user: its key, or all columns."""
        key = [name for name in self.key if name not in self.hidden_columns]
        return key or [name for name in self.columns.names if name not in self.hidden_columns]

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to compare, under names that are safe in SQL."""
        arrays = [convert(batch.column(column.name), column.type) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, [f"c{at}" for at in range(len(arrays))])

    @property
    def key_columns(self) -> list[str]:
        """The key's columns under the names of `select`."""
        return [f"c{self.columns.get_field_index(name)}" for name in self.key]

    @property
    def all_columns(self) -> list[str]:
        """All columns under the names of `select`."""
        return [f"c{at}" for at in range(len(self.columns))]

    def hash(self, names: Iterable[str]) -> str:
        """Return an expression that hashes columns of `select`."""
        types = dict(zip(self.all_columns, self.columns.types, strict=True))
        return f"hash({', '.join(_hash_input(name, types[name]) for name in names)})"


class Checksum(NamedTuple):
    """The checksum of some rows."""

    rows: int = 0
    total: int = 0
    xor: int = 0

    def plus(self, other: Checksum) -> Checksum:
        total = (self.total + other.total) % MODULUS
        return Checksum(self.rows + other.rows, total, self.xor ^ other.xor)


@dataclass(frozen=True)
class SideChecksums:
    """The checksums of one side, or of a part of it.

    Attributes:
        chunks: the checksum of each chunk that has rows.
        excluded_rows: how many rows were excluded.
        first: the smallest key, in the order of its plain values; None without rows or key.
        last: the largest key.
    """

    chunks: dict[int, Checksum] = field(default_factory=dict)
    excluded_rows: int = 0
    first: tuple[Any, ...] | None = None
    last: tuple[Any, ...] | None = None

    @property
    def rows(self) -> int:
        return sum(checksum.rows for checksum in self.chunks.values())

    def plus(self, other: SideChecksums) -> SideChecksums:
        """Return the checksums of both together."""
        chunks = dict(self.chunks)
        for number, checksum in other.chunks.items():
            chunks[number] = chunks.get(number, Checksum()).plus(checksum)
        ends = [key for key in (self.first, other.first, self.last, other.last) if key is not None]
        return SideChecksums(
            chunks,
            self.excluded_rows + other.excluded_rows,
            min(ends, default=None),
            max(ends, default=None),
        )


def differing_chunks(one: SideChecksums, other: SideChecksums) -> list[int]:
    """Return the chunks whose rows differ between the sides."""
    numbers = one.chunks.keys() | other.chunks.keys()
    return sorted(
        number
        for number in numbers
        if one.chunks.get(number, Checksum()) != other.chunks.get(number, Checksum())
    )


def compute_checksums(batches: Iterable[pa.RecordBatch], spec: ComparisonSpec) -> SideChecksums:
    """Return the checksums of rows."""
    checksums = SideChecksums()
    for rows, connection in _registered_batches(batches, spec):
        kept = (
            connection.sql(_compared_rows(spec)).to_arrow_table()
            if spec.excluded_keys is not None
            else rows
        )
        checksums = checksums.plus(_checksum_batch(kept, connection, spec))
        excluded_rows = checksums.excluded_rows + len(rows) - len(kept)
        checksums = replace(checksums, excluded_rows=excluded_rows)
    return checksums


def hash_rows(
    batches: Iterable[pa.RecordBatch], spec: ComparisonSpec, chunks: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the keys, hashes and texts of the rows in some chunks.

    The columns are `key` (as texts), `hash` (of the row), `hashes` (of its values) and `texts` (of
    its values).
    """
    numbers = ", ".join(map(str, chunks))
    key = _texts(spec.key_columns) if spec.key else f"[({spec.hash(spec.all_columns)})::VARCHAR]"
    hashes = ", ".join(_signed(spec.hash([name])) for name in spec.all_columns)
    query = (
        f"SELECT {key} AS key, {_signed(spec.hash(spec.all_columns))} AS hash, "  # noqa: S608
        f"[{hashes}] AS hashes, "
        f"{_texts(spec.all_columns, MAX_TEXT_LENGTH)} AS texts "
        f"FROM ({_compared_rows(spec)}) WHERE {_chunk(spec)} IN ({numbers})"
    )
    for _, connection in _registered_batches(batches, spec):
        yield from connection.sql(query).to_arrow_table().to_batches()


def _registered_batches(
    batches: Iterable[pa.RecordBatch], spec: ComparisonSpec
) -> Iterator[tuple[pa.RecordBatch, duckdb.DuckDBPyConnection]]:
    """Yield each batch, registered as the table `rows`."""
    import duckdb

    settings: dict[str, Any] = {"python_enable_replacements": "false", "threads": "1"}
    with duckdb.connect(config=settings) as connection:
        if spec.excluded_keys is not None:
            connection.register(
                "excluded_keys", spec.excluded_keys.rename_columns(spec.key_columns)
            )
            connection.execute("CREATE TABLE excluded AS FROM excluded_keys")
        for batch in batches:
            if batch.num_rows:
                rows = spec.select(batch)
                connection.register("rows", rows)
                yield rows, connection
                connection.unregister("rows")


def _checksum_batch(
    rows: pa.RecordBatch | pa.Table, connection: duckdb.DuckDBPyConnection, spec: ComparisonSpec
) -> SideChecksums:
    connection.register("kept", rows)
    row = spec.hash(spec.all_columns)
    key = f"row({', '.join(spec.key_columns)})" if spec.key else "NULL"
    chunks = connection.execute(
        f"SELECT chunk, count(*), sum(h::HUGEINT) % {MODULUS}, bit_xor(h), min(k), max(k) "  # noqa: S608
        f"FROM (SELECT {_chunk(spec)} AS chunk, {row} AS h, {key} AS k FROM kept) GROUP BY chunk"
    ).fetchall()
    connection.unregister("kept")
    ends = [
        _key_tuple(end) for *_, first, last in chunks for end in (first, last) if end is not None
    ]
    return SideChecksums(
        {number: Checksum(rows, int(total), xor) for number, rows, total, xor, *_ in chunks},
        first=min(ends, default=None),
        last=max(ends, default=None),
    )


def _key_tuple(key: Any) -> tuple[Any, ...]:
    return tuple(key.values()) if isinstance(key, dict) else tuple(key)


def _compared_rows(spec: ComparisonSpec) -> str:
    if spec.excluded_keys is None:
        return "SELECT * FROM rows"
    return f"SELECT * FROM rows ANTI JOIN excluded USING ({', '.join(spec.key_columns)})"  # noqa: S608


def _chunk(spec: ComparisonSpec) -> str:
    return f"({spec.hash(spec.key_columns or spec.all_columns)} % {spec.chunks})::INTEGER"


def _hash_input(name: str, kind: pa.DataType) -> str:
    """Return the expression to hash for a column, so that different values hash differently."""
    if pa.types.is_nested(kind):
        return f"to_json({name})"
    if pa.types.is_floating(kind):
        return f"{name}, {name} = 0 AND signbit({name})"
    return name


def _signed(number: str) -> str:
    """Return an expression that maps an unsigned 64-bit number to Spark's signed `long`."""
    return f"({number}::HUGEINT - {MODULUS // 2})::BIGINT"


def _texts(names: list[str], letters: int | None = None) -> str:
    """Return an expression that lists values as texts, truncated to `letters`."""
    if letters is None:
        return f"[{', '.join(f'{name}::VARCHAR' for name in names)}]"
    cut = (
        f"CASE WHEN length({name}::VARCHAR) > {letters} "
        f"THEN left({name}::VARCHAR, {letters}) || '...' ELSE {name}::VARCHAR END"
        for name in names
    )
    return f"[{', '.join(cut)}]"


@dataclass(frozen=True)
class ChecksumTask:
    """Computes the checksums of parts, in tasks.

    Attributes:
        readers: the readers of both sides.
        spec: what to compare.
    """

    readers: tuple[SideReader, SideReader]
    spec: ComparisonSpec

    def __call__(self, piece: tuple[int, Any]) -> tuple[int, SideChecksums]:
        side, part = piece
        return side, compute_checksums(self.readers[side].read(part), self.spec)


@dataclass(frozen=True)
class HashRowsTask:
    """Yields the hashes of rows in some chunks, in tasks that get the numbers of pieces."""

    readers: tuple[SideReader, SideReader]
    spec: ComparisonSpec
    pieces: tuple[tuple[int, Any], ...]
    chunks: tuple[int, ...]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                side, part = self.pieces[number]
                for rows in hash_rows(self.readers[side].read(part), self.spec, self.chunks):
                    sides = pa.array([side] * len(rows), pa.int32())
                    arrays = [sides, *rows.columns]
                    yield pa.RecordBatch.from_arrays(arrays, ["side", *rows.schema.names])
