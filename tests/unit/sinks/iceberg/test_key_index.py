"""Keys looked up in data files, with an index that may be missing, old or of another key."""

from __future__ import annotations

import os
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.errors import ConnectorError, TransientError
from icestream.sinks.iceberg.java import LiveFile
from icestream.sinks.iceberg.upsert import key_index
from icestream.sinks.iceberg.upsert.fingerprints import fingerprints
from icestream.sinks.iceberg.upsert.key_index import (
    NO_SEQUENCE,
    ROW_ID,
    SPARE_INDEXES,
    IndexSettings,
    find_keys,
    remove_stale_indexes,
)
from icestream.sinks.iceberg.upsert.latest_changes import BatchKeys, find_latest_changes
from icestream.sinks.iceberg.upsert.staging import StagedChunk

if TYPE_CHECKING:
    from pathlib import Path


def column(field: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field)})


def data_file(
    folder: Path, schema: pa.Schema, rows: list[dict[str, Any]], *, first: int | None = 100
) -> LiveFile:
    path = folder / "data.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=40)
    return LiveFile(str(path), len(rows), first, {"file-format": "parquet"})


def keys(*columns: list[Any]) -> BatchKeys:
    found = fingerprints([pa.array(values) for values in columns])
    count = len(columns[0])
    return find_latest_changes([StagedChunk("", found, np.zeros(count, np.bool_), None, {})]).keys()


def settings(folder: Path, *ids: int, sequence: int | None = None) -> IndexSettings:
    return IndexSettings(ids, sequence, str(folder / "keys"), {})


def hits(found: Any, batch: BatchKeys, wanted: list[int]) -> set[tuple[int, int]]:
    """Pairs of key and position; the keys are whole numbers."""
    assert batch.low.tolist() == sorted(wanted)
    return {
        (sorted(wanted)[key], int(at)) for key, at in zip(found.keys, found.positions, strict=True)
    }


@pytest.mark.parametrize("wanted", [[3], [3, 99, 100], list(range(500))], ids=len)
def test_keys_are_found_in_every_row_group(tmp_path: Path, wanted: list[int]) -> None:
    schema = pa.schema([column(1, "id", pa.int64()), column(2, "v", pa.string())])
    numbers = list(np.random.default_rng(7).permutation(100))
    file = data_file(tmp_path, schema, [{"id": int(n)} for n in numbers])
    batch = keys(wanted)
    expected = {(n, numbers.index(n)) for n in wanted if n < 100}
    for _ in range(2):  # the second time from the index
        found = find_keys(file, batch, settings(tmp_path, 1))
        assert hits(found, batch, wanted) == expected
        assert found.row_ids is not None
        assert found.row_ids.tolist() == (found.positions + 100).tolist()


@pytest.mark.parametrize("count", [2, 400])
def test_two_rows_of_one_key_and_rows_without_one(tmp_path: Path, count: int) -> None:
    schema = pa.schema([column(1, "shop", pa.string()), column(2, "no", pa.int32())])
    rows: list[dict[str, Any]] = [
        {"shop": "a", "no": 1},
        {"shop": None, "no": 1},
        {"shop": "a", "no": 2},
        {"shop": "a", "no": 1},
        {"shop": "b", "no": None},
    ]
    batch = keys(["a", *(f"x{n}" for n in range(count))], [1] * (count + 1))
    found = find_keys(data_file(tmp_path, schema, rows), batch, settings(tmp_path, 1, 2))
    assert sorted(found.positions.tolist()) == [0, 3]
    assert len(set(found.keys.tolist())) == 1


def test_stored_row_ids_take_precedence_over_computed_ones(tmp_path: Path) -> None:
    schema = pa.schema([column(1, "id", pa.int64()), column(ROW_ID, "_row_id", pa.int64())])
    rows: list[dict[str, Any]] = [{"id": 1, "_row_id": 7}, {"id": 2, "_row_id": None}]
    found = find_keys(data_file(tmp_path, schema, rows), keys([1, 2]), settings(tmp_path, 1))
    assert found.row_ids is not None
    assert found.row_ids.tolist() == [7, 101]


