from __future__ import annotations

import pickle
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icestream.formats.ddl import parse_ddl
from icestream.formats.inference import merge_fields, resolved_fields
from icestream.formats.json import JsonDecoder

UTC = timezone.utc
NOON = datetime(2024, 1, 2, 12, 0, 5, tzinfo=UTC)


def decode(values: list[bytes | None], ddl: str = "a bigint") -> Any:
    return JsonDecoder().decode(pa.array(values, pa.binary()), parse_ddl(ddl))


def decode_value(value: str, kind: str) -> Any:
    """Decode one value on the fast path and on the slow path, which must agree."""
    raw = b'{"a": %s}' % value.encode()
    fast = decode([raw], f"a {kind}")
    slow = decode([raw, b'{"a": [[]], "a": 1}'], f"a {kind}")
    if slow.bad[:1] and slow.bad[0][0] == 0:
        assert fast.bad[0] == slow.bad[0]
        return fast.bad[0][1]
    assert fast.bad == ()
    assert slow.rows.to_pylist()[0] == fast.rows.to_pylist()[0]
    return fast.rows.to_pylist()[0]["a"]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("1", "bigint", 1),
        ("1.0", "bigint", 1),
        ("1e3", "bigint", 1000),
        ("null", "bigint", None),
        ("1.5", "bigint", "column 'a': 1.5 is not a bigint"),
        ('"1"', "bigint", "column 'a': '1' is not a bigint"),
        ("true", "bigint", "column 'a': true is not a bigint"),
        ("9223372036854775808", "bigint", "column 'a': 9223372036854775808 is not a bigint"),
        ("3000000000", "int", "column 'a': 3000000000 is not an int"),
        ("1e999999999", "bigint", "column 'a': 1E+999999999 is not a bigint"),
        ("1", "double", 1.0),
        ("0.1", "double", 0.1),
        ("Infinity", "double", float("inf")),
        ("1e400", "double", "column 'a': 1E+400 is not a double: its value would change"),
        ("1e-400", "double", "column 'a': 1E-400 is not a double: its value would change"),
        ("0e-400", "double", 0.0),
        ("9007199254740992", "double", 9007199254740992.0),
        (
            "9007199254740993",
            "double",
            "column 'a': 9007199254740993 is not a double: its value would change",
        ),
        ("0.30000000000000004", "double", 0.30000000000000004),
        ("0.10000000000000001", "double", 0.1),
        ("1e40", "float", "column 'a': 1E+40 is not a float: its value would change"),
        ("1e-50", "float", "column 'a': 1E-50 is not a float: its value would change"),
        ("16777217", "float", "column 'a': 16777217 is not a float: its value would change"),
        ("0.5", "float", 0.5),
        (
            "[1.5, 9007199254740993]",
            "array<double>",
            "column 'a[]': 9007199254740993 is not a double: its value would change",
        ),
        (
            '{"b": 1e40}',
            "struct<b:float>",
            "column 'a.b': 1E+40 is not a float: its value would change",
        ),
        ('"x"', "double", "column 'a': 'x' is not a double"),
        ('"x"', "string", "x"),
        ("1.50", "string", "1.50"),
        ("true", "string", "true"),
        ('{"b":[1,2]}', "string", '{"b":[1,2]}'),
        (
            '{"c":0.12345678901234567890,"b":[1.50,18446744073709551615]}',
            "string",
            '{"c":0.12345678901234567890,"b":[1.50,18446744073709551615]}',
        ),
        ('"\\ud800"', "string", "not JSON: lone surrogate, which UTF-8 can't encode"),
        ("true", "boolean", True),
        ("1", "boolean", "column 'a': 1 is not a boolean"),
        ("1.25", "decimal(10,2)", Decimal("1.25")),
        ('"1.25"', "decimal(10,2)", Decimal("1.25")),
        ("7", "decimal(10,2)", Decimal("7.00")),
        ("1.234", "decimal(10,2)", "column 'a': 1.234 is not a decimal(10,2)"),
        ('"x"', "decimal(10,2)", "column 'a': 'x' is not a decimal(10,2)"),
        ('"2024-01-02"', "date", date(2024, 1, 2)),
        ('"2024-13-02"', "date", "column 'a': '2024-13-02' is not a date"),
        ('"2024-01-02T12:00:05Z"', "timestamp", NOON),
        ('"2024-01-02T12:00:05"', "timestamp", NOON),
        ('"2024-01-02 14:00:05+02:00"', "timestamp", NOON),
        ('"2024-01-02T07:00:05-0500"', "timestamp", NOON),
        ('"2024-01-02T12:00:05.1Z"', "timestamp", NOON.replace(microsecond=100_000)),
        ('"2024-01-02T12:00:05.123456Z"', "timestamp", NOON.replace(microsecond=123_456)),
        ('"2024-01-02T12:00:05.123456000Z"', "timestamp", NOON.replace(microsecond=123_456)),
        (
            '"2024-01-02T12:00:05.123456789Z"',
            "timestamp",
            "column 'a': '2024-01-02T12:00:05.123456789Z' is not a timestamp: it has more than 6 "
            "decimals. Declare the column as `string` and cast it in a `select`",
        ),
        (
            '"1969-12-31T23:59:59.9999999Z"',
            "timestamp",
            "column 'a': '1969-12-31T23:59:59.9999999Z' is not a timestamp: it has more than 6 "
            "decimals. Declare the column as `string` and cast it in a `select`",
        ),
        (
            '"0000-01-01T00:00:00Z"',
            "timestamp",
            "column 'a': '0000-01-01T00:00:00Z' is not a timestamp",
        ),
        ('"1_0"', "decimal(10,2)", "column 'a': '1_0' is not a decimal(10,2)"),
        ("1e-999999999", "decimal(10,2)", "column 'a': 1E-999999999 is not a decimal(10,2)"),
        (
            '"9223372036854775810e-999999999"',
            "decimal(38,18)",
            "column 'a': '9223372036854775810e-999999999' is not a decimal(38,18)",
        ),
        (
            r'"9223372036854775810e\u002d999999999"',
            "decimal(38,18)",
            "column 'a': '9223372036854775810e-999999999' is not a decimal(38,18)",
        ),
        ('"2024-01-02T14:00:05+02:00"', "timestamp_ntz", NOON.replace(tzinfo=None)),
        ('"2024-01-02"', "timestamp", datetime(2024, 1, 2, tzinfo=UTC)),
        ('"9999-12-31T00:00:00Z"', "timestamp", datetime(9999, 12, 31, tzinfo=UTC)),
        ('"soon"', "timestamp", "column 'a': 'soon' is not a timestamp"),
        ("1700000000000", "timestamp", "column 'a': 1700000000000 is not a timestamp"),
        ("[1, 2, null]", "array<int>", [1, 2, None]),
        ('["x"]', "array<int>", "column 'a[]': 'x' is not an int"),
        ('{"b": 1}', "array<int>", "column 'a': {\"b\":1} is not an array"),
        ('{"b": 1, "c": "2024-01-02"}', "struct<b:int, c:date>", {"b": 1, "c": date(2024, 1, 2)}),
        ("{}", "struct<b:int>", {"b": None}),
        ('{"b": {"c": "x"}}', "struct<b:struct<c:int>>", "column 'a.b.c': 'x' is not an int"),
        ('{"x": 1, "y": null}', "map<string, int>", [("x", 1), ("y", None)]),
        ('{"7": "x"}', "map<int, string>", [(7, "x")]),
        ('"aGk="', "binary", b"hi"),
        ('"#"', "binary", "column 'a': '#' is not a binary in base64"),
    ],
)
def test_value_of_a_type(value: str, kind: str, expected: Any) -> None:
    assert decode_value(value, kind) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "not JSON: expecting value at character 0, the value is empty"),
        (b"junk", "not JSON: an object starts with '{'"),
        (
            b"[\n",
            "not JSON: expecting value at character 2; it starts like an array, "
            "write one object per record, in files one per line",
        ),
        (
            b"{",
            "not JSON: expecting property name enclosed in double quotes at character 1; "
            "the object does not end here, write one object per record, in files one per line",
        ),
        (
            b"\x00\x00\x00\x00\x07\x02",
            "not JSON: expecting value at character 0; it starts like a record of a schema "
            "registry, which needs `format: avro`",
        ),
        (
            b"\x1f\x8b\x08",
            "not JSON: byte 0x8b at position 1 is not UTF-8 text; it starts like gzip data",
        ),
        (
            b"\xe4\x01",
            "not JSON: byte 0xe4 at position 0 is not UTF-8 text; is it compressed, or Avro?",
        ),
        (b"null", "not a JSON object: null"),
        (
            b"[1]",
            "not a JSON object but an array; write one object per record, in files one per line",
        ),
        (b"7", "not a JSON object: 7"),
        (b'{"a": 1}{"a": 2}', "not JSON: extra data at character 8"),
        (
            b'{"a": 1',
            "not JSON: expecting ',' delimiter at character 7; the object does not end here, "
            "write one object per record, in files one per line",
        ),
        (
            b'{"a": 1,}',
            "not JSON: expecting property name enclosed in double quotes at character 8",
        ),
        (
            b'{"b": "\xff"}',
            "not JSON: byte 0xff at position 7 is not UTF-8 text; is its text in another encoding?",
        ),
        (
            b'{"b": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
            "not JSON: a number with thousands of digits, or thousands of nested brackets",
        ),
        (
            b'{"a": ' + b"9" * 5_000 + b"}",
            "not JSON: a number with thousands of digits, or thousands of nested brackets",
        ),
    ],
)
def test_bad_value_is_reported_and_does_not_affect_its_neighbours(
    value: bytes | None, reason: str
) -> None:
    decoded = decode([b'{"a": 1}', value, b'{"a": 3}', b'{"a": 4}'])

    assert decoded.bad == ((1, reason),)
    assert decoded.rows.to_pydict() == {"a": [1, 3, 4]}
    assert decoded.kept.to_pylist() == [0, 2, 3]


