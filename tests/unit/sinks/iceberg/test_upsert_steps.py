"""The passes of an upsert in tasks, without a JVM: the same rows however small its pieces are."""

from __future__ import annotations

import pickle
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from tests.fixtures.table_folder import TableFolder, rows_of

from icestream.contracts.changes import TOMBSTONE, UNCHANGED_COLUMNS
from icestream.plan.spark_settings import KEEP_FACTOR, ROWS_PER_GIB
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg.commit import written_paths
from icestream.sinks.iceberg.java import LiveFile
from icestream.sinks.iceberg.partition_terms import parse_sort_term
from icestream.sinks.iceberg.upsert import key_index, matching, staging, table_rows
from icestream.sinks.iceberg.upsert.fingerprints import fingerprints
from icestream.sinks.iceberg.upsert.key_index import IndexSettings
from icestream.sinks.iceberg.upsert.latest_changes import NOWHERE, OLDEST, find_latest_changes
from icestream.sinks.iceberg.upsert.matching import MatchResult, MatchTask
from icestream.sinks.iceberg.upsert.staging import (
    KeySettings,
    StagingWriter,
    read_chunks,
    read_staged_rows,
    unchanged_flags,
)
from icestream.sinks.iceberg.upsert.writing import ChunkRows, Donors, WriteTask
from icestream.sinks.iceberg.writer import map_concurrently

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.schema import Schema

    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.upsert.latest_changes import LatestChanges
    from icestream.sinks.iceberg.upsert.table_rows import TableRowsFile

COLUMNS = pa.schema([("id", pa.string()), ("at", pa.int64()), ("text", pa.string())])
STREAM = pa.schema(
    [*COLUMNS, pa.field("op", pa.string()), pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))]
)
KEYS = KeySettings(fields=("id",), sequence="at", op="op")
SCHEMA: Schema = arrow_to_iceberg(COLUMNS, 3)
LARGE = "x" * 5_000


def change(key: str, at: int, text: str | None, **rest: Any) -> dict[str, Any]:
    return {"id": key, "at": at, "text": text, "op": "u", **rest}


CHANGES = [
    *(change(f"k{n:03}", n, f"text {n} " + "y" * (n % 50)) for n in range(100)),
    change("k005", 200, LARGE),
    change("k006", 201, None, **{UNCHANGED_COLUMNS: ["text"]}),  # from the change of k006 before it
    change("k200", 202, None, **{UNCHANGED_COLUMNS: ["text"]}),  # from the table
    change("k201", 203, None, **{UNCHANGED_COLUMNS: ["text"]}),  # of which the table has no row
    change("k007", 204, None, op="d"),
    change(
        "k090", 205, None, **{UNCHANGED_COLUMNS: ["text"]}
    ),  # from a row that is not in the first piece
]


def stage(folder: Path, rows: list[dict[str, Any]], rows_a_batch: int = 30) -> list[WrittenFile]:
    folder.mkdir(exist_ok=True)
    writer = StagingWriter(
        schema=SCHEMA.model_dump_json(), keys=KEYS, folder=str(folder), io_properties={}
    )
    table = pa.Table.from_pylist(rows, schema=STREAM)
    return writer.write(table.to_batches(max_chunksize=rows_a_batch))


def written(folder: Path, files: list[WrittenFile], most: int, *, in_order: bool) -> list[Any]:
    """Write what the newest changes make of the rows, with one old row of the table."""
    chunks = read_chunks(files, {})
    batch = find_latest_changes(chunks)
    counts = np.flatnonzero(~batch.deletes)
    place = batch.address.row[counts]
    order = np.argsort(place, kind="stable")
    task = WriteTask(
        chunks=tuple(chunk.path for chunk in chunks),
        writer=TableFolder(folder / "table").writer(COLUMNS),
        table_rows=old_row(folder, batch),
        order=(parse_sort_term("text desc"),) if in_order else (),
        io_properties={},
        max_bytes=most,
    )
    keys = counts[order]
    return task(ChunkRows(0, keys, place[order], None, Donors.of(batch, keys)))


