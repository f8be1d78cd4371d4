"""Data files passed over by the bounds of their keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from icestream.sinks.iceberg.java import LiveFile
from icestream.sinks.iceberg.upsert.fingerprints import fingerprints
from icestream.sinks.iceberg.upsert.jobs import prune_files
from icestream.sinks.iceberg.upsert.key_index import IndexSettings
from icestream.sinks.iceberg.upsert.latest_changes import find_latest_changes
from icestream.sinks.iceberg.upsert.staging import StagedChunk

INDEX = IndexSettings((1,), None, "", {})
LONG = Schema(NestedField(1, "id", LongType()))


def between(lower: int, upper: int, kind: Any = LongType) -> LiveFile:
    bounds = {
        side: {"keys": [1], "values": [to_bytes(kind(), bound).hex()]}
        for side, bound in (("lower-bounds", lower), ("upper-bounds", upper))
    }
    return LiveFile("a", 1, None, bounds)


def holds(file: LiveFile, keys: list[Any], schema: Schema = LONG) -> bool:
    found = fingerprints([pa.array(keys)])
    batch = find_latest_changes(
        [StagedChunk("", found, np.zeros(len(keys), np.bool_), None, {})]
    ).keys()
    return prune_files([file], batch, INDEX, schema) == [file]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([9, 21], False),
        ([9, 10], True),
        ([20], True),
        ([-5, 30], False),
        ([-5, 15, 30], True),
    ],
)
def test_file_is_read_only_if_a_key_is_within_its_bounds(keys: list[int], expected: bool) -> None:
    assert holds(between(10, 20), keys) is expected


def test_negative_keys_are_in_order() -> None:
    assert holds(between(-20, -10), [-15, 5])
    assert not holds(between(-20, -10), [-21, -9, 5])


def test_bounds_of_a_file_from_before_the_column_was_widened() -> None:
    assert not holds(between(10, 20, IntegerType), [9])
    assert holds(between(10, 20, IntegerType), [10])


def test_file_without_bounds_is_read() -> None:
    assert holds(LiveFile("a", 1, None, {}), [1])
    other = {"keys": [7], "values": ["00"]}
    assert holds(LiveFile("a", 1, None, {"lower-bounds": other, "upper-bounds": other}), [1])


def test_hashed_keys_have_no_order() -> None:
    schema = Schema(NestedField(1, "id", StringType()))
    assert holds(between(10, 20), ["x"], schema)
