from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.errors import PlanError
from icestream.formats.csv import CsvDecoder
from icestream.formats.ddl import parse_ddl
from icestream.formats.lookup import make_decoder, read_schema
from icestream.formats.text import BytesDecoder, StringDecoder
from icestream.sources.files.text import HeaderDecoder, infer_columns

if TYPE_CHECKING:
    from pathlib import Path

UTC = timezone.utc
LAYOUT = parse_ddl("id bigint, name string, on date")


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_csv_cells_become_columns_in_the_requested_order() -> None:
    requested = pa.schema([LAYOUT.field("on"), LAYOUT.field("id"), pa.field("other", pa.int64())])

    decoded = CsvDecoder(LAYOUT).decode(binary(b'1,"a,b",2024-01-02', b"2,,"), requested)

    assert decoded.rows.to_pylist() == [
        {"on": date(2024, 1, 2), "id": 1, "other": None},
        {"on": None, "id": 2, "other": None},
    ]
    assert decoded.bad == ()


def test_bad_csv_lines_are_reported_and_do_not_affect_their_neighbours() -> None:
    values = binary(
        b"1,a,", b"x,a,", b"2,b", b"", None, b'3,"c', b"4,d,\n5,e,", b'6,"f\ng",', b"7,\xff,"
    )

    decoded = CsvDecoder(LAYOUT).decode(values, LAYOUT)

    assert decoded.rows.column("id").to_pylist() == [1, 6]
    assert decoded.rows.column("name").to_pylist() == ["a", "f\ng"]
    assert decoded.bad == (
        (1, "column 'id': 'x' is not a bigint"),
        (2, "not CSV: expected 3 cells, got 2"),
        (3, "not CSV: expected 3 cells, got 0"),
        (4, "no value"),
        (5, "not CSV: unclosed quote, or more than one line"),
        (
            6,
            "not CSV: unclosed quote, or more than one line",
        ),
        (8, "not CSV: byte 0xff at position 2 is not UTF-8 text; is its text in another encoding?"),
    )


def decode_cell(cell: bytes, kind: str, *, inferred: bool = False) -> Any:
    """Decode one cell on the fast path and on the slow path, which must agree."""
    layout = parse_ddl(f"k string, a {kind}")
    decoder = CsvDecoder(layout, inferred=inferred)
    fast = decoder.decode(binary(b"x," + cell), layout)
    slow = decoder.decode(binary(b'x,"' + cell + b'"', b"\xff"), layout)
    assert fast.bad == slow.bad[:-1]
    assert fast.rows.to_pylist() == slow.rows.to_pylist()
    return fast.bad[0][1] if fast.bad else fast.rows.column("a")[0].as_py()


@pytest.mark.parametrize(
    ("cell", "kind", "declared", "inferred"),
    [
        (b"123", "bigint", 123, 123),
        (b"00123", "bigint", 123, "column 'a': '00123' is not a bigint"),
        (b"+5", "bigint", 5, "column 'a': '+5' is not a bigint"),
        (b" 7 ", "bigint", 7, "column 'a': ' 7 ' is not a bigint"),
        (b"0x10", "bigint", *["column 'a': '0x10' is not a bigint"] * 2),
        (b"1_000", "bigint", *["column 'a': '1_000' is not a bigint"] * 2),
        (b"inf", "double", float("inf"), "column 'a': 'inf' is not a double"),
        (b"1e40", "float", *["column 'a': 1E+40 is not a float: its value would change"] * 2),
        (
            b"9007199254740993",
            "double",
            *["column 'a': 9007199254740993 is not a double: its value would change"] * 2,
        ),
        (
            b"1e-999999999",
            "decimal(10,2)",
            *["column 'a': 1E-999999999 is not a decimal(10,2)"] * 2,
        ),
        (
            b"4e20",
            "decimal(38,18)",
            *["column 'a': 4E+20 is not a decimal(38,18)"] * 2,
        ),
        (b"4e38", "decimal(38,0)", *["column 'a': 4E+38 is not a decimal(38,0)"] * 2),
        (b"4e8", "decimal(10,0)", *[Decimal("4e8")] * 2),
        (
            b"250000000000000000000000000000000000000",
            "decimal(38,0)",
            *["column 'a': 250000000000000000000000000000000000000 is not a decimal(38,0)"] * 2,
        ),
        (
            b"85070591730234615865843651857942052864.8",
            "decimal(38,0)",
            *["column 'a': 85070591730234615865843651857942052864.8 is not a decimal(38,0)"] * 2,
        ),
        (b"TRUE", "boolean", True, True),
        (b"1", "boolean", True, "column 'a': '1' is not a boolean"),
        (b"2024-01-02T03:04:05", "timestamp", *[datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)] * 2),
        (b"", "string", "", ""),
        (b"", "bigint", None, None),
    ],
)
def test_cell_of_a_declared_and_of_an_inferred_column(
    cell: bytes, kind: str, declared: Any, inferred: Any
) -> None:
    assert decode_cell(cell, kind) == declared
    assert decode_cell(cell, kind, inferred=True) == inferred


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-20", ""], "bigint"),
        (["1", "00123"], "string"),
        (["1", "+5"], "string"),
        (["1", "true"], "string"),
        (["1", "18446744073709551615"], "decimal(38,0)"),
        (["0.5", "9007199254740993"], "string"),
        (["0.5", "nan"], "string"),
        (["0.5", "1e3"], "double"),
        (["true", "False"], "boolean"),
        (["12:30:00"], "time"),
        (["2024-01-02"], "date"),
        (["2024-01-02T03:04:05.1234567"], "string"),
        (["2024-01-02T03:04:05Z"], "timestamp"),
        (["", ""], "string"),
    ],
)
def test_inferred_type_preserves_the_text_of_every_cell(cells: list[str], kind: str) -> None:
    lines = [f"x,{cell}".encode() for cell in [*cells, ""]]

    assert infer_columns(lines, ("k", "a"), ",") == parse_ddl(f"k string, a {kind}")


