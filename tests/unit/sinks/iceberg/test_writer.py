"""Data files as tasks write them: readable by anyone, one set a partition, or none at all."""

from __future__ import annotations

import pickle
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from tests.fixtures.table_folder import MB, TableFolder, batch, path_of, rows_of

from icestream.errors import SchemaMismatchError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg import writer as writer_module
from icestream.sinks.iceberg.writer import WriteSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.schema import Schema

    from icestream.contracts.sink import WrittenFile

UTC = timezone.utc


@pytest.fixture
def place(tmp_path: Path) -> TableFolder:
    return TableFolder(tmp_path / "table")


def bounds(file: WrittenFile, which: str) -> dict[int, bytes]:
    found = file.metadata[which]
    return {
        key: bytes.fromhex(value) for key, value in zip(found["keys"], found["values"], strict=True)
    }


def counts(file: WrittenFile, which: str) -> dict[int, int]:
    found = file.metadata[which]
    return dict(zip(found["keys"], found["values"], strict=True))


def field_ids(field: pa.Field) -> dict[str, Any]:
    kind = field.type
    inner: list[pa.Field] = []
    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inner = [kind.value_field]
    elif pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    number = int((field.metadata or {}).get(b"PARQUET:field_id", b"-1"))
    return {field.name: number, **{k: v for each in inner for k, v in field_ids(each).items()}}


def test_file_has_the_field_ids_of_the_table_at_every_level(place: TableFolder) -> None:
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int32())),
        ]
    )
    row = {"id": 1, "at": {"lat": 1.5, "name": "x"}, "tags": ["a", None], "counts": [("k", 2)]}
    nothing = dict.fromkeys(columns.names)
    [file] = place.writer(columns).write([batch(columns, row, nothing)])

    found = pq.ParquetFile(path_of(file)).schema_arrow
    assert [field_ids(field) for field in found] == [
        {"id": 1},
        {"at": 2, "lat": 5, "name": 6},
        {"tags": 3, "element": 7},
        {"counts": 4, "key": 8, "value": 9},
    ]
    assert rows_of(file) == [row, nothing]
    assert (file.rows, file.bytes) == (2, path_of(file).stat().st_size)
    assert file.metadata["record-count"] == 2
    assert file.metadata["file-size-in-bytes"] == file.bytes
    assert counts(file, "null-value-counts")[1] == 1
    assert file.metadata["split-offsets"] == [4]


def test_missing_column_is_null_even_inside_structs(place: TableFolder) -> None:
    table = pa.schema(
        [("id", pa.int64()), ("at", pa.struct([("x", pa.int64()), ("y", pa.string())]))]
    )
    rows = pa.schema([("at", pa.struct([("y", pa.string())]))])
    [file] = place.writer(table).write([batch(rows, {"at": {"y": "a"}}, {"at": None})])

    assert rows_of(file) == [{"id": None, "at": {"x": None, "y": "a"}}, {"id": None, "at": None}]


def test_narrower_and_sliced_columns_are_widened_in_place(place: TableFolder) -> None:
    table = pa.schema(
        [
            ("n", pa.int64()),
            ("d", pa.decimal128(20, 2)),
            ("l", pa.list_(pa.float64())),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("t", pa.timestamp("us", tz="UTC")),
        ]
    )
    stream = pa.schema(
        [
            ("m", pa.map_(pa.string(), pa.int32())),
            ("t", pa.timestamp("ns", tz="UTC")),
            ("l", pa.large_list(pa.float32())),
            ("d", pa.decimal128(9, 2)),
            ("n", pa.int32()),
        ]
    )
    moment = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
    first = {"n": 1, "d": Decimal("-1.50"), "l": [0.5], "m": [("a", 1)], "t": moment}
    second = {"n": -2, "d": Decimal("2.25"), "l": [1.5, None], "m": [("b", 2), ("c", 3)], "t": None}
    third = {"n": None, "d": None, "l": None, "m": None, "t": moment}
    whole = batch(stream, first, second, third)
    [file] = place.writer(table).write([whole.slice(1), whole.slice(0, 1)])

    assert rows_of(file) == [second, third, first]


