"""Files that arrive in a folder are read once each, whatever happens to the process."""

from __future__ import annotations

import gzip
import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.quick_files import QuickFiles, quick

from icestream.contracts.registry import find
from icestream.errors import (
    BadRecordError,
    ConfigError,
    SchemaMismatchError,
)
from icestream.sources.files import FilesSource
from icestream.testing.source_suite import SourceSuite, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.decoder import Decoded, Records

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def write(path: Path, rows: list[dict[str, Any]], kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        lines = ["id,name", *(f"{row['id']},{row['name']}" for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), path, row_group_size=4)
    else:
        with path.open("wb") as file:
            fastavro.writer(file, AVRO, rows)


class Inbox:
    """A folder that gets a new file of every ten rows."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self._rows = 0

    def source(self) -> QuickFiles:
        return quick(self._folder, format=self._kind)

    def add(self, rows: int) -> None:
        for low in range(self._rows, self._rows + rows, 10):
            numbers = range(low, min(low + 10, self._rows + rows))
            made = [{"id": number, "name": f"n{number}"} for number in numbers]
            write(self._folder / f"{low:06}.{self._kind}", made, self._kind)
        self._rows += rows


GUESSED = "how many lines a file has is guessed from its size"


class TestJsonFiles(SourceSuite):
    not_held = {"exact_counts": GUESSED}

    @pytest.fixture
    def system(self, tmp_path: Path) -> Inbox:
        return Inbox(tmp_path, "json")


class TestCsvFiles(SourceSuite):
    not_held = {"exact_counts": GUESSED}

    @pytest.fixture
    def system(self, tmp_path: Path) -> Inbox:
        return Inbox(tmp_path, "csv")


class TestAvroFiles(SourceSuite):
    not_held = {"exact_counts": GUESSED}

    @pytest.fixture
    def system(self, tmp_path: Path) -> Inbox:
        return Inbox(tmp_path, "avro")


class TestParquetFiles(SourceSuite):
    @pytest.fixture
    def system(self, tmp_path: Path) -> Inbox:
        return Inbox(tmp_path, "parquet")


def everything(source: FilesSource) -> list[Any]:
    start = source.initial()
    return rows_of(source, start, source.latest(start))


def decoded(source: FilesSource, columns: pa.Schema) -> list[Decoded]:
    decoder = source.decoder()
    assert decoder is not None
    start = source.initial()
    blocks: list[Records | pa.RecordBatch] = [
        block
        for split in source.splits(start, source.latest(start), 1)
        for block in source.read(split)
    ]
    return [decoder.in_context(block.context).decode(block.values, columns) for block in blocks]


def test_files_is_found_by_name() -> None:
    assert find("sources", "files") is FilesSource


def test_record_position_has_file_and_line_number(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n\n\r\n{"id": 2}\n{"id"')

    assert everything(quick(tmp_path)) == [
        (b'{"id": 1}', f"{tmp_path}/a.json:1"),
        (b'{"id": 2}', f"{tmp_path}/a.json:4"),
        (b'{"id"', f"{tmp_path}/a.json:5"),
    ]


def test_line_longer_than_a_block_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.files.text.BLOCK_BYTES", 8)
    (tmp_path / "a.json").write_bytes(b"1\n" + b"2" * 30 + b"\n3\n")

    rows = everything(quick(tmp_path))

    assert [value for value, _ in rows] == [b"1", b"2" * 30, b"3"]
    assert [place.rpartition(":")[2] for _, place in rows] == ["1", "2", "3"]


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.json.gz", "wb") as file:
        file.write(b'{"id": 1}\n{"id": 2}\n')

    assert [value for value, _ in everything(quick(tmp_path))] == [b'{"id": 1}', b'{"id": 2}']


def test_broken_gzip_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"no gzip")

    with pytest.raises(BadRecordError) as caught:
        everything(quick(tmp_path))

    assert str(caught.value) == (
        f"file '{tmp_path}/a.json.gz' cannot be read as gzip: Not a gzipped file (b'no')\n"
        "  Fix the file, or move it out of the folder and use `icestream run --resume`."
    )


def test_batch_has_at_most_the_configured_number_of_files(tmp_path: Path) -> None:
    source = quick(tmp_path, max_files_per_batch=2)
    for number in range(5):
        (tmp_path / f"{number}.json").write_text("1\n")
    start = source.initial()
    end = source.latest(start)

    capped = source.limit(start, end, 1_000_000)

    assert len(rows_of(source, start, capped)) == 2
    assert len(rows_of(source, capped, end)) == 3


def test_csv_columns_come_from_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;name\n1;"a;b"\nx;c\n3;\n')
    source = quick(tmp_path, format="csv", options={"delimiter": ";"})

    [found] = decoded(source, COLUMNS)

    assert found.rows.to_pylist() == [{"id": 1, "name": "a;b"}, {"id": 3, "name": ""}]
    assert [place for place, _ in found.bad] == [1]
    assert [place for _, place in everything(source)] == [
        f"{tmp_path}/a.csv:{n}" for n in (2, 3, 4)
    ]


def test_csv_types_are_inferred(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,price,at,name,none\n1,2.5,2024-01-01T10:00:00Z,a,\n")
    decoder = quick(tmp_path, format="csv").decoder()
    assert decoder is not None

    header = {"header": ["id", "price", "at", "name", "none"]}
    columns = decoder.in_context(header).infer([b"1,2.5,2024-01-01T10:00:00Z,a,", None, b"too,few"])

    assert columns == pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("name", pa.string()),
            ("none", pa.string()),
        ]
    )


def test_csv_without_a_header_follows_the_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,a\n2,b\n")
    options = {"header": False}
    source = quick(tmp_path, format="csv", options=options, schema="id bigint, name string")

    [found] = decoded(source, COLUMNS)

    assert found.rows.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    with pytest.raises(ConfigError, match="csv files without a header need `schema`"):
        quick(tmp_path, format="csv", options=options)


def test_each_csv_file_is_decoded_by_its_own_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    (tmp_path / "b.csv").write_text("name,id\nb,2\n")
    (tmp_path / "c.csv").write_text("id\n3\n")
    source = quick(tmp_path, format="csv")

    found = [row for block in decoded(source, COLUMNS) for row in block.rows.to_pylist()]

    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": None},
    ]


def test_csv_column_that_appears_later_is_a_new_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,price,name\n1,2.5,a\n")

    [found] = decoded(quick(tmp_path, format="csv"), COLUMNS)
    [declared] = decoded(quick(tmp_path, format="csv", schema="id bigint, name string"), COLUMNS)

    assert found.new_fields == {"price": pa.float64()}
    assert declared.new_fields == {}


def test_csv_line_without_the_header_of_its_file_is_bad(tmp_path: Path) -> None:
    """Dead letters of earlier versions have none, and any other header may mean other columns."""
    (tmp_path / "a.csv").write_text("name,id\nb,2\n")
    decoder = quick(tmp_path, format="csv").decoder()
    assert decoder is not None

    found = decoder.in_context({}).decode(pa.array([b"1,a"], pa.binary()), COLUMNS)

    assert found.rows.num_rows == 0
    assert found.bad == (
        (0, "the header of its file is unknown: the dead letter was stored without it"),
    )


def test_csv_file_without_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,,\n1,a,b\n")

    with pytest.raises(BadRecordError) as caught:
        everything(quick(tmp_path, format="csv"))

    assert str(caught.value) == (
        f"the first line of file '{tmp_path}/a.csv', b'id,,', is not a header\n"
        "  A header has a unique name for each column. If the files have no header,\n"
        "  set `options: {header: false}` and declare the columns in `schema`."
    )


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_rows_conform_to_the_declared_schema(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a", [{"id": 1, "name": "a"}], kind)
    source = quick(tmp_path, format=kind, schema="more date, id int")

    assert everything(source) == [{"more": None, "id": 1}]


def test_only_the_schema_option_declares_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    source = quick(tmp_path, format="parquet")

    assert (source.schema(), source.declares()) == (pa.schema([("id", pa.int64())]), False)
    assert quick(tmp_path, format="parquet", schema="id bigint").declares()


def test_rows_have_the_columns_of_their_own_file_unless_declared(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "name": ["b"]}), tmp_path / "b.parquet")

    rows = everything(quick(tmp_path, format="parquet"))
    declared = everything(quick(tmp_path, format="parquet", schema="id bigint"))

    assert sorted(rows, key=lambda row: row["id"]) == [{"id": 1}, {"id": 2, "name": "b"}]
    assert sorted(row["id"] for row in declared) == [1, 2]


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_corrupt_file_is_reported(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"this is something else altogether")

    with pytest.raises(BadRecordError) as caught:
        everything(quick(tmp_path, format=kind, schema="id bigint"))

    assert caught.value.what.startswith(f"file '{tmp_path}/a' cannot be read as {kind}: ")


def test_large_parquet_file_is_split_into_tasks(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(40_000))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    source = quick(tmp_path, format="parquet")
    start = source.initial()

    splits = source.splits(start, source.latest(start), 2)

    assert [split.rows for split in splits] == [20_000, 20_000]


def test_parquet_types_become_those_of_a_table(tmp_path: Path) -> None:
    times = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", tz="Europe/Berlin"))
    odd = {
        "small": pa.array([1], pa.uint16()),
        "at": times,
        "kind": pa.array(["a"]).dictionary_encode(),
        "text": pa.array(["b"], pa.large_string()),
        "deep": pa.array([[{"n": 1}]], pa.large_list(pa.struct([("n", pa.int8())]))),
    }
    pq.write_table(pa.table(odd), tmp_path / "a.parquet")
    source = quick(tmp_path, format="parquet")

    assert source.schema() == pa.schema(
        [
            ("small", pa.int32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("kind", pa.string()),
            ("text", pa.string()),
            ("deep", pa.list_(pa.struct([("n", pa.int32())]))),
        ]
    )
    [row] = everything(source)
    assert row["at"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert (row["small"], row["kind"], row["text"], row["deep"]) == (1, "a", "b", [{"n": 1}])


def test_parquet_timestamps_outside_the_nanosecond_range_keep_their_values(tmp_path: Path) -> None:
    """Arrow reads INT96 as nanoseconds by default, in which the year 9999 becomes 1816."""
    times = [datetime(year, 12, 31, 23, 59, 59, 5) for year in (1500, 2024, 9999)]  # noqa: DTZ001
    table = pa.table({"at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)

    assert [row["at"] for row in everything(quick(tmp_path, format="parquet"))] == times


def test_incompatible_parquet_column_is_reported(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "a.parquet")

    with pytest.raises(SchemaMismatchError) as caught:
        everything(quick(tmp_path, format="parquet", schema="id bigint"))

    assert str(caught.value) == (
        f"file '{tmp_path}/a.parquet': column 'id' is string and does not fit int64: "
        'the value is "x"\n'
        "  Declare a type under `schema` that holds every value, or correct the file. "
        "The transform `cast` converts values."
    )


NANOS = pa.timestamp("ns", "UTC")


@pytest.mark.parametrize(
    ("values", "declared", "reason"),
    [
        (pa.array([0.5, 1e40]), "float", "double and does not fit float: the value is 1e+40"),
        (pa.array([16777217.0]), "float", "double and does not fit float: the value is 16777217"),
        (
            pa.array([{"n": 0.5}, {"n": 1e40}]),
            "struct<n: float>",
            "struct<n: double> and does not fit struct<n: float>: the value is {'n': 1e+40}",
        ),
        (
            pa.array([0, -1_001], NANOS),
            "timestamp",
            "timestamp[ns, tz=UTC] and does not fit timestamp[us, tz=UTC]: "
            "the value is 1969-12-31 23:59:59.999998999Z",
        ),
        (
            pa.array([0, 3_600_000_000], pa.timestamp("us")),
            "date",
            "timestamp[us] and does not fit date32[day]: the value is 1970-01-01 01:00:00.000000",
        ),
        (pa.array(["7", "007"]), "bigint", 'string and does not fit int64: the value is "007"'),
        (pa.array([1.5]), "bigint", "double and does not fit int64: the value is 1.5"),
    ],
)
def test_parquet_value_that_its_declared_type_would_change_is_reported(
    tmp_path: Path, values: pa.Array, declared: str, reason: str
) -> None:
    pq.write_table(pa.table({"c": values}), tmp_path / "a.parquet")

    with pytest.raises(SchemaMismatchError) as caught:
        everything(quick(tmp_path, format="parquet", schema=f"c {declared}"))

    assert caught.value.what == f"file '{tmp_path}/a.parquet': column 'c' is {reason}"


@pytest.mark.parametrize(
    ("values", "declared", "expected"),
    [
        (
            pa.array([0.5, 0.1, math.inf, None]),
            "float",
            [0.5, float(np.float32(0.1)), math.inf, None],
        ),
        (pa.array([1, 2], pa.int8()), "bigint", [1, 2]),
        (pa.array([1, 2]), "string", ["1", "2"]),
        (pa.array(["a", "b"]).dictionary_encode(), "string", ["a", "b"]),
        (
            pa.array([[0.1], None], pa.large_list(pa.float64())),
            "array<float>",
            [[float(np.float32(0.1))], None],
        ),
        (
            pa.array([1_000], pa.timestamp("ns")),
            "timestamp_ntz",
            [datetime(1970, 1, 1, microsecond=1)],  # noqa: DTZ001
        ),
        (pa.nulls(1), "bigint", [None]),
    ],
)
def test_parquet_values_are_cast_to_declared_types_that_hold_them(
    tmp_path: Path, values: pa.Array, declared: str, expected: list[Any]
) -> None:
    other = pa.array([1] * len(values), NANOS)
    pq.write_table(pa.table({"c": values, "not_declared": other}), tmp_path / "a.parquet")

    rows = everything(quick(tmp_path, format="parquet", schema=f"c {declared}"))

    assert [row["c"] for row in rows] == expected


def test_avro_value_that_its_declared_type_would_change_is_reported(tmp_path: Path) -> None:
    fields = [{"name": "c", "type": "double"}]
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, [{"c": 1e40}])

    with pytest.raises(SchemaMismatchError) as caught:
        everything(quick(tmp_path, format="avro", schema="c float"))

    assert caught.value.what == (
        f"file '{tmp_path}/a.avro': column 'c' is double and does not fit float: the value is 1e+40"
    )


def test_undeclared_times_before_1970_are_truncated_like_others(tmp_path: Path) -> None:
    times = pa.array([-1, 1_999], pa.timestamp("ns"))
    pq.write_table(pa.table({"at": times}), tmp_path / "a.parquet")

    assert [row["at"].isoformat() for row in everything(quick(tmp_path, format="parquet"))] == [
        "1969-12-31T23:59:59.999999",
        "1970-01-01T00:00:00.000001",
    ]


def test_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["c", "c"])
    pq.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(SchemaMismatchError) as caught:
        everything(quick(tmp_path, format="parquet", schema="c bigint"))

    assert str(caught.value) == (
        f"file '{tmp_path}/a.parquet': two columns are called 'c'\n"
        "  Give every column a name of its own."
    )


def test_columns_are_unknown_before_the_folder_exists(tmp_path: Path) -> None:
    assert quick(tmp_path / "in", format="parquet").schema() is None
    assert quick(tmp_path, format="parquet").schema() is None