def test_sequence_is_stored_with_the_key(tmp_path: Path) -> None:
    schema = pa.schema([column(1, "id", pa.int64()), column(5, "at", pa.timestamp("us"))])
    rows: list[dict[str, Any]] = [{"id": 1, "at": 9}, {"id": 2, "at": None}]
    file = data_file(tmp_path, schema, rows, first=None)
    found = find_keys(file, keys([1, 2]), settings(tmp_path, 1, sequence=5))
    assert found.sequence is not None
    assert found.sequence.tolist() == [9, NO_SEQUENCE]
    assert found.row_ids is None


AT = datetime(2024, 5, 1, 10, 0, 0, 123_000)  # noqa: DTZ001 - without a zone on purpose


@pytest.mark.parametrize(
    ("stored", "kind", "value"),
    [
        (pa.timestamp("ms"), pa.timestamp("us"), AT),
        (pa.timestamp("ns"), pa.timestamp("us"), AT),
        (pa.timestamp("us"), pa.timestamp("us"), AT),
        (pa.timestamp("ns"), pa.timestamp("us", tz="UTC"), AT),
        (pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC"), AT),
        (pa.time32("ms"), pa.time64("us"), AT.time()),
        (pa.int32(), pa.int64(), 7),
        (pa.large_string(), pa.string(), "seven"),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), "seven"),
        (pa.decimal128(9, 2), pa.decimal128(18, 2), Decimal("7.00")),
    ],
    ids=str,
)
@pytest.mark.parametrize("int96", [True, False])
def test_key_that_a_file_stores_as_another_type_is_found(
    tmp_path: Path, stored: pa.DataType, kind: pa.DataType, value: Any, int96: bool
) -> None:
    """Other writers store milliseconds and INT96, and columns become wider."""
    fields = [column(1, "key", stored), column(2, "no", pa.int64()), column(3, "at", stored)]
    table = pa.Table.from_arrays(
        [pa.array([value], stored), [1], pa.array([value], stored)], schema=pa.schema(fields)
    )
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=int96)
    file = LiveFile(str(path), 1, None, {"file-format": "parquet"})
    types = {1: kind, 2: pa.int64(), 3: kind}
    ours = pa.array([value], kind)
    is_sequence = pa.types.is_timestamp(kind)
    sequence = 3 if is_sequence else None

    for number, columns in enumerate([[ours], [ours, pa.array([1])]]):
        ids = (1, 2)[: len(columns)]
        made = IndexSettings(ids, sequence, str(tmp_path / f"keys{number}"), {}, types)
        chunk = StagedChunk("", fingerprints(columns), np.zeros(1, np.bool_), None, {})
        found = find_keys(file, find_latest_changes([chunk]).keys(), made)

        assert found.positions.tolist() == [0]
        if is_sequence:
            assert found.sequence is not None
            assert found.sequence.tolist() == ours.cast(pa.int64()).to_pylist()


def test_column_is_matched_by_its_field_id_and_not_by_its_name(tmp_path: Path) -> None:
    schema = pa.schema([column(1, "id_before_the_rename", pa.int32()), column(2, "id", pa.int32())])
    file = data_file(tmp_path, schema, [{"id_before_the_rename": 1, "id": 2}])
    assert find_keys(file, keys([1]), settings(tmp_path, 1)).positions.tolist() == [0]
    assert find_keys(file, keys([1]), settings(tmp_path, 2)).positions.tolist() == []


def test_file_older_than_the_column_of_the_key_holds_none(tmp_path: Path) -> None:
    file = data_file(tmp_path, pa.schema([column(2, "v", pa.int32())]), [{"v": 1}])
    found = find_keys(file, keys([1]), settings(tmp_path, 1, sequence=2))
    assert found.keys.tolist() == []


