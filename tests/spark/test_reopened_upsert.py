"""An upsert sink that is opened again, or whose tables are reloaded, uses the newest client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.fixtures.sink_batches import PIPELINE, mark, written

from icestream.sinks.iceberg.java import JavaCatalog, LiveFiles
from icestream.sinks.iceberg.table import TargetTable

if TYPE_CHECKING:
    import pytest
    from tests.fixtures.spark import Lake

    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.sink import IcebergTableSink

TABLES = ("events", "events__tombstones")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("op", pa.string()), ("no", pa.int32())]
)


def upserting(lake: Lake) -> IcebergTableSink:
    sink = lake.sink(commit_mode="upsert", key_fields=("id",), op_field="op", sequence_field="no")
    sink.open(lake.spark, PIPELINE)
    return sink


def change(sink: IcebergTableSink, epoch: int, *rows: dict[str, Any]) -> None:
    sink.commit(written(sink, pa.Table.from_pylist(list(rows), schema=SCHEMA)), mark(epoch))


def listed(monkeypatch: pytest.MonkeyPatch) -> list[JavaTable]:
    """Return a list that gets each handle by which files of a table are looked up."""
    handles: list[JavaTable] = []
    original = LiveFiles.refresh

    def refresh(self: LiveFiles) -> Any:
        handles.append(self.table)
        return original(self)

    monkeypatch.setattr(LiveFiles, "refresh", refresh)
    return handles


def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, JavaTable]:
    """Return a mapping that gets the newest handle of each table, by name."""
    newest: dict[str, JavaTable] = {}
    original = JavaCatalog.load

    def load(self: JavaCatalog, namespace: Any, table: str) -> JavaTable:
        newest[table] = original(self, namespace, table)
        return newest[table]

    monkeypatch.setattr(JavaCatalog, "load", load)
    return newest


def test_reopened_sink_reads_tombstones_with_a_new_client(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = upserting(lake)
    change(sink, 0, {"id": 1, "op": "d", "no": 5}, {"id": 2, "name": "b", "no": 1})
    newest, listings = loaded(monkeypatch), listed(monkeypatch)
    sink.disconnect(lake.spark)
    sink.open(lake.spark, PIPELINE)
    change(sink, 1, {"id": 1, "name": "late", "no": 4}, {"id": 2, "op": "d", "no": 6})

    assert set(newest) == set(TABLES)
    assert {id(handle) for handle in listings} == {id(newest[name]) for name in TABLES}
    assert lake.rows() == []


def test_tombstones_are_read_with_the_renewed_handle(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = upserting(lake)
    change(sink, 0, {"id": 1, "op": "d", "no": 5}, {"id": 2, "name": "b", "no": 1})
    newest, listings = loaded(monkeypatch), listed(monkeypatch)
    # As if the credentials of both tables ran out at once.
    run_out = {"s3.session-token-expires-at-ms": "0"}
    monkeypatch.setattr(TargetTable, "_vended_credentials", lambda _: run_out)
    change(sink, 1, {"id": 1, "name": "late", "no": 4}, {"id": 3, "name": "c", "no": 1})

    assert set(newest) == set(TABLES)
    assert {id(handle) for handle in listings} == {id(newest[name]) for name in TABLES}
    assert sorted(row["id"] for row in lake.rows()) == [2, 3]
