"""Ordinary values that a declared column must accept, on both decoding paths."""

from __future__ import annotations

import struct
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.formats.blocks import DecodedValues
from icestream.formats.csv import CsvDecoder
from icestream.formats.ddl import parse_ddl
from icestream.formats.json import JsonDecoder

if TYPE_CHECKING:
    from icestream.formats.blocks import BlockDecoder


def single(number: float) -> float:
    """Return the `float` nearest to a number, as a double."""
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


# Numbers as JSON and CSV write them.
NUMBERS: list[tuple[str, str, Any]] = [
    ("0", "bigint", 0),
    ("-0", "bigint", 0),
    ("1.0", "bigint", 1),
    ("1e3", "bigint", 1000),
    ("9223372036854775807", "bigint", 9223372036854775807),
    ("12.50", "decimal(10,2)", Decimal("12.50")),
    ("12.500", "decimal(10,2)", Decimal("12.50")),
    ("2.5e-05", "decimal(20,10)", Decimal("0.0000250000")),
    ("0", "double", 0.0),
    ("0.1", "double", 0.1),
    ("12.50", "double", 12.5),
    ("1e3", "double", 1000.0),
    ("2.5e-05", "double", 2.5e-05),
    ("0e-400", "double", 0.0),
    ("4.9e-324", "double", 5e-324),
    ("2.2250738585072011e-308", "double", 2.225073858507201e-308),
    ("3.141592653589793238", "double", 3.141592653589793),
    ("0.1000000000000000055511151231257827", "double", 0.1),
    ("12345678901234.567", "double", 12345678901234.567),
    ("99999999999999999999.99", "double", 1e20),
    ("1152921504606846976", "double", 2.0**60),
    ("1152921504606847000", "double", 2.0**60),
    ("1e22", "double", 1e22),
    ("1e23", "double", 1e23),
    ("100000000000000000000000", "double", 1e23),
    ("8.409999999999999E21", "double", 8.409999999999999e21),
    ("1.7976931348623157e308", "double", 1.7976931348623157e308),
    ("0.1", "float", single(0.1)),
    ("3.141592653589793238", "float", single(3.141592653589793)),
    ("16777216", "float", 16777216.0),
    ("16777217.0", "float", 16777216.0),
    ("123456790", "float", single(123456790)),
    ("1.2345679E8", "float", single(123456790)),
    ("1152921504606847000", "float", 2.0**60),
    ("1e23", "float", single(1e23)),
    ("3.4028235e38", "float", single(3.4028234663852886e38)),
]
# What a declared CSV column also accepts, since the meaning is clear.
CELLS: list[tuple[str, str, Any]] = [
    ("00001234", "bigint", 1234),
    ("+5", "int", 5),
    (" 5 ", "int", 5),
    ("-007", "int", -7),
    (".5", "double", 0.5),
    ("-.5", "double", -0.5),
    ("+.5", "float", 0.5),
    ("5.", "double", 5.0),
    ("5.e3", "double", 5000.0),
    ("00.10", "decimal(10,2)", Decimal("0.10")),
    (".5", "decimal(10,2)", Decimal("0.50")),
    ("+5", "decimal(10,2)", Decimal("5.00")),
    ("nan", "double", float("nan")),
    ("NaN", "float", float("nan")),
    ("inf", "double", float("inf")),
    ("-Infinity", "float", float("-inf")),
    ("INF", "double", float("inf")),
    ("1", "boolean", True),
    ("0", "boolean", False),
    (" TRUE", "boolean", True),
    (" 2024-01-02", "date", date(2024, 1, 2)),
    ("2024-01-02 03:04:05", "timestamp", datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc)),
    ("2024-01-02 03:04", "timestamp_ntz", datetime(2024, 1, 2, 3, 4)),  # noqa: DTZ001 - without a zone
    ("10:00", "time", time(10, 0)),
]
ODD_CELLS = [
    ("0x10", "bigint", "a bigint"),
    ("nan", "bigint", "a bigint"),
    ("nan", "decimal(10,2)", "a decimal(10,2)"),
    ("nan(1)", "double", "a double"),
    ("1_000", "double", "a double"),
    ("+-5", "int", "an int"),
    (".", "double", "a double"),
    (" ", "double", "a double"),
    ("yes", "boolean", "a boolean"),
]
REFUSED = [
    ("9007199254740993", "double", "9007199254740993"),
    ("-9007199254740993", "double", "-9007199254740993"),
    ("1152921504606847001", "double", "1152921504606847001"),
    ("1e400", "double", "1E+400"),
    ("1e-400", "double", "1E-400"),
    (f"0.{'0' * 330}1", "double", "1E-331"),
    ("16777217", "float", "16777217"),
    ("1e39", "float", "1E+39"),
    ("1e-60", "float", "1E-60"),
]


