"""Checksums of rows that do not depend on their order, worked out alike on both sides.

Rows are put into chunks by a hash of their key, not by ranges of it: two systems sort texts in two
ways. DuckDB hashes a value by its type, so both sides are brought to the same types first.

DuckDB's `hash` alone is not enough: it hashes equal what `=` calls equal (0.0 and -0.0), and it
hashes a nested value by combining its leaves, so that null, `[]` and `[null]`, or `[[1],[2]]` and
`[[1,2]]`, collide. `Terms.hash` gives it something that differs wherever two values do. NaN is one
value: neither PostgreSQL nor Iceberg can tell two of them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb

    from icestream.verify.side import Reader


WIDEST_DECIMAL = 38


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both, None if there is no such type."""
    one, other = plain_type(one), plain_type(other)
    if one == other:
        return one
    for kind, widest in ((pa.types.is_integer, pa.int64()), (pa.types.is_floating, pa.float64())):
        if kind(one) and kind(other):
            return widest
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale)
        fits = scale + digits <= WIDEST_DECIMAL
        return pa.decimal128(scale + digits, scale) if fits else None
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = common_type(one.value_type, other.value_type)
        return None if element is None else pa.list_(element)
    return None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what does not matter to a value: offsets' width, zone, extension."""
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


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in a type that `common_type` gave."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.type == kind:
        return values
    if pa.types.is_list(kind):
        # Arrow casts no extension type inside a list.
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        elements = converted(values.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, elements, mask=values.is_null())
    return pc.cast(values, kind)


SHOWN_LETTERS = 80
CIRCLE = 1 << 64


@dataclass(frozen=True)
class Terms:
    """What of two tables is compared, and how.

    Attributes:
        columns: the columns that both have, in the type in which they are compared.
        key: those of them that tell rows apart; none if nothing does: then whole rows count.
        chunks: how many chunks there are.
        left_out: keys of rows that are not compared, with the types of `columns`.
        silent: columns that say nothing to a person.
    """

    columns: pa.Schema
    key: tuple[str, ...]
    chunks: int
    left_out: pa.Table | None = None
    silent: tuple[str, ...] = ()

    @property
    def shown(self) -> list[str]:
        """The columns that name a row to a person: its key, or all that it has."""
        spoken = [name for name in self.key if name not in self.silent]
        return spoken or [name for name in self.columns.names if name not in self.silent]

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to compare, under names that mean nothing to SQL."""
        arrays = [converted(batch.column(column.name), column.type) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, [f"c{at}" for at in range(len(arrays))])

    @property
    def keys(self) -> list[str]:
        """The key's columns under the names of `fit`."""
        return [f"c{self.columns.get_field_index(name)}" for name in self.key]

    @property
    def all(self) -> list[str]:
        """The names of `fit`."""
        return [f"c{at}" for at in range(len(self.columns))]

    def hash(self, names: Iterable[str]) -> str:
        """Return an expression that hashes columns of `fit`: other values, another hash."""
        types = dict(zip(self.all, self.columns.types, strict=True))
        return f"hash({', '.join(_distinct(name, types[name]) for name in names)})"


class Sum(NamedTuple):
    """The checksum of some rows."""

    rows: int = 0
    total: int = 0
    xor: int = 0

    def plus(self, other: Sum) -> Sum:
        total = (self.total + other.total) % CIRCLE
        return Sum(self.rows + other.rows, total, self.xor ^ other.xor)


@dataclass(frozen=True)
class Sums:
    """The checksums of one side, or of a part of it.

    Attributes:
        chunks: of each chunk that has rows.
        left_out: how many rows were left out.
        first: the smallest key, by the order of its plain values; None without rows or key.
        last: the largest one.
    """

    chunks: dict[int, Sum] = field(default_factory=dict)
    left_out: int = 0
    first: tuple[Any, ...] | None = None
    last: tuple[Any, ...] | None = None

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.chunks.values())

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both together."""
        chunks = dict(self.chunks)
        for number, each in other.chunks.items():
            chunks[number] = chunks.get(number, Sum()).plus(each)
        ends = [key for key in (self.first, other.first, self.last, other.last) if key is not None]
        return Sums(
            chunks,
            self.left_out + other.left_out,
            min(ends, default=None),
            max(ends, default=None),
        )


def differing_chunks(one: Sums, other: Sums) -> list[int]:
    """Return the chunks whose rows are not the same on both sides."""
    numbers = one.chunks.keys() | other.chunks.keys()
    return sorted(
        number
        for number in numbers
        if one.chunks.get(number, Sum()) != other.chunks.get(number, Sum())
    )


def sums_of(batches: Iterable[pa.RecordBatch], terms: Terms) -> Sums:
    """Return the checksums of rows."""
    found = Sums()
    for rows, connection in _prepared(batches, terms):
        kept = (
            connection.sql(_compared(terms)).to_arrow_table()
            if terms.left_out is not None
            else rows
        )
        found = found.plus(_sums(kept, connection, terms))
        found = replace(found, left_out=found.left_out + len(rows) - len(kept))
    return found


def rows_of(
    batches: Iterable[pa.RecordBatch], terms: Terms, chunks: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Yield, of the rows in some chunks, keys, hashes and values as texts.

    The columns are `key` (texts), `hash` (of the row), `hashes` (of each value) and `texts`.
    """
    wanted = ", ".join(map(str, chunks))
    key = _texts(terms.keys) if terms.key else f"[({terms.hash(terms.all)})::VARCHAR]"
    each = ", ".join(_signed(terms.hash([name])) for name in terms.all)
    query = (
        f"SELECT {key} AS key, {_signed(terms.hash(terms.all))} AS hash, [{each}] AS hashes, "  # noqa: S608
        f"{_texts(terms.all, SHOWN_LETTERS)} AS texts "
        f"FROM ({_compared(terms)}) WHERE {_chunk(terms)} IN ({wanted})"
    )
    for _, connection in _prepared(batches, terms):
        yield from connection.sql(query).to_arrow_table().to_batches()


