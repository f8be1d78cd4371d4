"""What a commit adds to a table's metadata, however large the offsets are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from tests.fixtures.sink_batches import mark, written

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

COMMITS = 25
OFFSET_BYTES = 100_000
# A snapshot with its summary, an entry of the snapshot log and one of the metadata log.
BYTES_A_SNAPSHOT = 2_000


def test_metadata_grows_by_snapshots_and_not_by_offsets(lake: Lake) -> None:
    sink = lake.sink()
    sink.open(lake.spark, "events")
    for epoch in range(COMMITS):
        offset = {"lsn": epoch, "tables": "x" * OFFSET_BYTES}
        batch = replace(mark(epoch, rows=1), start=offset, end=offset)
        sink.commit(written(sink, pa.table({"id": [epoch]})), batch)

    table = lake.catalog.client().load_table("db.events")
    newest = Path(table.metadata_location.removeprefix("file:"))
    # The property holds the start and the end once.
    assert newest.stat().st_size < 2 * OFFSET_BYTES + COMMITS * BYTES_A_SNAPSHOT + 10_000
    assert len(list(newest.parent.glob("*.metadata.json"))) == 21
    assert len(table.snapshots()) == COMMITS