def old_row(folder: Path, batch: LatestChanges) -> tuple[TableRowsFile, ...]:
    """Let the table hold a row of k200, and some of keys that the batch lacks the values of not."""
    path = folder / "old.parquet"
    columns = [
        column.with_metadata({"PARQUET:field_id": str(number)})
        for number, column in enumerate(COLUMNS, 1)
    ]
    rows = [{"id": f"k{n}", "at": 0, "text": f"old {n}"} for n in range(195, 201)]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), path, row_group_size=2)
    found = table_rows.TableRows(
        load_file_io({}, str(path)), SCHEMA.select("text"), str(folder / "old.arrow")
    )
    key = int(np.flatnonzero(batch.low == key_of("k200"))[0])
    found.read_rows(str(path), np.array([key]), np.array([5]))
    file = found.close()
    assert file is not None
    return (file,)


def key_of(key: str) -> int:
    return int(fingerprints([pa.array([key])]).low[0])


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("most", [1, 300, 4_000, 256 << 20])
def test_rows_are_the_same_in_chunks_of_any_size(
    most: int, in_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GROUP_BYTES", most)
    files = written(tmp_path, stage(tmp_path / "staged", CHANGES), most, in_order=in_order)

    rows = [row for file in files for row in rows_of(file)]
    expected: dict[str, str | None] = {
        f"k{n:03}": f"text {n} " + "y" * (n % 50) for n in range(100)
    }
    expected |= {"k005": LARGE, "k200": "old 200", "k201": None}
    del expected["k007"]
    assert {row["id"]: row["text"] for row in rows} == expected
    assert len(rows) == len(expected)
    if not in_order:
        assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
        assert len(files) == 1
    else:
        for file in files:
            texts = [row["text"] for row in rows_of(file)]
            assert texts == sorted(texts, key=lambda text: text or "", reverse=True)
    assert (len(files) > 1) == (in_order and most < 10_000)


def test_staged_rows_are_read_in_chunks_below_the_bound(tmp_path: Path) -> None:
    (file,) = stage(tmp_path / "staged", CHANGES)
    found = list(read_staged_rows(file.metadata["file-path"], {}, max_bytes=1_000))

    assert [first for first, _ in found] == list(
        np.cumsum([0, *(rows.num_rows for _, rows in found)])[:-1]
    )
    assert sum(rows.num_rows for _, rows in found) == len(CHANGES)
    assert all(rows.nbytes <= 1_000 or rows.num_rows == 1 for _, rows in found)
    some = list(read_staged_rows(file.metadata["file-path"], {}, ["at", "id"]))
    assert [rows.schema.names for _, rows in some] == [["at", "id"]]


@pytest.mark.parametrize("is_many", [False, True])
def test_many_keys_of_staged_rows_are_stored_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_many: bool
) -> None:
    if is_many:
        monkeypatch.setattr(staging, "REPORT_BYTES", 5_000 * 24)
    rows = [change(f"key {n}", n, "text") for n in range(5_000)]
    (file,) = stage(tmp_path / "staged", rows)

    assert (len(pickle.dumps(file)) < 1_000) == is_many
    assert len(list((tmp_path / "staged").iterdir())) == len(written_paths([file])) == 1 + is_many
    (chunk,) = read_chunks([file], {})
    whole = fingerprints([pa.array([row["id"] for row in rows])])
    assert (chunk.keys.low == whole.low).all()
    assert chunk.keys.high is not None
    assert whole.high is not None
    assert (chunk.keys.high == whole.high).all()
    assert chunk.sequence is not None
    assert chunk.sequence.tolist() == list(range(5_000))
    assert not chunk.deletes.any()
    assert chunk.path == file.metadata["file-path"]


def test_items_are_processed_concurrently_and_a_failed_one_stops_no_other() -> None:
    both = threading.Barrier(2)

    def meet(item: int) -> int:
        both.wait(timeout=30)  # passes only if two are worked on at once
        return -item

    assert map_concurrently([2, 3], meet) == [-2, -3]
    done: list[int] = []

    def delete(item: int) -> None:
        if item == 0:
            raise OSError("the store is away")
        done.append(item)

    with pytest.raises(OSError, match="the store is away"):
        map_concurrently(range(1_000), delete)
    assert sorted(done) == list(range(1, 1_000))