def test_row_without_a_value_that_the_table_requires_is_refused(place: TableFolder) -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    rows = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pytest.raises(SchemaMismatchError) as caught:
        place.writer(table).write([batch(rows, {"id": 1}), batch(rows, {"id": None, "name": "a"})])

    assert str(caught.value) == (
        "column 'id' is required by the table, and a row has no value for it\n"
        "  Leave such rows out with a `filter` transform, or make the column optional."
    )
    assert place.files() == []


def test_names_that_files_cannot_have_are_kept_by_field_id(place: TableFolder) -> None:
    columns = pa.schema(
        [
            ("order id", pa.int64()),
            ("größe", pa.string()),
            ("a.b", pa.struct([("c-d", pa.int32())])),
        ]
    )
    rows = [{"order id": n, "größe": "L", "a.b": {"c-d": n % 2}} for n in range(4)]
    schema = arrow_to_iceberg(columns, 3)
    spec = PartitionSpec(
        PartitionField(
            source_id=schema.find_field("a.b.c-d").field_id,
            field_id=1000,
            transform=IdentityTransform(),
            name="odd or even",
        )
    )
    files = place.writer(columns, spec=spec).write([batch(columns, *rows)])

    assert len(files) == 2
    for file in files:
        found = pq.ParquetFile(path_of(file)).schema_arrow
        assert [list(field_ids(field).values()) for field in found] == [[1], [2], [3, 4]]
        assert [value["order_x20id"] % 2 for value in rows_of(file)] == 2 * [
            file.metadata["partition"]["1000"]
        ]


