"""JSON and CSV values survive decoding, inferred or declared, on both decoding paths."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.any_values import (
    any_examples,
    is_same,
    is_same_number,
    json_texts,
    parsed,
    texts,
)

from icestream.formats.blocks import DecodedValues
from icestream.formats.csv import CsvDecoder
from icestream.formats.ddl import parse_ddl
from icestream.formats.inference import merge_fields, new_columns
from icestream.formats.json import JsonDecoder
from icestream.sources.files.text import HeaderDecoder, infer_columns

if TYPE_CHECKING:
    from icestream.contracts.decoder import Decoded, Decoder
    from icestream.formats.blocks import BlockDecoder

KINDS = (
    *("bigint", "int", "float", "double", "boolean", "string", "date", "time"),
    *("timestamp", "timestamp_ntz", "decimal(38,0)", "decimal(10,2)", "decimal(38,18)"),
    *("array<double>", "array<bigint>", "array<timestamp>", "map<string,double>"),
    "struct<a:double,b:string>",
)


def both_ways(decoder: BlockDecoder, values: list[bytes], columns: pa.Schema) -> Decoded:
    """Decode values together, alone and by the slow path, which must all agree."""
    together = decoder.decode(pa.array(values, pa.binary()), columns)
    slow = DecodedValues()
    decoder.read_values(values, columns, slow)
    assert list(together.bad) == slow.bad
    assert as_texts(together.rows) == ([] if slow.rows is None else as_texts(slow.rows))
    for place, value in enumerate(values):
        alone = decoder.decode(pa.array([value], pa.binary()), columns)
        assert [reason for _, reason in alone.bad] == [r for at, r in slow.bad if at == place]
        assert all(row in as_texts(together.rows) for row in as_texts(alone.rows))
    return together


def as_texts(rows: pa.RecordBatch) -> list[str]:
    return [repr(row) for row in rows.to_pylist()]


@any_examples
@given(st.lists(json_texts(), min_size=1, max_size=5))
def test_inferred_json_column_holds_every_value_that_it_was_inferred_from(
    sent: list[str],
) -> None:
    values = [b'{"k": 1, "a": %s}' % text.encode() for text in sent]
    decoder = JsonDecoder()

    decoded = both_ways(decoder, values, decoder.infer(values))

    assert decoded.bad == ()
    for text, row in zip(sent, decoded.rows.to_pylist(), strict=True):
        assert is_same({"a": parsed(text), "k": 1}, row)


@any_examples
@given(st.lists(json_texts(), min_size=1, max_size=5), st.sampled_from(KINDS))
def test_declared_json_column_gets_the_value_or_the_record_is_bad(
    sent: list[str], kind: str
) -> None:
    values = [b'{"a": %s}' % text.encode() for text in sent]
    columns = parse_ddl(f"a {kind}")

    decoded = both_ways(JsonDecoder(), values, columns)

    bad = {place for place, _ in decoded.bad}
    good = [text for place, text in enumerate(sent) if place not in bad]
    for text, row in zip(good, decoded.rows.to_pylist(), strict=True):
        assert_declared(text, row["a"], kind)


def assert_declared(text: str, value: Any, kind: str) -> None:
    exact, rounded = parsed(text), as_doubles(text)
    if kind == "float" and isinstance(value, float) and not math.isnan(value):
        assert value == pytest.approx(float(exact), rel=1e-7, abs=1e-45)
    elif kind.startswith(("map", "struct")) and isinstance(value, (dict, list)):
        for name, item in dict(value).items():
            is_double = kind.startswith("map") or name == "a"
            assert is_same((rounded if is_double else exact).get(name), item)
    elif kind.startswith("decimal") and isinstance(exact, str):
        assert Decimal(exact) == value
    else:
        assert is_same(rounded if "double" in kind else exact, value)


def as_doubles(text: str) -> Any:
    """Return a JSON text as a value whose fractions are rounded to doubles, if those hold them."""

    def fraction(written: str) -> Decimal:
        number, double = Decimal(written), float(written)
        is_lost = math.isinf(double) or (double == 0 and number != 0)
        return number if is_lost else Decimal(repr(double))

    return json.loads(text, parse_float=fraction, parse_int=Decimal)


def line(*cells: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n").encode()


@any_examples
@given(st.lists(texts, min_size=1, max_size=6))
def test_inferred_csv_column_preserves_the_text_of_every_cell(sent: list[str]) -> None:
    values = [line("1", cell) for cell in sent]
    columns = infer_columns(values, ("k", "a"), ",")
    layout = pa.schema([("k", pa.string()), ("a", pa.string())])

    decoded = both_ways(CsvDecoder(layout, inferred=True), values, columns)

    assert decoded.bad == ()
    for cell, found in zip(sent, decoded.rows.column("a").to_pylist(), strict=True):
        assert_cell(cell, found)


def assert_cell(cell: str, value: Any) -> None:
    if isinstance(value, str):
        assert value == cell
    elif isinstance(value, bool):
        assert cell.lower() == json.dumps(value)
    elif value is None:
        assert not cell
    elif not isinstance(value, (int, float)) and not hasattr(value, "as_tuple"):
        assert is_same(cell, value)
    else:
        assert is_same_number(parsed(cell), value)


@any_examples
@given(
    st.lists(texts, min_size=1, max_size=5),
    st.sampled_from([kind for kind in KINDS if "<" not in kind]),
    st.booleans(),
)
def test_both_paths_agree_on_declared_csv_columns(
    sent: list[str], kind: str, inferred: bool
) -> None:
    columns = parse_ddl(f"k bigint, a {kind}")
    values = [line("1", cell) for cell in sent]

    decoded = both_ways(CsvDecoder(columns, inferred=inferred), values, columns)

    bad = {place for place, _ in decoded.bad}
    good = [cell for place, cell in enumerate(sent) if place not in bad]
    for cell, found in zip(good, decoded.rows.column("a").to_pylist(), strict=True):
        if kind == "float" and found is not None:
            assert found == pytest.approx(float(cell), rel=1e-7, abs=1e-45, nan_ok=True)
        elif kind == "double" and found is not None:
            assert inferred is False or is_same_number(as_doubles(cell), found)
        elif inferred:
            assert_cell(cell, found)


KNOWN = pa.schema([("k", pa.int64())])
# Values that Arrow reads as one type, and others whose type is unknown.
FAMILIES = (
    ("7", "0.5", "9007199254740993", "18446744073709551615", "null"),
    ("[]", "{}", "null", "[7]", "7"),
    ('"2024-01-02"', '"2024-01-02T03:04:05"', '"2024-01-02T03:04:05Z"', "null"),
)
alike = st.tuples(
    st.sampled_from(["%s", "[%s]", '{"a": %s}', '[{"a": [%s]}]']),
    st.sampled_from(FAMILIES).flatmap(
        lambda family: st.lists(st.sampled_from(family), min_size=2, max_size=6)
    ),
).map(lambda drawn: [drawn[0] % text for text in drawn[1]])
cuts = st.lists(st.integers(0, 8), max_size=4).map(sorted)


def decoded_in_blocks(decoder: Decoder, values: list[bytes], cut: list[int]) -> list[Any]:
    """Decode values block by block, first for the columns they need, then with those columns."""
    ends = [0, *cut, len(values)]
    blocks = [values[begin:end] for begin, end in itertools.pairwise(ends) if begin < end]
    new_fields: dict[str, pa.DataType] = {}
    for block in blocks:
        new_fields = merge_fields(
            new_fields, decoder.decode(pa.array(block, pa.binary()), KNOWN).new_fields
        )
    new = new_columns(KNOWN, new_fields)
    assert new == new_columns(KNOWN, decoder.decode(pa.array(values), KNOWN).new_fields)
    rows = []
    for block in blocks:
        decoded = decoder.decode(pa.array(block), pa.schema([*KNOWN, *new.items()]))
        assert decoded.bad == ()
        rows += decoded.rows.to_pylist()
    return rows


@any_examples
@given(st.lists(json_texts(), min_size=1, max_size=8) | alike, cuts)
def test_new_json_column_does_not_depend_on_how_records_are_cut_into_blocks(
    sent: list[str], cut: list[int]
) -> None:
    values = [b'{"k": 1, "a": %s}' % text.encode() for text in sent]

    rows = decoded_in_blocks(JsonDecoder(), values, cut)

    for text, row in zip(sent, rows, strict=True):
        assert is_same({"a": parsed(text), "k": 1}, row)


@any_examples
@given(st.lists(texts, min_size=1, max_size=8) | alike, cuts)
def test_new_csv_column_does_not_depend_on_how_lines_are_cut_into_blocks(
    sent: list[str], cut: list[int]
) -> None:
    values = [line("1", cell) for cell in sent]
    decoder = HeaderDecoder(",", evolving=True, header=("k", "a"))

    rows = decoded_in_blocks(decoder, values, cut)

    for cell, row in zip(sent, rows, strict=True):
        assert_cell(cell, row["a"])