def test_keys_of_a_task_of_the_upsert_benchmark_need_no_file(tmp_path: Path) -> None:
    rows = [change(f"key {n}", n, "text") for n in range(25_000)]
    (file,) = stage(tmp_path / "staged", rows, rows_a_batch=25_000)
    assert written_paths([file]) == [file.metadata["file-path"]]


def test_unchanged_columns_are_found_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = [["b", "a"], None, [], ["c", "b"]]
    batch = pa.RecordBatch.from_pydict({UNCHANGED_COLUMNS: pa.array(lists, pa.list_(pa.string()))})
    # One comparison for each column would read every name as often as there are columns.
    monkeypatch.delattr(pc, "equal")
    found = {name: np.flatnonzero(flags).tolist() for name, flags in unchanged_flags(batch).items()}
    assert found == {"a": [0], "b": [0, 3], "c": [3]}
    assert unchanged_flags(batch.slice(1, 2)) == {}
    assert {name: list(flags) for name, flags in unchanged_flags(batch.slice(1)).items()} == {
        "b": [False, False, True],
        "c": [False, False, True],
    }


def test_only_documented_values_of_the_op_field_delete_a_row() -> None:
    ops = ["d", "Delete", "deleted", "tombstone", TOMBSTONE, "t", "u", None]
    rows = [{"id": "a", "op": op} for op in ops]
    batch = pa.RecordBatch.from_pylist(rows, schema=STREAM)
    assert staging.delete_flags(batch, "op").tolist() == [True] * 3 + [False] * 5


def test_columns_omitted_together_share_their_flags(tmp_path: Path) -> None:
    both = {UNCHANGED_COLUMNS: ["text", "at"]}
    settings = KeySettings(fields=("id",), op="op")
    (tmp_path / "staged").mkdir()
    writer = StagingWriter(
        schema=SCHEMA.model_dump_json(),
        keys=settings,
        folder=str(tmp_path / "staged"),
        io_properties={},
    )
    rows = [change("a", 1, "t"), {**change("b", 2, None), **both}]
    (file,) = writer.write(pa.Table.from_pylist(rows, schema=STREAM).to_batches())
    (chunk,) = read_chunks([file], {})
    assert chunk.unchanged["at"] is chunk.unchanged["text"]
    assert {name: flags.tolist() for name, flags in chunk.unchanged.items()} == {
        "at": [False, True],
        "text": [False, True],
    }


def test_index_of_keys_is_the_same_however_few_rows_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [pa.field("id", pa.string(), metadata={"PARQUET:field_id": "1"})]
    path = tmp_path / "data.parquet"
    rows = [{"id": None if n % 7 == 0 else f"k{n}"} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), path, row_group_size=40)
    file = LiveFile(str(path), 100, 1_000, {"file-format": "parquet"})
    keys = find_latest_changes([chunk_of(tmp_path, [f"k{n}" for n in range(0, 120, 5)])]).keys()

    found = []
    for count in (65_536, 3):
        monkeypatch.setattr(key_index, "ROWS_READ_AT_ONCE", count)
        settings = IndexSettings((1,), None, str(tmp_path / f"keys {count}"), {})
        hits = key_index.find_keys(file, keys, settings)
        found.append(sorted(zip(hits.keys.tolist(), hits.positions.tolist(), strict=True)))
    assert found[0] == found[1]
    assert {position for _, position in found[0]} == {
        n for n in range(100) if n % 5 == 0 and n % 7 != 0
    }


def chunk_of(folder: Path, keys: list[str]) -> staging.StagedChunk:
    (file,) = stage(folder / "of keys", [change(key, 0, None) for key in keys])
    return read_chunks([file], {})[0]


def test_driver_uses_less_memory_per_row_than_batches_are_sized_for(tmp_path: Path) -> None:
    count = 50_000
    rows = [change(f"key {n}", n, None) for n in range(count)]
    (file,) = stage(tmp_path / "staged", rows, rows_a_batch=count)
    tracemalloc.start()
    try:
        find_latest_changes(read_chunks([file], {})).keys()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most / count < (1 << 30) / ROWS_PER_GIB / 4