def _prepared(
    batches: Iterable[pa.RecordBatch], terms: Terms
) -> Iterator[tuple[pa.RecordBatch, duckdb.DuckDBPyConnection]]:
    """Yield each batch, ready to be asked for under the name `rows`."""
    import duckdb

    settings: dict[str, Any] = {"python_enable_replacements": "false", "threads": "1"}
    with duckdb.connect(config=settings) as connection:
        if terms.left_out is not None:
            connection.register("gone", terms.left_out.rename_columns(terms.keys))
            connection.execute("CREATE TABLE left_out AS FROM gone")
        for batch in batches:
            if batch.num_rows:
                rows = terms.fit(batch)
                connection.register("rows", rows)
                yield rows, connection
                connection.unregister("rows")


def _sums(
    rows: pa.RecordBatch | pa.Table, connection: duckdb.DuckDBPyConnection, terms: Terms
) -> Sums:
    connection.register("kept", rows)
    row = terms.hash(terms.all)
    key = f"row({', '.join(terms.keys)})" if terms.key else "NULL"
    found = connection.execute(
        f"SELECT chunk, count(*), sum(h::HUGEINT) % {CIRCLE}, bit_xor(h), min(k), max(k) "  # noqa: S608
        f"FROM (SELECT {_chunk(terms)} AS chunk, {row} AS h, {key} AS k FROM kept) GROUP BY chunk"
    ).fetchall()
    connection.unregister("kept")
    ends = [_plain(end) for *_, first, last in found for end in (first, last) if end is not None]
    return Sums(
        {chunk: Sum(rows, int(total), xor) for chunk, rows, total, xor, *_ in found},
        first=min(ends, default=None),
        last=max(ends, default=None),
    )


def _plain(key: Any) -> tuple[Any, ...]:
    return tuple(key.values()) if isinstance(key, dict) else tuple(key)


def _compared(terms: Terms) -> str:
    if terms.left_out is None:
        return "SELECT * FROM rows"
    return f"SELECT * FROM rows ANTI JOIN left_out USING ({', '.join(terms.keys)})"  # noqa: S608


def _chunk(terms: Terms) -> str:
    return f"({terms.hash(terms.keys or terms.all)} % {terms.chunks})::INTEGER"


def _distinct(name: str, kind: pa.DataType) -> str:
    """Return what to hash of a column, so that values that differ hash differently."""
    if pa.types.is_nested(kind):
        return f"to_json({name})"
    if pa.types.is_floating(kind):
        return f"{name}, {name} = 0 AND signbit({name})"
    return name


def _signed(number: str) -> str:
    """Return an expression that gives 64 bits the sign that Spark's `long` has."""
    return f"({number}::HUGEINT - {CIRCLE // 2})::BIGINT"


def _texts(names: list[str], letters: int | None = None) -> str:
    """Return an expression that lists values as texts, cut if they are long."""
    if letters is None:
        return f"[{', '.join(f'{name}::VARCHAR' for name in names)}]"
    cut = (
        f"CASE WHEN length({name}::VARCHAR) > {letters} "
        f"THEN left({name}::VARCHAR, {letters}) || '...' ELSE {name}::VARCHAR END"
        for name in names
    )
    return f"[{', '.join(cut)}]"


@dataclass(frozen=True)
class SumTask:
    """Works the checksums of parts out, in tasks.

    Attributes:
        readers: what reads the parts of each side.
        terms: what is compared.
    """

    readers: tuple[Reader, Reader]
    terms: Terms

    def __call__(self, piece: tuple[int, Any]) -> tuple[int, Sums]:
        side, part = piece
        return side, sums_of(self.readers[side].read(part), self.terms)


@dataclass(frozen=True)
class RowTask:
    """Gives the rows of some chunks, in tasks that are handed the numbers of pieces."""

    readers: tuple[Reader, Reader]
    terms: Terms
    pieces: tuple[tuple[int, Any], ...]
    chunks: tuple[int, ...]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                side, part = self.pieces[number]
                for rows in rows_of(self.readers[side].read(part), self.terms, self.chunks):
                    sides = pa.array([side] * len(rows), pa.int32())
                    arrays = [sides, *rows.columns]
                    yield pa.RecordBatch.from_arrays(arrays, ["side", *rows.schema.names])
