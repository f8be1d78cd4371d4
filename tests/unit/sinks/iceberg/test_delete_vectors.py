"""Deletes by position, written and read back, by us and by PyIceberg."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap

from icestream.errors import ConnectorError
from icestream.sinks.iceberg.java import LiveFile
from icestream.sinks.iceberg.upsert.matching import DeleteWriter, read_deleted_positions

if TYPE_CHECKING:
    from pathlib import Path

IO = PyArrowFileIO()
FILE = LiveFile("/lake/data/a.parquet", 10**6, 0, {"spec-id": 3, "partition": {"1000": "x"}})
OTHER = replace(FILE, path="/lake/data/b.parquet")


def written(
    folder: Path, version: int, *deletes: tuple[LiveFile, list[int]]
) -> tuple[DeleteWriter, list[dict[str, Any]]]:
    (folder / "data").mkdir(exist_ok=True)
    writer = DeleteWriter(IO, str(folder), version)
    for file, positions in deletes:
        writer.delete(file, read_deleted_positions(file, IO), np.array(positions))
    return writer, writer.close()


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_are_read_back(tmp_path: Path, version: int) -> None:
    runs = [*range(5000, 90_000), 1, 999_999]
    _, (first, second) = written(tmp_path, version, (FILE, runs), (OTHER, [4]))
    assert read_deleted_positions(replace(FILE, deletes=(first,)), IO) == BitMap(runs)
    assert read_deleted_positions(replace(OTHER, deletes=(second,)), IO) == BitMap([4])
    assert first["record-count"] == len(runs)
    assert (first["spec-id"], first["partition"]) == (3, {"1000": "x"})
    assert first["referenced-data-file"] == FILE.path


@pytest.mark.parametrize("version", [2, 3])
def test_new_deletes_include_and_replace_the_old_ones(tmp_path: Path, version: int) -> None:
    _, (old,) = written(tmp_path, version, (FILE, [1, 2]))
    again = replace(FILE, deletes=(old,))
    writer, (new,) = written(tmp_path, version, (again, [2, 3]))
    assert read_deleted_positions(replace(FILE, deletes=(new,)), IO) == BitMap([1, 2, 3])
    assert writer.replaced_deletes == [old]
    assert writer.referenced_files == [FILE.path]


def test_vectors_of_a_task_share_a_file_that_others_read(tmp_path: Path) -> None:
    _, described = written(tmp_path, 3, (FILE, [7, 8]), (OTHER, [9]))
    (path,) = {one["file-path"] for one in described}
    raw = (tmp_path / "data" / path.rsplit("/", 1)[1]).read_bytes()
    assert {one["file-size-in-bytes"] for one in described} == {len(raw)}
    read = {
        vector.referenced_data_file: vector.to_vector().to_pylist()
        for vector in deletion_vectors_from_puffin_file(PuffinFile(raw))
    }
    assert read == {FILE.path: [7, 8], OTHER.path: [9]}


def test_position_delete_file_is_sorted_and_bound_to_its_data_file(tmp_path: Path) -> None:
    _, (one,) = written(tmp_path, 2, (FILE, [9, 3]))
    rows = pq.read_table(one["file-path"]).to_pydict()
    assert rows == {"file_path": [FILE.path] * 2, "pos": [3, 9]}
    assert one["lower-bounds"] == one["upper-bounds"]


@pytest.mark.parametrize("version", [2, 3])
def test_position_deletes_of_many_files_stay_in_the_table(tmp_path: Path, version: int) -> None:
    _, (old,) = written(tmp_path, 2, (FILE, [1]))
    theirs = {key: value for key, value in old.items() if key != "referenced-data-file"}
    again = replace(FILE, deletes=(theirs,))
    writer, (new,) = written(tmp_path, version, (again, [2]))
    assert writer.replaced_deletes == []
    assert read_deleted_positions(replace(FILE, deletes=(new,)), IO) == BitMap([1, 2])


def test_equality_deletes_of_another_writer_are_refused() -> None:
    theirs = {"content": "equality-deletes", "file-format": "parquet"}
    with pytest.raises(ConnectorError) as caught:
        read_deleted_positions(replace(FILE, deletes=(theirs,)), IO)
    assert str(caught.value) == (
        "upsert can't determine which rows exist: another writer added equality deletes to "
        "/lake/data/a.parquet\n"
        "  Apply them first: `CALL system.rewrite_data_files(table => '...', options => "
        "map('delete-file-threshold', '1'))`. Use one upsert writer per table."
    )