def test_unchanged_value_of_a_single_row_may_have_no_donor(tmp_path: Path) -> None:
    (file,) = stage(tmp_path / "staged", [change("a", 1, None, **{UNCHANGED_COLUMNS: ["text"]})])
    batch = find_latest_changes(read_chunks([file], {})).without_outdated(
        np.array([9]), np.array([OLDEST])
    )
    assert Donors.of(batch, np.array([0])).by_column["text"].tolist() == [NOWHERE]


def test_columns_missing_from_records_take_few_bytes_per_row() -> None:
    count, columns = 20_000, 50
    chance = np.random.default_rng(count)
    chunk = staging.StagedChunk(
        path="",
        keys=fingerprints([pa.array(np.arange(count))]),
        deletes=np.zeros(count, np.bool_),
        sequence=np.arange(count),
        unchanged={f"c{n}": chance.random(count) < 0.5 for n in range(columns)},
    )
    tracemalloc.start()
    try:
        batch = find_latest_changes([chunk]).without_outdated(None, np.full(count, OLDEST))
        halves = np.array_split(np.arange(len(batch)), 2)
        pieces = [Donors.of(batch, keys) for keys in halves]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most / count < 150 + 16 * columns < (1 << 30) / ROWS_PER_GIB * KEEP_FACTOR
    # A task gets the numbers of its own keys alone.
    sizes = [len(pickle.dumps(piece)) for piece in pieces]
    assert max(sizes) < len(halves[0]) * 4 * columns + 10_000


def test_many_matched_keys_are_sent_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matched = MatchResult(
        np.array([3, 1]), np.array([30, -1]), np.array([2]), referenced_files=["a file"]
    )
    io = load_file_io({}, str(tmp_path))
    path = str(tmp_path / "found.keys")
    assert matched.spill(io, path) is matched

    monkeypatch.setattr(matching, "KEYS_PER_REPORT", 2)
    stored = matched.spill(io, path)
    assert (len(stored.keys), len(stored.late), stored.arrays_path) == (0, 0, path)
    back = stored.load(io)
    assert (back.keys.tolist(), back.row_ids.tolist()) == ([3, 1], [30, -1])
    assert (back.late.tolist(), back.referenced_files) == ([2], ["a file"])


def test_rows_of_the_table_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "ROWS_READ_AT_ONCE", 2)
    columns = [
        column.with_metadata({"PARQUET:field_id": str(number)})
        for number, column in enumerate(COLUMNS, 1)
    ]
    path = tmp_path / "data.parquet"
    rows = [{"id": f"k{n}", "at": n, "text": f"text {n}"} for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), path, row_group_size=7)
    file = LiveFile(str(path), 20, 0, {"file-format": "parquet", "spec-id": 0, "partition": {}})
    lacking = schema_of_text()
    (staged,) = stage(
        tmp_path / "staged",
        [change(f"k{n}", 100, None, **{UNCHANGED_COLUMNS: ["text"]}) for n in range(0, 20, 3)],
    )
    batch = find_latest_changes(read_chunks([staged], {}))
    task = MatchTask(
        batch=batch.keys(),
        index=IndexSettings((1,), 2, str(tmp_path / "keys"), {}),
        location=str(tmp_path),
        format_version=3,
        folder=str(tmp_path),
        missing_columns=lacking,
    )
    (tmp_path / "data").mkdir()
    matched = task([file])

    assert matched.rows is not None
    found = [
        (key, text)
        for _, part in read_staged_rows(matched.rows.path, {})
        for key, text in zip(
            part[table_rows.KEY].to_pylist(), part["text"].to_pylist(), strict=True
        )
    ]
    by_key = {int(batch.low[key]): text for key, text in found}
    assert by_key == {key_of(f"k{n}"): f"text {n}" for n in range(0, 20, 3)}


def schema_of_text() -> str:
    return str(SCHEMA.select("text").model_dump_json())