def test_file_is_closed_past_the_target_size(place: TableFolder) -> None:
    columns = pa.schema([("text", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            yield batch(columns, *[{"text": f"{number}-{n}".ljust(100, "x")} for n in range(1_000)])

    files = place.writer(columns, target=MB, codec="none").write(batches())

    assert sum(file.rows for file in files) == 40_000
    assert 3 <= len(files) <= 8
    assert all(file.bytes < 2 * MB for file in files)
    assert sorted(path_of(file) for file in files) == place.files()
    assert len({path_of(file).name for file in files}) == len(files)


def test_rows_of_a_partition_keep_their_order(place: TableFolder) -> None:
    columns = pa.schema([("n", pa.int64()), ("half", pa.int64())])
    many = [
        batch(columns, *[{"n": n, "half": n % 3} for n in range(s, s + 50_000)])
        for s in (0, 50_000)
    ]
    files = place.writer(columns, "half", sort_order_id=7).write(many)

    for file in files:
        numbers = [row["n"] for row in rows_of(file)]
        assert numbers == sorted(numbers)
        assert file.metadata["sort-order-id"] == 7
    assert sum(file.rows for file in files) == 100_000


def test_many_partitions_keep_few_files_open_and_create_one_file_each(
    place: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = _count_open_writers(monkeypatch)
    columns = pa.schema([("n", pa.int64()), ("key", pa.int64())])
    batches = [batch(columns, *[{"n": n, "key": n} for n in range(500)]) for _ in range(4)]
    files = place.writer(columns, "key").write(batches)

    assert len(files) == 500, "rows of one partition wait for each other"
    assert sum(file.rows for file in files) == 2_000
    assert max(most) <= writer_module.OPEN_FILES


def test_open_files_are_limited_while_buffers_overflow(
    place: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = _count_open_writers(monkeypatch)
    monkeypatch.setattr(writer_module, "OPEN_FILES", 5)
    monkeypatch.setattr(writer_module, "BUFFERED_BYTES", 1_000)
    columns = pa.schema([("n", pa.int64()), ("key", pa.int64())])
    batches = [batch(columns, *[{"n": n, "key": n % 50} for n in range(1_000)]) for _ in range(4)]
    files = place.writer(columns, "key").write(batches)

    assert sum(file.rows for file in files) == 4_000
    assert max(most) == 5


def _count_open_writers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = [0]
    original = writer_module.IcebergWriter._open

    def counted(self: Any, key: Any) -> Any:
        made = original(self, key)
        seen.append(len(self._open_files))
        return made

    monkeypatch.setattr(writer_module.IcebergWriter, "_open", counted)
    return seen


def test_interrupted_write_leaves_no_file(place: TableFolder) -> None:
    columns = pa.schema([("text", pa.string()), ("key", pa.int64())])

    class SourceBrokeError(Exception):
        pass

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(4):
            yield batch(columns, *[{"text": "x" * 1_000, "key": n % 3} for n in range(3_000)])
        assert place.files(), "files were begun and ended by then"
        raise SourceBrokeError

    with pytest.raises(SourceBrokeError):
        place.writer(columns, "key", target=MB, codec="none").write(batches())

    assert place.files() == []


def test_failing_codec_leaves_no_file(place: TableFolder) -> None:
    columns = pa.schema([("n", pa.int64())])
    writer = place.writer(columns)
    writer._settings = WriteSettings("gzip", 99, MB)
    with pytest.raises(OSError, match="deflateInit"):
        writer.write([batch(columns, {"n": 1})])

    assert place.files() == []


def test_no_rows_create_no_file(place: TableFolder) -> None:
    columns = pa.schema([("n", pa.int64())])

    assert place.writer(columns).write([]) == []
    assert place.writer(columns).write([batch(columns)]) == []
    assert place.writer(columns, "bucket(4, n)").write([batch(columns)]) == []
    assert place.files() == []


def test_pickled_writer_uses_new_file_names_in_each_attempt(place: TableFolder) -> None:
    columns = pa.schema([("n", pa.int64())])
    writer = place.writer(columns)
    copy = pickle.loads(pickle.dumps(writer))  # noqa: S301 - our own bytes
    once, again = copy.write([batch(columns, {"n": 1})]), copy.write([batch(columns, {"n": 1})])

    assert path_of(once[0]) != path_of(again[0])
    assert len(place.files()) == 2
    assert pickle.loads(pickle.dumps(once)) == once  # noqa: S301 - our own bytes


def test_bounds_are_the_minimum_and_maximum(place: TableFolder) -> None:
    columns = pa.schema(
        [
            ("n", pa.int64()),
            ("d", pa.decimal128(38, 10)),
            ("t", pa.timestamp("us", tz="UTC")),
            ("s", pa.string()),
            ("day", pa.date32()),
        ]
    )
    early = datetime(1900, 1, 1, tzinfo=UTC)
    early + timedelta(days=1)
    rows = [
        {"n": -5, "d": Decimal("-1E+5"), "t": early, "s": "b" * 40, "day": date(1900, 1, 1)},
        {
            "n": 7,
            "d": Decimal("0.0000000001"),
            "t": early + timedelta(days=1),
            "s": "a",
            "day": None,
        },
    ]
    [file] = place.writer(columns).write([batch(columns, *rows)])

    schema: Schema = arrow_to_iceberg(columns, 3)
    low, high = bounds(file, "lower-bounds"), bounds(file, "upper-bounds")
    read: dict[str, tuple[Any, Any]] = {
        field.name: (
            from_bytes(field.field_type, low[field.field_id]),  # type: ignore[arg-type]
            from_bytes(field.field_type, high[field.field_id]),  # type: ignore[arg-type]
        )
        for field in schema.fields
    }
    assert read["n"] == (-5, 7)
    assert read["d"] == (Decimal("-100000.0000000000"), Decimal("0.0000000001"))
    assert read["t"] == (-2208988800000000, -2208902400000000)
    assert read["day"] == (-25567, -25567)
    assert read["s"][0] == "a"
    assert read["s"][1] == "b" * 15 + "c", "cut to 16 characters, it must not fall below the value"
    assert counts(file, "null-value-counts") == {1: 0, 2: 0, 3: 0, 4: 0, 5: 1}
    assert counts(file, "value-counts") == dict.fromkeys(range(1, 6), 2)


def test_nan_does_not_affect_the_bounds(place: TableFolder) -> None:
    columns = pa.schema([("some", pa.float64()), ("all", pa.float64()), ("no", pa.float64())])
    nan = float("nan")
    [file] = place.writer(columns).write(
        [batch(columns, {"some": nan, "all": nan}, {"some": -2.5, "all": nan}, {"some": 1.0})]
    )

    assert bounds(file, "lower-bounds") == {1: struct.pack("<d", -2.5)}
    assert bounds(file, "upper-bounds") == {1: struct.pack("<d", 1.0)}
    assert counts(file, "null-value-counts") == {1: 0, 2: 1, 3: 3}
