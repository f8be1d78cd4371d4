"""Whatever is counted, counters add up and survive JSON."""

from __future__ import annotations

import json
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.metrics.registry import MetricsSnapshot, SinkMetrics

NAMES = [field.name for field in fields(MetricsSnapshot)]
counts = st.integers(min_value=0, max_value=10**12)


@settings(deadline=None)
@given(st.lists(counts, min_size=len(NAMES), max_size=len(NAMES)))
def test_snapshot_survives_json(values: list[int]) -> None:
    snapshot = MetricsSnapshot(*values)

    assert MetricsSnapshot.from_json(snapshot.to_json()) == snapshot
    assert list(json.loads(snapshot.to_json())) == NAMES


@settings(deadline=None)
@given(sizes=st.lists(st.integers(min_value=0, max_value=10**6), min_size=1, max_size=30))
def test_batch_sizes_are_the_extremes_and_the_sum(sizes: list[int]) -> None:
    metrics = SinkMetrics()
    for size in sizes:
        metrics.record_batch(rows=size, size=0, files=0, write_secs=0)

    snapshot = metrics.snapshot()
    assert (snapshot.batch_size_min, snapshot.batch_size_max) == (min(sizes), max(sizes))
    assert snapshot.batch_size_sum == snapshot.records_written == sum(sizes)
