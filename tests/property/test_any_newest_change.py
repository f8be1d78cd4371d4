"""The newest change of each key, against a plain dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.sinks.iceberg.upsert.fingerprints import fingerprints
from icestream.sinks.iceberg.upsert.latest_changes import (
    FROM_TABLE,
    NOWHERE,
    OLDEST,
    LatestChanges,
    find_latest_changes,
)
from icestream.sinks.iceberg.upsert.staging import StagedChunk

Change = dict[str, Any]

changes = st.fixed_dictionaries(
    {
        "key": st.integers(-3, 3),
        "delete": st.booleans(),
        "sequence": st.integers(0, 3),
        "sent": st.booleans(),
    }
)
batches = st.lists(st.lists(changes, min_size=1, max_size=8), min_size=1, max_size=3)


def chunk(number: int, rows: list[Change], *, text: bool, sequenced: bool) -> StagedChunk:
    keys = [str(row["key"]) if text else row["key"] for row in rows]
    return StagedChunk(
        path=f"chunk{number}",
        keys=fingerprints([pa.array(keys)]),
        deletes=np.array([row["delete"] for row in rows]),
        sequence=np.array([row["sequence"] for row in rows]) if sequenced else None,
        unchanged={"blob": np.array([not row["sent"] for row in rows])},
    )


def expected(batch: list[list[Change]], *, sequenced: bool) -> dict[int, tuple[Any, ...]]:
    """For each key: chunk, row, whether it deletes, and where its `blob` comes from."""
    arrivals = [(n, r, row) for n, rows in enumerate(batch) for r, row in enumerate(rows)]
    if sequenced:
        arrivals.sort(key=lambda arrival: arrival[2]["sequence"])
    changes: dict[int, tuple[Any, ...]] = {}
    blob: dict[int, Any] = {}
    for n, r, row in arrivals:
        key = row["key"]
        if row["delete"]:
            blob[key] = NOWHERE
        elif row["sent"]:
            blob[key] = (n, r)
        changes[key] = (n, r, row["delete"], blob.setdefault(key, FROM_TABLE))
    return changes


def donor(batch: LatestChanges, index: int) -> Any:
    at = int(batch.donors["blob"][index])
    if at < 0:
        return at
    return int(batch.addresses.chunk[at]), int(batch.addresses.row[at])


@given(batches, st.booleans(), st.booleans())
def test_newest_change_of_each_key_matches_a_dictionary(
    batch: list[list[Change]], text: bool, sequenced: bool
) -> None:
    chunks = [chunk(n, rows, text=text, sequenced=sequenced) for n, rows in enumerate(batch)]
    outcome = find_latest_changes(chunks)
    changes = {}
    for index in range(len(outcome)):
        n, r = int(outcome.address.chunk[index]), int(outcome.address.row[index])
        key = batch[n][r]["key"]
        assert key not in changes
        changes[key] = (n, r, bool(outcome.deletes[index]), donor(outcome, index))
    assert changes == expected(batch, sequenced=sequenced)


@given(batches, st.dictionaries(st.integers(-3, 3), st.tuples(st.booleans(), st.integers(0, 3))))
def test_value_is_not_taken_from_a_change_before_the_table_or_a_delete(
    batch: list[list[Change]], states: dict[int, tuple[bool, int]]
) -> None:
    outcome = find_latest_changes(
        [chunk(n, rows, text=False, sequenced=True) for n, rows in enumerate(batch)]
    )
    keys = outcome.low.view(np.int64).tolist()
    # The state of a key: the table's row, or that it was deleted, with its sequence.
    row, deleted = (
        np.array(
            [states[key][1] if states.get(key, (None,))[0] is kind else OLDEST for key in keys]
        )
        for kind in (False, True)
    )
    remaining = outcome.without_outdated(deleted, row)

    before = expected(batch, sequenced=True)
    for index, key in enumerate(keys):
        deciding = [
            change["sequence"]
            for rows in batch
            for change in rows
            if change["key"] == key and (change["sent"] or change["delete"])
        ]
        is_deleted, age = states.get(key, (False, OLDEST))
        expected_donor = before[key][3]
        if age > max(deciding, default=OLDEST):
            expected_donor = NOWHERE if is_deleted else FROM_TABLE
        assert donor(remaining, index) == expected_donor


def test_table_row_is_read_where_no_change_of_the_batch_has_the_value() -> None:
    rows = [
        {"key": 1, "delete": False, "sequence": 0, "sent": False},
        {"key": 2, "delete": False, "sequence": 0, "sent": True},
        {"key": 3, "delete": True, "sequence": 0, "sent": False},
        {"key": 3, "delete": False, "sequence": 0, "sent": False},
    ]
    outcome = find_latest_changes([chunk(0, rows, text=False, sequenced=False)])
    assert outcome.low.tolist() == [1, 2, 3]
    reads_table = outcome.keys().wants_table_row
    assert reads_table is not None
    assert reads_table.tolist() == [True, False, False]