def test_values_not_cut_at_object_boundaries_are_bad() -> None:
    decoded = decode([b'{"a": 1', b"}", b'{"a": 2}{"a": 3}', b'{"a": 4}'])

    assert [place for place, _ in decoded.bad] == [0, 1, 2]
    assert decoded.rows.to_pydict() == {"a": [4]}


def test_one_bad_record_among_many_is_found() -> None:
    values: list[bytes | None] = [b'{"a": %d}' % number for number in range(20_000)]
    values[12_345] = b'{"a": "x"}'

    decoded = decode(values)

    assert decoded.bad == ((12_345, "column 'a': 'x' is not a bigint"),)
    assert decoded.rows.num_rows == 19_999
    assert decoded.rows.column("a").to_pylist() == [n for n in range(20_000) if n != 12_345]
    assert decoded.kept.to_pylist() == decoded.rows.column("a").to_pylist()


def test_only_bad_values_decode_to_no_rows() -> None:
    decoded = decode([b"x"] * 3_000)

    assert len(decoded.bad) == 3_000
    assert decoded.rows.num_rows == 0
    assert decoded.rows.schema == parse_ddl("a bigint")


def test_no_values_decode_to_no_rows() -> None:
    decoded = decode([])

    assert decoded.rows.num_rows == 0
    assert decoded.rows.schema == parse_ddl("a bigint")
    assert decoded.kept is None


