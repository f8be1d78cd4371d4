from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench import keyed_rows
from bench.cases.upsert_growth import label
from bench.keyed_rows import Expected, batches, first_values, random_changes, rows
from bench.table_files import write_files

if TYPE_CHECKING:
    from pathlib import Path


def _table(kind: str, first: int, end: int) -> pa.Table:
    return pa.Table.from_batches(batches(kind, first, end))


@pytest.mark.parametrize("kind", keyed_rows.KEYS)
def test_keys_are_unique(kind: str) -> None:
    table = _table(kind, 0, 300_000)

    keys = table.select(list(keyed_rows.KEYS[kind])).group_by(list(keyed_rows.KEYS[kind]))
    assert keys.aggregate([]).num_rows == table.num_rows == 300_000
    assert table.schema == keyed_rows.schema(kind)
    table.validate(full=True)


def test_text_key_shows_the_number_in_eighteen_characters() -> None:
    numbers = np.array([0, 1], np.int64)

    (text, *_), (long, *_) = (rows(kind, numbers, numbers).columns for kind in ("string", "long"))
    assert text.to_pylist() == [f"u-{each:016x}" for each in long.to_pylist()]


def test_neighbouring_keys_are_far_apart() -> None:
    keys = _table("long", 0, 10_000).column("id").to_numpy()

    assert keys.min() >= 0
    assert np.corrcoef(np.arange(10_000), keys)[0, 1] < 0.1


def test_half_of_a_batch_exists_already_and_no_key_is_repeated() -> None:
    numbers, values = random_changes(1_000, 3, 500)

    assert (numbers < 1_000).sum() == 250
    assert len(np.unique(numbers)) == 500
    assert len(values) == 500
    assert not np.array_equal(numbers, np.sort(numbers))
    again, _ = random_changes(1_000, 3, 500)
    other, _ = random_changes(1_000, 4, 500)
    assert np.array_equal(numbers, again)
    assert not set(numbers[numbers >= 1_000]) & set(other)


def test_expected_rows_match_a_dictionary() -> None:
    table = dict(enumerate(first_values(np.arange(2_345)).tolist()))
    expected = Expected(2_345)
    for batch in range(4):
        numbers, values = random_changes(2_345, batch, 400)
        table.update(zip(numbers.tolist(), values.tolist(), strict=True))
        expected.upsert(numbers, values)

    assert (expected.count, expected.total) == (len(table), sum(table.values()))


def test_larger_table_holds_the_files_of_smaller_ones(tmp_path: Path) -> None:
    files = write_files("pair", [100, 250], tmp_path)

    assert [sum(file["rows"] for file in files[size]) for size in (100, 250)] == [100, 250]
    assert files[250][: len(files[100])] == files[100]
    paths = [file["metadata"]["file-path"].removeprefix("file://") for file in files[250]]
    read = pa.concat_tables(pq.read_table(path) for path in paths)
    assert read.column("number").to_pylist() == _table("pair", 0, 250).column("number").to_pylist()
    json.dumps(files)


def test_sizes_have_short_names() -> None:
    assert [label(rows) for rows in (100_000_000, 50_000, 123)] == ["100m", "50k", "123"]