def decoded(decoder: BlockDecoder, value: bytes, kind: str) -> Any:
    """Return the value of column `a`, or why the record is bad, on which both paths agree."""
    columns = parse_ddl(f"a {kind}, b string")
    both = decoder.decode(pa.array([value], pa.binary()), columns)
    slow = DecodedValues()
    decoder.read_values([value], columns, slow)
    assert list(both.bad) == slow.bad
    if both.bad:
        return both.bad[0][1]
    assert slow.rows is not None
    [result] = both.rows.column("a").to_pylist()
    assert repr(slow.rows.column("a").to_pylist()) == repr([result])
    return result


@pytest.mark.parametrize(("text", "kind", "expected"), NUMBERS)
def test_json_number_is_accepted(text: str, kind: str, expected: Any) -> None:
    value = b'{"a": %s, "b": "x"}' % text.encode()
    assert repr(decoded(JsonDecoder(), value, kind)) == repr(expected)


@pytest.mark.parametrize(("text", "kind", "expected"), NUMBERS)
def test_csv_number_is_accepted(text: str, kind: str, expected: Any) -> None:
    decoder = CsvDecoder(parse_ddl(f"a {kind}, b string"))
    assert repr(decoded(decoder, f"{text},x".encode(), kind)) == repr(expected)


@pytest.mark.parametrize(("text", "kind", "expected"), CELLS)
def test_csv_cell_is_accepted(text: str, kind: str, expected: Any) -> None:
    decoder = CsvDecoder(parse_ddl(f"a {kind}, b string"))
    value = decoded(decoder, f"{text},x".encode(), kind)
    assert value == expected or repr(value) == repr(expected) == "nan"


@pytest.mark.parametrize(("text", "kind", "meant"), ODD_CELLS)
def test_invalid_csv_cell_is_refused(text: str, kind: str, meant: str) -> None:
    decoder = CsvDecoder(parse_ddl(f"a {kind}, b string"))
    reason = f"column 'a': {text!r} is not {meant}"
    assert decoded(decoder, f"{text},x".encode(), kind) == reason


@pytest.mark.parametrize(
    ("line", "kind"),
    [(b"%d, 00%d", "int"), (b"%d,+%d.5", "double"), (b"%d, 2024-01-02 00:00:00.%03d", "timestamp")],
)
def test_common_spellings_stay_on_the_fast_path(line: bytes, kind: str) -> None:
    columns = parse_ddl(f"a int, b {kind}")
    values = pa.array([line % (at, at) for at in range(1000)], pa.binary())
    assert CsvDecoder(columns).read_block(values, columns) is not None


@pytest.mark.parametrize(("text", "kind", "shown"), REFUSED)
def test_number_that_would_change_is_refused(text: str, kind: str, shown: str) -> None:
    reason = f"column 'a': {shown} is not a {kind}: its value would change"
    value = b'{"a": %s, "b": "x"}' % text.encode()
    assert decoded(JsonDecoder(), value, kind) == reason
    layout = parse_ddl(f"a {kind}, b string")
    assert decoded(CsvDecoder(layout), f"{text},x".encode(), kind) == reason


@pytest.mark.parametrize(
    "other",
    ['"1e-500, "', '"8f1e-1234-5678"', "1152921504606847001", "5e-07", '"' + "0" * 250 + '"'],
)
def test_other_columns_do_not_affect_a_double(other: str) -> None:
    columns = parse_ddl("a double, c double, b string")
    value = b'{"a": 0.0, "c": 1e17, "b": %s}' % other.encode()

    decoded = JsonDecoder().decode(pa.array([value], pa.binary()), columns)

    assert decoded.bad == ()
    assert decoded.rows.column("c").to_pylist() == [1e17]