def test_values_longer_than_a_block_keep_their_order() -> None:
    values: list[bytes | None] = [
        b'{"a": %d, "b": "%s"}' % (number, b"x" * 6_000_000) for number in range(5)
    ]

    decoded = decode(values, "a bigint")

    assert decoded.rows.column("a").to_pylist() == [0, 1, 2, 3, 4]


def test_slices_and_pretty_printed_values_are_read() -> None:
    values = pa.array([b"x", b'{\n "a": 1\n}\n', b' {"a": 2} ', b"y"], pa.binary())[1:3]

    decoded = JsonDecoder().decode(values, parse_ddl("a bigint"))

    assert decoded.rows.to_pydict() == {"a": [1, 2]}
    assert decoded.bad == ()


def test_missing_columns_are_null_and_required_ones_are_bad() -> None:
    decoded = decode([b'{"a": 1}', b'{"b": 2}', b'{"a": null}'], "a bigint NOT NULL, b bigint")

    assert decoded.rows.to_pylist() == [{"a": 1, "b": None}]
    reason = "column 'a': no value, and it is required"
    assert decoded.bad == ((1, reason), (2, reason))


@pytest.mark.parametrize("beside", ["", ', "m": {"x": 1}'], ids=["fast", "slow"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_timestamp_keeps_its_nanoseconds_where_the_column_has_them(
    beside: str, zone: str | None
) -> None:
    kind = pa.timestamp("ns", zone)
    columns = [("at", kind), *([("m", pa.map_(pa.string(), pa.int64()))] if beside else [])]
    texts = ["2024-01-02T12:00:05.123456789Z", "1969-12-31T23:59:59.9999999Z", "2300-01-01"]
    raw = pa.array([f'{{"at": "{text}"{beside}}}'.encode() for text in texts])
    decoded = JsonDecoder().decode(raw, pa.schema(columns))

    assert decoded.rows.column("at").cast(pa.int64()).to_pylist() == [1704196805123456789, -100]
    name = "timestamp" if zone else "timestamp_ntz"
    assert decoded.bad == ((2, f"column 'at': '2300-01-01' is not a {name}"),)


def test_last_of_duplicate_keys_wins() -> None:
    assert decode([b'{"a": 1, "a": 2}']).rows.to_pydict() == {"a": [2]}


def test_names_that_differ_by_case_are_two_columns() -> None:
    decoded = decode([b'{"id": 1, "ID": 2}'], "id bigint, ID bigint")

    assert decoded.rows.to_pylist() == [{"id": 1, "ID": 2}]


@pytest.mark.parametrize(
    "number", ["8388608.000000001", "12345678901234567.8", "0.1234567890123456789"]
)
def test_new_field_that_no_double_holds_is_text(number: str) -> None:
    decoder = JsonDecoder()
    for sent in ("1.5", number):
        values = pa.array([b'{"id": 1, "a": %s}' % sent.encode()], pa.binary())
        decoded = decoder.decode(values, parse_ddl("id int"))
    assert decoded.new_fields == {"a": pa.string()}


@pytest.mark.parametrize("field", ["%s", '{"b": %s}', "[%s]", '[{"b": [%s]}]'])
@pytest.mark.parametrize(
    "later", ["2024-01-02T03:04:05.123456789", "2024-01-02T03:04:05Z", "2024-01-02"]
)
def test_new_field_is_text_where_a_later_block_has_another_kind_of_timestamp(
    field: str, later: str
) -> None:
    decoder = JsonDecoder()
    new_fields: dict[str, pa.DataType] = {}
    for sent in ("2024-01-02T03:04:05", later):
        value = b'{"id": 1, "a": %s}' % (field % f'"{sent}"').encode()
        decoded = decoder.decode(pa.array([value]), parse_ddl("id int"))
        new_fields = merge_fields(new_fields, decoded.new_fields)

    assert "string" in str(new_fields["a"])


def test_new_fields_are_reported_with_their_types() -> None:
    values: list[bytes | None] = [
        b'{"a": 1, "i": 1, "f": 1, "z": "2024-01-02T03:04:05Z", "n": null, "e": {}, "l": []}',
        b'{"a": 2, "i": 2, "f": 1.5, "t": "2024-01-02T03:04:05.123", "d": "2024-01-02"}',
        b'{"a": 3, "s": {"x": 1, "u": null}, "w": [{"y": "q"}]}',
    ]
    expected = {
        "i": pa.int64(),
        "f": pa.float64(),
        "z": pa.timestamp("us", "UTC"),
        "t": pa.timestamp("us"),
        "d": pa.date32(),
        "s": pa.struct([("x", pa.int64())]),
        "w": pa.list_(pa.struct([("y", pa.string())])),
    }

    assert resolved_fields(decode(values).new_fields) == expected
    assert resolved_fields(decode([*values, b'{"a": 1, "a": 2}']).new_fields) == expected


def test_new_struct_member_is_reported_with_the_existing_ones() -> None:
    decoded = decode([b'{"a": {"b": 1, "c": 2}}'], "a struct<b:int>")

    assert decoded.new_fields == {"a": pa.struct([("b", pa.int32()), ("c", pa.int64())])}
    assert decoded.rows.to_pylist() == [{"a": {"b": 1}}]


def test_schema_is_inferred_from_the_whole_sample() -> None:
    sample = [
        b'{"a": 1, "m": 1, "at": "2024-01-02T03:04:05Z", "on": "2024-01-02"}',
        b"junk",
        None,
        b'{"a": 2.5, "m": "x", "at": "2024-01-02T05:04:05+02:00", "on": "2024-01-02T03:04:05", '
        b'"b": true, "c": [null]}',
    ]

    assert JsonDecoder().infer(sample) == pa.schema(
        [
            ("a", pa.float64()),
            ("m", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("on", pa.string()),
            ("b", pa.bool_()),
        ]
    )


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-9223372036854775808"], pa.int64()),
        (["1", "18446744073709551615"], pa.decimal128(38, 0)),
        (["1", "9" * 39], pa.string()),
        (["1", "0.1"], pa.float64()),
        (["9007199254740993", "9007199254740995"], pa.int64()),
        (["9007199254740993", "0.5"], pa.string()),
        (["18446744073709551615", "0.5"], pa.string()),
        (["1.23456789012345678901"], pa.string()),
        (["0.30000000000000004", "1e300"], pa.float64()),
        (["1e400"], pa.string()),
        (["-0"], pa.float64()),
        (['"2024-01-02T03:04:05.123456789Z"'], pa.string()),
        (['"2024-01-02T03:04:05.123456000Z"'], pa.timestamp("us", "UTC")),
        (['"2024-01-02T03:04:05Z"', '"2024-01-02T03:04:05"'], pa.string()),
    ],
)
def test_inferred_type_holds_every_value(texts: list[str], kind: pa.DataType) -> None:
    sample = [b'{"a": %s, "s": {"b": [%s]}}' % (text.encode(), text.encode()) for text in texts]
    inferred = JsonDecoder().infer(sample)

    assert inferred == pa.schema([("a", kind), ("s", pa.struct([("b", pa.list_(kind))]))])
    decoded = JsonDecoder().decode(pa.array(sample), pa.schema([("k", pa.int64())]))
    new = resolved_fields(decoded.new_fields)
    assert new == dict(zip(inferred.names, inferred.types, strict=True))
    decoded = JsonDecoder().decode(pa.array(sample), inferred)
    assert decoded.bad == ()
    if kind == pa.string():
        unquoted = [text.strip('"').replace("1e400", "1E+400") for text in texts]
        assert decoded.rows.column("a").to_pylist() == unquoted


def test_inferred_columns_decode_their_own_sample() -> None:
    sample = [b'{"a": 1, "m": {"x": [1]}}', b'{"a": "t", "m": {"x": ["2024-01-02"], "y": 1.5}}']
    decoder = JsonDecoder()

    decoded = decoder.decode(pa.array(sample, pa.binary()), decoder.infer(sample))

    assert decoded.bad == ()
    assert decoded.rows.to_pylist() == [
        {"a": "1", "m": {"x": ["1"], "y": None}},
        {"a": "t", "m": {"x": ["2024-01-02"], "y": 1.5}},
    ]


def test_decoder_survives_pickling_after_use() -> None:
    decoder = JsonDecoder()
    values = pa.array([b'{"a": 1, "b": 2}'], pa.binary())
    decoder.decode(values, parse_ddl("a bigint"))

    again: JsonDecoder = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - our own bytes

    assert again.decode(values, parse_ddl("a bigint")).rows.to_pydict() == {"a": [1]}


def test_decimal_with_more_digits_than_its_column_is_bad() -> None:
    assert decode_value("1234.5", "decimal(5,2)") == "column 'a': 1234.5 is not a decimal(5,2)"
    assert decode_value("123.45", "decimal(5,2)") == Decimal("123.45")


@pytest.mark.parametrize("number", ["4e20", "-400000000000000000000", "12e19"])
def test_decimal_that_128_bits_do_not_hold_with_its_scale_is_bad(number: str) -> None:
    """Arrow multiplies 4e20 by 10^18 within 128 bits, and keeps only the low bits."""
    written = Decimal(number)
    assert (
        decode_value(number, "decimal(38,18)") == f"column 'a': {written} is not a decimal(38,18)"
    )
    assert decode_value("99999999999999999999.5", "decimal(38,18)") == Decimal(
        "99999999999999999999.5"
    )