def test_empty_cell_of_a_required_column_is_bad() -> None:
    layout = parse_ddl("id bigint NOT NULL, name string")

    decoded = CsvDecoder(layout).decode(binary(b"1,a", b",b"), layout)

    assert decoded.rows.to_pylist() == [{"id": 1, "name": "a"}]
    assert decoded.bad == ((1, "column 'id': no value, and it is required"),)


def test_utf8_is_kept_and_other_bytes_are_bad() -> None:
    decoder = StringDecoder()

    decoded = decoder.decode(binary(b"a", b"\xff", None, b""), decoder.infer([]))

    assert decoded.rows.to_pydict() == {"value": ["a", None, ""]}
    assert decoded.bad == (
        (1, "not text: byte 0xff at position 0 is not UTF-8 text; is it compressed, or Avro?"),
    )
    assert decoded.kept is not None
    assert decoded.kept.to_pylist() == [0, 2, 3]


def test_text_that_does_not_fit_its_column_is_bad() -> None:
    columns = parse_ddl("value bigint not null")

    decoded = StringDecoder().decode(binary(b"1", b"x", None, b"4"), columns)

    assert decoded.rows.to_pylist() == [{"value": 1}, {"value": 4}]
    assert decoded.bad == (
        (1, "column 'value': 'x' is not a bigint"),
        (2, "column 'value': no value, and it is required"),
    )


def test_bytes_are_kept_unchanged() -> None:
    decoder = BytesDecoder()

    decoded = decoder.decode(binary(b"a", b"\xff", None), decoder.infer([]))

    assert decoded.rows.to_pydict() == {"value": [b"a", b"\xff", None]}
    assert decoded.bad == ()


@pytest.mark.parametrize("ending", ["ddl", "avsc"])
def test_schema_is_read_from_a_file(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"orders.{ending}"
    avro = '{"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}]}'
    file.write_text("id bigint" if ending == "ddl" else avro)

    assert read_schema(str(file)).columns == parse_ddl("id bigint")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no/such.avsc", "schema: file 'no/such.avsc' can't be read: no such file or directory"),
        (
            '{"type": "enum"}',
            "schema: the Avro schema is not a record\n  Its outermost part must be "
            '`{"type": "record", "fields": [...]}`.',
        ),
        ('{"type": "record"}', "schema: the Avro schema is incomplete: 'fields'"),
    ],
)
def test_unreadable_schema_is_reported(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_schema(text)
    assert str(caught.value) == message


def test_format_without_its_schema_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        make_decoder("csv")
    assert str(caught.value) == (
        "format 'csv' needs a schema, and none is given\n"
        "  Add e.g. `schema: id bigint, name string`: a line alone has no names."
    )
    with pytest.raises(PlanError) as caught:
        make_decoder("avro", schema=read_schema("id bigint"))
    assert str(caught.value) == (
        "format 'avro' needs an Avro schema or a schema registry, and neither is given\n"
        "  Add e.g. `schema: orders.avsc`, or `schema_registry: {url: ...}`."
    )


def test_format_of_changes_has_no_row_decoder() -> None:
    with pytest.raises(PlanError) as caught:
        make_decoder("debezium-json")
    assert str(caught.value) == "format 'debezium-json' gives changes to tables, not rows"


def test_only_the_cells_of_new_columns_are_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    inferred: list[str] = []

    def record_cell(cell: str) -> pa.DataType:
        inferred.append(cell)
        return pa.int64()

    monkeypatch.setattr("icestream.formats.csv.cell_type", record_cell)
    decoder = HeaderDecoder(",", evolving=True, header=("id", "new", "name"))
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])

    decoded = decoder.decode(binary(b"1,2,a", b"short", b"3,4,b"), columns)

    assert decoded.new_fields == {"new": pa.int64()}
    assert inferred == ["2", "4"]
