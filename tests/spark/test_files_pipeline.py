"""Files through whole pipelines: large ones in several batches, and state folders that are lost."""

from __future__ import annotations

import shutil
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.test_dlq_replay import ReplayHarness

from icestream.errors import CheckpointLostError, SchemaMismatchError, SourceChangedError
from icestream.plan.plan import Batching
from icestream.sources.files import FilesOptions, FilesSource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(FilesSource, "settle_secs", 0.0)
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def plan(lake: Lake, inbox: Path, max_rows: int = 1_000_000) -> PipelinePlan:
    source = FilesSource(FilesOptions(path=str(inbox), format="csv"))
    return lake.plan(source, batching=Batching(1, 0.1, max_rows))


def put(inbox: Path, name: str, ids: range) -> None:
    (inbox / name).write_text("id\n" + "".join(f"{n}\n" for n in ids))


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def test_large_file_is_written_in_several_batches(lake: Lake, inbox: Path) -> None:
    put(inbox, "a.csv", range(2_500))
    put(inbox, "b.csv", range(2_500, 2_510))

    lake.run(plan(lake, inbox, max_rows=1_000))
    put(inbox, "c.csv", range(2_510, 2_520))
    lake.run(plan(lake, inbox, max_rows=1_000))

    assert ids(lake) == list(range(2_520))
    snapshots = lake.catalog.client().load_table(("db", "events")).metadata.snapshots
    added = [int(str(s.summary["added-records"])) for s in snapshots if s.summary]
    assert added == [999, 1_000, 511, 10], "the header is a line too"


def test_lost_state_is_resumed_from_the_mark_if_the_files_are_there(
    lake: Lake, inbox: Path
) -> None:
    put(inbox, "a.csv", range(10))
    lake.run(plan(lake, inbox))
    shutil.rmtree(lake.state)
    put(inbox, "b.csv", range(10, 20))
    with pytest.raises(CheckpointLostError):
        lake.run(plan(lake, inbox))

    lake.run(plan(lake, inbox), recovery="resume")
    put(inbox, "c.csv", range(20, 30))
    lake.run(plan(lake, inbox))

    assert ids(lake) == list(range(30))


def test_lost_state_is_not_resumed_if_read_files_are_missing(lake: Lake, inbox: Path) -> None:
    put(inbox, "a.csv", range(10))
    lake.run(plan(lake, inbox))
    shutil.rmtree(lake.state)
    (inbox / "a.csv").unlink()
    put(inbox, "b.csv", range(10, 20))

    with pytest.raises(SourceChangedError, match="is lost and cannot be rebuilt"):
        lake.run(plan(lake, inbox), recovery="resume")
    assert ids(lake) == list(range(10))

    lake.run(plan(lake, inbox), recovery="start-over")
    assert ids(lake) == list(range(20))


def test_replayed_csv_line_has_the_header_of_its_own_file(lake: Lake, inbox: Path) -> None:
    source = FilesSource(FilesOptions(path=str(inbox), format="csv"))
    few = {"name": "few", "expr": "qty < 100", "on_fail": "dead_letter"}
    (inbox / "a.csv").write_text("price,qty\n1,2\n7,500\nx,3\n")
    lake.run(lake.plan(source, on_error="dead_letter", expect=[few]))
    assert len(lake.rows("dead")) == 1
    (inbox / "a.csv").unlink()
    (inbox / "b.csv").write_text("qty,price\n9,8\n")

    fixed = FilesSource(FilesOptions(path=str(inbox), format="csv"))
    outcome = ReplayHarness(lake).replay(lake.plan(fixed, on_error="dead_letter"))

    assert (outcome.replayed, dict(outcome.still_bad)) == (1, {})
    assert {"price": "7", "qty": 500} in lake.rows()
    lake.run(lake.plan(fixed, on_error="dead_letter"))
    assert {"price": "8", "qty": 9} in lake.rows()


def write_rows(path: Path, rows: list[dict[str, Any]], kind: str) -> None:
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    types = {int: "long", str: "string"}
    fields = [{"name": name, "type": types[type(value)]} for name, value in rows[0].items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, rows)


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_new_column_of_a_file_follows_schema_evolution(
    lake: Lake, inbox: Path, kind: Literal["parquet", "avro"]
) -> None:
    options = FilesOptions(path=str(inbox), format=kind)
    for number, more in enumerate([{"old": "x"}, {"name": "b", "old": "y"}, {}]):
        write_rows(inbox / f"{number}", [{"id": number, **more}], kind)
    lake.run(lake.plan(FilesSource(options)))
    write_rows(inbox / "3", [{"later": 7, "id": 3}], kind)
    lake.run(lake.plan(FilesSource(options)))

    assert sorted(lake.rows(), key=lambda row: row["id"]) == [
        {"id": 0, "old": "x", "name": None, "later": None},
        {"id": 1, "old": "y", "name": "b", "later": None},
        {"id": 2, "old": None, "name": None, "later": None},
        {"id": 3, "old": None, "name": None, "later": 7},
    ]
    write_rows(inbox / "4", [{"id": 4, "unknown": 7}], kind)
    with pytest.raises(SchemaMismatchError, match="columns that the table lacks: 'unknown' int64"):
        lake.run(lake.plan(FilesSource(options), schema_evolution="strict"))


def test_key_in_milliseconds_or_int96_is_the_stored_key(lake: Lake, inbox: Path) -> None:
    options = FilesOptions(path=str(inbox), format="parquet")
    at = datetime(2024, 5, 1, 10, 0, 0, 123_000)  # noqa: DTZ001 - without a zone on purpose
    for value, (kind, int96) in enumerate(
        [("us", False), ("ms", False), ("ns", True), ("ns", False)]
    ):
        rows = {"at": pa.array([at], pa.timestamp(kind)), "value": [value]}
        path = inbox / f"{value}.parquet"
        pq.write_table(pa.table(rows), path, use_deprecated_int96_timestamps=int96)
        plan = lake.plan(FilesSource(options), commit_mode="upsert", key_fields=("at",))
        lake.run(plan)
        assert lake.rows() == [{"at": at, "value": value}]
