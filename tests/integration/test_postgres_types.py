"""Values of every type, as a real PostgreSQL prints them, are read as psycopg reads them."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from icestream.sources.postgres_cdc.types import SESSION_SETTINGS, TYPES_QUERY, TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import Postgres

# Types whose values psycopg reads as we do, with values at their edges.
SAME = {
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "numeric(12,2)": ["-9999999999.99", "0.01", "-0.001"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38],
    "numeric(38,38)": ["0." + "9" * 38],
    "sale_price": ["-9999.99", "12"],
    "double precision": ["1e-307", "1.7976931348623157e308", "Infinity", "-Infinity", "0.1"],
    "boolean": ["true", "false"],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29"],
    "timestamp": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.9"],
    "timestamptz": ["2024-02-29 23:30:00.25-05:30", "1901-12-13 20:45:52+00"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "bytea": [r"\x", r"\x00ff5c78", "text"],
    "text": ["", "NULL", "\\N", "a\nb\tc", "żółw 🐢"],
    "varchar(5)": ["abc", "", "żółw"],
    "char(5)": ["ab"],
    "name": ["a name"],
    "mood": ["so so", "happy"],
    "integer[]": ["{1,NULL,-3}", "{}", "[3:4]={1,2}"],
    "numeric(6,2)[]": ["{1.5,NULL}"],
    "text[]": ['{a,"b c",NULL,"NULL","","\\"","\\\\","{","a,b"}', "{}"],
    "bytea[]": ['{"\\\\x00ff",NULL}'],
    "boolean[]": ["{t,f,NULL}"],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}"],
    "date[]": ["{2024-02-29}"],
    "timestamptz[]": ["{2024-02-29 00:00:00+02,NULL}"],
    "timestamp[]": ["{2024-02-29 12:00:00.5}"],
    "double precision[]": ["{1.5,Infinity,NULL}"],
}

# Types that have no other form in Iceberg: a string, as PostgreSQL prints it.
STRINGS = {
    "numeric": ["NaN", "1" + "0" * 60, "0.000000000000000000000000000000000000000000001"],
    "numeric(50,2)": ["1" * 48 + ".25"],
    "time": ["00:00:00", "23:59:59.999999", "12:30:00.5", "24:00:00"],
    "timetz": ["12:30:00+05:30"],
    "interval": ["1 year 2 mons 3 days 04:05:06.7", "-1 day"],
    "json": ['{"b": 1,  "a": [null, "\\u00fc"]}'],
    "jsonb": ['{"b": 1,  "a": [null, 2.50]}'],
    "xml": ["<a>b</a>"],
    "inet": ["192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "tstzrange": ["[2024-01-01 00:00:00+00,)"],
    "nummultirange": ["{[1.1,2.2),[3,)}"],
    "bit(4)": ["1010"],
    "bit varying": ["", "101"],
    "tsvector": ["a:1 fat:2 cat:3"],
    "point": ["(1.5,2)"],
    "pair": ['(1,"a b")'],
    '"char"': ["x"],
    "xid8": ["18446744073709551615"],
    "int2vector": ["1 2 3"],
}

# What no type of Iceberg holds.
OUT_OF_RANGE = {
    "numeric(12,2)": ["NaN"],
    "date": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31"],
    "timestamp": ["infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["-infinity", "0001-12-31 23:59:59+00 BC", "10000-01-01 00:00:00+00"],
    "integer[]": ["{{1,2},{3,4}}"],
}


@pytest.fixture(scope="module")
def session(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres.dsn_of(postgres.new_database())
    # The tests ask the same of a table whose columns change.
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
        for name, value in SESSION_SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute("CREATE TYPE mood AS ENUM ('so so', 'happy')")
        connection.execute("CREATE TYPE pair AS (a integer, b text)")
        connection.execute("CREATE DOMAIN price AS numeric(6,2)")
        connection.execute("CREATE DOMAIN sale_price AS price")
        yield connection


def stored(session: psycopg.Connection[Any], kind: str, values: list[str]) -> tuple[int, int]:
    """Put values into a column, and return its type and modifier."""
    session.execute("DROP TABLE IF EXISTS edges")
    named = sql.SQL(kind)
    session.execute(sql.SQL("CREATE TABLE edges (place serial, a {})").format(named))
    adding = sql.SQL("INSERT INTO edges (a) VALUES (%s::{})").format(named)
    for value in [*values, None]:
        session.execute(adding, (value,))
    row = session.execute(
        "SELECT atttypid::int8, atttypmod FROM pg_attribute"
        " WHERE attrelid = 'edges'::regclass AND attname = 'a'"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def printed(session: psycopg.Connection[Any]) -> list[str | None]:
    """Return the values as PostgreSQL prints them, which is not always a cast to text."""
    with session.cursor() as cursor, cursor.copy("COPY edges (a) TO STDOUT") as copy:
        copy.set_types(["text"])
        return [row[0] for row in copy.rows()]


def converted(
    session: psycopg.Connection[Any], kind: str, values: list[str]
) -> tuple[pa.Array, int]:
    oid, typmod = stored(session, kind, values)
    types = TypeCatalog()
    unknown = types.unknown([oid])
    types.add(session.execute(TYPES_QUERY, (unknown,)).fetchall() if unknown else [])
    found, nulled = types.from_text(pa.array(printed(session), pa.string()), oid, typmod)
    assert found.type == types.arrow_type(oid, typmod)
    return found, nulled


@pytest.mark.parametrize("kind", SAME)
def test_values_are_those_that_psycopg_reads(session: psycopg.Connection[Any], kind: str) -> None:
    found, nulled = converted(session, kind, SAME[kind])

    rows = session.execute("SELECT a FROM edges ORDER BY place").fetchall()
    assert found.to_pylist() == [row[0] for row in rows]
    assert nulled == 0


@pytest.mark.parametrize("kind", STRINGS)
def test_other_types_are_text(session: psycopg.Connection[Any], kind: str) -> None:
    found, nulled = converted(session, kind, STRINGS[kind])

    assert found.type == pa.string()
    assert found.to_pylist() == printed(session)
    assert (found.null_count, nulled) == (1, 0)


@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_values_beyond_the_type_are_null_and_counted(
    session: psycopg.Connection[Any], kind: str
) -> None:
    found, nulled = converted(session, kind, OUT_OF_RANGE[kind])

    assert found.null_count == len(found)
    assert nulled == len(OUT_OF_RANGE[kind])


def test_money_is_an_exact_number(session: psycopg.Connection[Any]) -> None:
    found, nulled = converted(session, "money", ["-1234.5", "92233720368547758.07", "0"])

    assert found.to_pylist() == [Decimal("-1234.50"), Decimal("92233720368547758.07"), 0, None]
    assert nulled == 0


def test_real_has_the_value_of_its_32_bits(session: psycopg.Connection[Any]) -> None:
    found, _ = converted(session, "real", ["0.1", "-3.4028235e38", "1e-45", "NaN"])

    expected = pa.array([0.1, -3.4028235e38, 1e-45, float("nan"), None], pa.float32())
    assert str(found) == str(expected)


def test_boxes_in_arrays_keep_their_commas(session: psycopg.Connection[Any]) -> None:
    found, _ = converted(session, "box[]", ["{(1,1),(0,0);(2,2),(0,0)}"])

    assert found.to_pylist() == [["(1,1),(0,0)", "(2,2),(0,0)"], None]


def test_enums_in_arrays_are_strings(session: psycopg.Connection[Any]) -> None:
    found, _ = converted(session, "mood[]", ['{"so so",happy,NULL}'])

    assert found.to_pylist() == [["so so", "happy", None], None]


def test_timestamp_is_the_same_whatever_its_time_zone(
    session: psycopg.Connection[Any],
) -> None:
    found, _ = converted(session, "timestamptz", ["2024-07-01 12:00:00 Europe/Berlin"])

    assert found.to_pylist() == [datetime(2024, 7, 1, 10, tzinfo=timezone.utc), None]