def test_index_is_private_to_the_user(tmp_path: Path) -> None:
    schema = pa.schema([column(1, "id", pa.int64())])
    find_keys(data_file(tmp_path, schema, [{"id": 1}]), keys([1]), settings(tmp_path, 1))
    (made,) = (tmp_path / "keys").iterdir()
    assert made.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_index_left_empty_by_a_power_cut_is_rebuilt(tmp_path: Path) -> None:
    file = data_file(tmp_path, pa.schema([column(1, "id", pa.int64())]), [{"id": 1}])
    index = settings(tmp_path, 1)
    index.index_path(file.path).parent.mkdir()
    index.index_path(file.path).touch()
    assert find_keys(file, keys([1]), index).positions.tolist() == [0]


def test_unfinished_index_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = key_index._segment, []

    def full_disk(*arguments: Any) -> pa.RecordBatch:
        seen.append(1)
        if len(seen) == 2:
            raise OSError("no space left on device")
        return original(*arguments)

    monkeypatch.setattr(key_index, "_segment", full_disk)
    rows = [{"id": n} for n in range(100)]
    file = data_file(tmp_path, pa.schema([column(1, "id", pa.int64())]), rows)
    with pytest.raises(OSError, match="no space left on device"):
        find_keys(file, keys([1]), settings(tmp_path, 1))
    assert list((tmp_path / "keys").iterdir()) == []


def test_imported_file_without_field_ids_is_reported(tmp_path: Path) -> None:
    file = data_file(tmp_path, pa.schema([("id", pa.int64())]), [{"id": 1}])
    with pytest.raises(ConnectorError) as caught:
        find_keys(file, keys([1]), settings(tmp_path, 1))
    assert str(caught.value) == (
        f"upsert can't look for keys in {file.path}: its columns have no field ids, as in "
        "imported files\n"
        "  Rewrite the table's files first, with `rewrite_data_files` and `rewrite-all`."
    )


def test_indexes_of_files_that_left_the_table_are_removed(tmp_path: Path) -> None:
    file = data_file(tmp_path, pa.schema([column(1, "id", pa.int64())]), [{"id": 1}])
    index = settings(tmp_path, 1)
    find_keys(file, keys([1]), index)
    others = [tmp_path / "keys" / f"{number}.keys" for number in range(SPARE_INDEXES + 1)]
    for other in others:
        other.touch()
        os.utime(other, (0, 0))
    os.utime(index.index_path(file.path), (0, 0))
    others[0].touch()  # another pipeline uses it
    remove_stale_indexes(index, [file])
    assert set((tmp_path / "keys").iterdir()) == {index.index_path(file.path), others[0]}


def test_index_removed_by_another_task_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = data_file(tmp_path, pa.schema([column(1, "id", pa.int64())]), [{"id": 1}])
    original, made = key_index._build_index, []

    def make(file: LiveFile, index: IndexSettings, path: Path) -> None:
        original(file, index, path)
        made.append(path)
        if len(made) < times:
            path.unlink()

    monkeypatch.setattr(key_index, "_build_index", make)
    times = 3
    with pytest.raises(TransientError) as caught:
        find_keys(file, keys([1]), settings(tmp_path, 1))
    assert str(caught.value) == (
        f"the key index {made[0]} disappeared 3 times before it could be read\n"
        "  Something else removes files there, or the disk is full."
    )
    made.clear()
    times = 2
    assert find_keys(file, keys([1]), settings(tmp_path, 1)).positions.tolist() == [0]


def test_file_of_another_format_is_reported(tmp_path: Path) -> None:
    file = LiveFile("s3://lake/data/1.orc", 1, None, {"file-format": "orc"})
    with pytest.raises(ConnectorError) as caught:
        find_keys(file, keys([1]), settings(tmp_path, 1))
    assert str(caught.value) == (
        "upsert can't look for keys in s3://lake/data/1.orc: it is not a Parquet file\n"
        "  Rewrite the table's files to Parquet first, with `rewrite_data_files`."
    )
