"""Tombstones without a known table are logged by the driver, once for each topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from tests.unit.formats.debezium_events import encoded, envelope

from icestream.contracts.decoder import Records
from icestream.contracts.source import Split
from icestream.engine.batch import changes
from icestream.engine.batch.changes import ChangeReading
from icestream.engine.batch.commit import BatchOutcome
from icestream.engine.batch.tasks import Report
from icestream.formats.debezium.json import DebeziumJsonDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROW = {"id": 1}
EVENTS = [(ROW, envelope("c", after=ROW)), ({"id": 2}, None), ({"id": 3}, None)]


class Topic:
    """Stands for a source: a split is the name of a topic, each with the same records."""

    def read(self, split: Split) -> Iterator[Records]:
        extra = {
            "record_key": pa.array([encoded(key) for key, _ in EVENTS], pa.binary()),
            "record_topic": pa.array([split.what] * len(EVENTS), pa.string()),
        }
        yield Records(pa.array([encoded(value) for _, value in EVENTS], pa.binary()), extra, str)


def test_ignored_tombstones_are_logged_once_for_each_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "_WARNED", set())
    reading = ChangeReading(
        source=cast("Any", Topic()),
        decoder=None,
        splits=(Split("events", 3), Split("shop.public.orders", 3)),
        columns=pa.schema([]),
        evolving=False,
        stop_at_bad=True,
        dead_letters=None,
        change_decoder=DebeziumJsonDecoder(),
    )
    for _ in range(2):
        outcome = BatchOutcome()
        for split in range(2):
            report = Report(split)
            assert sum(block.num_rows for block in reading.rows(report)) == (1, 3)[split]
            outcome.add(report)
        changes._warn_of_ignored("mirror", outcome.ignored)
    assert caplog.messages == [
        "pipeline mirror: ignored 2 tombstones of topic 'events', whose table is unknown: deletes "
        "that arrive only as tombstones are not applied there"
    ]
