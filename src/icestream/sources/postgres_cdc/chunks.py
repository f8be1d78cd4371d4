"""Ranges of a table: where to cut it, and the rows of a range as blocks."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from icestream.contracts.changes import noting_nulled
from icestream.sources.postgres_cdc.blocks import snapshot_block
from icestream.sources.postgres_cdc.tables import ONLY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.tables import Table
    from icestream.sources.postgres_cdc.types import TypeCatalog

_log = logging.getLogger(__name__)

BLOCK_BYTES = 8 << 20
PAGE_BYTES = 8192

Key = tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Rows of a table: by their key, or by their pages in a table without one.

    Attributes:
        table: the table.
        after: only rows with a greater key; None from the beginning.
        upto: only rows with at most this key; None to the end.
        pages: first page, and the one to stop before, of a table that is cut by pages.
        first: whether the rows replace what the Iceberg table holds.
    """

    table: Table
    after: Key | None = None
    upto: Key | None = None
    pages: tuple[int, int | None] | None = None
    first: bool = False


@dataclass(frozen=True)
class Bounds:
    """Where a range can be cut.

    Attributes:
        rows: how many rows it has.
        keys: of every so many rows the last one's key.
    """

    rows: int
    keys: tuple[Key, ...]


def find_bounds(
    session: Session,
    table: Table,
    every: int,
    *,
    after: Key | None = None,
    upto: Key | None = None,
    limit: int | None = None,
) -> Bounds:
    """Return the key of each `every`-th row, and of the `limit`-th, in the order of the key."""
    order = sql.SQL(", ").join(map(sql.Identifier, table.order))
    texts = sql.SQL(", ").join(
        sql.SQL("{}::text").format(sql.Identifier(column)) for column in table.order
    )
    limited = sql.SQL("LIMIT {}").format(sql.Literal(limit)) if limit else sql.SQL("")
    query = sql.SQL(
        "SELECT count(*), array_agg(ARRAY[{texts}] ORDER BY place)"
        " FILTER (WHERE place % {every} = 0 OR place = {limit})"
        " FROM (SELECT {order}, row_number() OVER (ORDER BY {order}) AS place"
        " FROM {only}{table} WHERE {where} ORDER BY {order} {limited}) AS counted"
    ).format(
        texts=texts,
        every=sql.Literal(every),
        limit=sql.Literal(limit or 0),
        order=order,
        only=ONLY[not table.is_partitioned],
        table=sql.Identifier(*table.names),
        where=_where(Range(table, after, upto)),
        limited=limited,
    )
    rows, keys = session.row(query)
    return Bounds(rows, tuple(tuple(key) for key in keys or ()))


def count_pages(session: Session, table: Table) -> int:
    """Return how many pages a table has."""
    (size,) = session.row("SELECT pg_catalog.pg_relation_size(%s::oid)", [table.relation.id])
    return int(size) // PAGE_BYTES


def read_range(session: Session, types: TypeCatalog, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, at least one block, which may be empty."""
    relation = part.table.relation
    names = [str(place) for place in range(len(relation.columns))]
    is_empty = True
    for rows in session.copied(_copy(part), BLOCK_BYTES):
        texts = _parse(b"".join(rows), names)
        is_empty = False
        yield noting_nulled(*snapshot_block(relation, types, texts, first=part.first))
    if is_empty:
        nothing = [pa.array([], pa.string())] * len(names)
        yield snapshot_block(relation, types, nothing, first=part.first)[0]


def _copy(part: Range) -> sql.Composed:
    table = part.table
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
    # Rows that are alike in everything are one row of a table whose rows are told apart by that.
    distinct = sql.SQL("DISTINCT ON (ROW({})::text) ").format(columns)
    return sql.SQL("COPY (SELECT {}{} FROM {}{} WHERE {}) TO STDOUT (FORMAT csv)").format(
        distinct if table.relation.has_row_key else sql.SQL(""),
        columns,
        ONLY[not table.is_partitioned],
        sql.Identifier(*table.names),
        _where(part),
    )


def _where(part: Range) -> sql.Composable:
    table = part.table
    tests: list[sql.Composable] = []
    if table.row_filter is not None:
        tests.append(sql.SQL("({})").format(sql.SQL(table.row_filter)))
    columns = sql.SQL(", ").join(map(sql.Identifier, table.order))
    for key, sign in ((part.after, ">"), (part.upto, "<=")):
        if key is not None:
            values = sql.SQL(", ").join(_typed(table, key))
            tests.append(sql.SQL("ROW({}) {} ROW({})").format(columns, sql.SQL(sign), values))
    if part.pages is not None:
        first, stop = part.pages
        tests.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
        if stop is not None:
            tests.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({stop},0)")))
    return sql.SQL(" AND ").join(tests) if tests else sql.SQL("true")


def _typed(table: Table, key: Key) -> Iterator[sql.Composed]:
    for value, kind in zip(key, table.order_types, strict=True):
        yield sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(kind))


def _parse(text: bytes, names: Sequence[str]) -> list[pa.Array]:
    """Return the columns of CSV as PostgreSQL writes it: a null is nothing, a text is quoted."""
    table = csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(
            column_names=list(names), block_size=len(text) + 1, use_threads=False
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,  # the server has looked
        ),
    )
    return [column.combine_chunks() for column in table.columns]
