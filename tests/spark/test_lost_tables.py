"""Tables, branches and snapshots that vanish behind a pipeline: named, and never passed over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.fan_outs import planned, row
from tests.fixtures.scripted_orders import mirror
from tests.fixtures.sink_batches import append, mark, written

from icestream.engine.batch import batch as batch_module
from icestream.errors import CheckpointLostError, CorruptStateError, IcestreamError
from icestream.sinks.iceberg.commit import Fence
from icestream.testing.scripted import ScriptedChanges, ScriptedSource, change_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("note", pa.string())])
CREATED = "TABLE lake.db.events (id BIGINT, kind STRING, note STRING) USING iceberg"
WAYS = (
    "To continue without the rows: icestream run --pipeline events --resume\n"
    "To read the source from the beginning: icestream run --pipeline events --start-over"
)


class Stream:
    """Rows into the table `db.events`, by any kind of pipeline; `db.other` is another table."""

    def __init__(self, lake: Lake, kind: str) -> None:
        self.lake = lake
        self.kind = kind
        self.source = ScriptedSource(schema=SCHEMA)
        self.changes = ScriptedChanges()

    def write(self, *ids: int, **choices: Any) -> None:
        """Add rows to the source, and run the pipeline."""
        rows = [row(n, "events") for n in ids]
        if rows:
            self.source.append_rows(rows)
            if self.kind == "fan-out":
                self.source.append_rows([row(ids[0], "other")])
            columns = {field.name: field.type for field in SCHEMA}
            blocks = [change_block(f"db.{table}", columns, rows) for table in ("events", "other")]
            self.changes.script.append(blocks)
        self.lake.run(self.plan(), **choices)

    def plan(self, **options: Any) -> PipelinePlan:
        if self.kind == "mirror":
            return mirror(self.lake, self.changes, **options)
        if self.kind == "fan-out":
            return planned(self.lake, self.source, **options)
        if self.kind == "upsert":
            options |= {"commit_mode": "upsert", "key_fields": ("id",)}
        return self.lake.plan(self.source, **options)

    def ids(self) -> list[int]:
        return sorted(one["id"] for one in self.lake.rows())


def snapshots(lake: Lake) -> list[int]:
    return [
        one[0]
        for one in lake.sql(
            "SELECT snapshot_id FROM lake.db.events.snapshots ORDER BY committed_at"
        )
    ]


def roll_back(lake: Lake) -> None:
    first = snapshots(lake)[0]
    lake.sql(f"CALL {lake.name}.system.rollback_to_snapshot('db.events', {first})")


def expire(lake: Lake) -> None:
    lake.sql(
        f"CALL {lake.name}.system.expire_snapshots(table => 'db.events', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )


def break_table(lake: Lake, how: str) -> None:
    match how:
        case "drop":
            lake.sql("DROP TABLE lake.db.events")
        case "recreate":
            lake.sql("DROP TABLE lake.db.events")
            lake.sql(f"CREATE {CREATED}")
        case "replace":
            lake.sql(f"CREATE OR REPLACE {CREATED}")
        case "replace as select":
            lake.sql(
                "CREATE OR REPLACE TABLE lake.db.events USING iceberg AS "
                "SELECT 100L AS id, 'events' AS kind, 'other' AS note"
            )
        case "rollback":
            roll_back(lake)
        case "rollback, expire":
            roll_back(lake)
            expire(lake)
        case "rollback, insert":
            roll_back(lake)
            lake.sql("INSERT INTO lake.db.events VALUES (100, 'x', 'x')")
        case "tag, rollback, insert, expire":
            lake.sql("ALTER TABLE lake.db.events CREATE TAG kept")
            break_table(lake, "rollback, insert")
            expire(lake)
        case "unmark":
            lake.sql("ALTER TABLE lake.db.events UNSET TBLPROPERTIES ('icestream.mark.events')")


GONE = "; the rows that this pipeline committed, up to batch 1, are no longer all there"
UNMARKED = (
    "the pipeline has committed rows, but the table has no mark of it: it was dropped or "
    "recreated, or the mark was removed"
)
UNMARKED_OF_MANY = (
    "the table has no mark of this pipeline, which committed rows to it: it was dropped and "
    "recreated, or the mark was removed"
)
DROPPED_OF_MANY = "the table was dropped, and the rows that this pipeline committed went with it"
REPLACED = "the table was replaced, e.g. by `CREATE OR REPLACE TABLE`" + GONE
ROLLED_BACK = "branch 'main' was rolled back" + GONE


@pytest.mark.parametrize(
    ("kind", "how", "problem"),
    [
        ("append", "unmark", UNMARKED),
        ("append", "replace", REPLACED),
        ("append", "rollback, expire", ROLLED_BACK),
        ("append", "rollback, insert", ROLLED_BACK),
        ("append", "tag, rollback, insert, expire", ROLLED_BACK),
        ("upsert", "replace as select", REPLACED),
        ("fan-out", "drop", DROPPED_OF_MANY),
        ("fan-out", "unmark", UNMARKED_OF_MANY),
        ("mirror", "drop", DROPPED_OF_MANY),
        ("mirror", "rollback", ROLLED_BACK),
    ],
)
def test_table_that_lost_rows_between_two_runs_stops_the_pipeline(
    lake: Lake, kind: str, how: str, problem: str
) -> None:
    stream = Stream(lake, kind)
    stream.write(0, 1)
    stream.write(2)
    break_table(lake, how)

    with pytest.raises(CheckpointLostError) as caught:
        stream.write(3)
    assert (caught.value.what, caught.value.exit_code) == (problem, 5)
    stream.write(recovery="start-over")
    assert set(stream.ids()) - {100} == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["append", "fan-out"])
def test_rolled_back_rows_are_restored_or_accepted_as_lost(lake: Lake, kind: str) -> None:
    stream = Stream(lake, kind)
    stream.write(0, 1)
    stream.write(2)
    newest = snapshots(lake)[-1]
    roll_back(lake)
    with pytest.raises(CheckpointLostError) as caught:
        stream.write(3)

    bring_back = f"CALL {lake.name}.system.set_current_snapshot('db.events', {newest})"
    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: {ROLLED_BACK}\n"
        f"  To bring them back and discard later commits, in Spark SQL: {bring_back}\n"
        f"  {WAYS.replace(chr(10), chr(10) + '  ')}"
    )
    lake.sql(bring_back)
    stream.write()
    assert stream.ids() == [0, 1, 2, 3]

    roll_back(lake)
    stream.write(recovery="resume")
    stream.write(4)
    assert stream.ids() == [0, 1, 4]


@pytest.mark.parametrize("kind", ["append", "fan-out", "mirror"])
def test_changed_table_in_the_file_is_reported(lake: Lake, kind: str) -> None:
    stream = Stream(lake, kind)
    stream.write(0, 1)
    stream.source.append_rows([row(2, "events")])
    stream.changes.script.append(stream.changes.script[0])
    moved: dict[str, Any] = {"namespace": ("other",)}
    if kind == "append":
        moved = {"table": "moved"}
    old, new = {
        "append": (f"{lake.name}.db.events", f"{lake.name}.db.moved"),
        "fan-out": (f"{lake.name}.db.*", f"{lake.name}.other.*"),
        "mirror": (f"{lake.name}.*", f"{lake.name}.other.*"),
    }[kind]

    for _ in range(2):
        with pytest.raises(CheckpointLostError) as caught:
            lake.run(stream.plan(**moved))
        assert caught.value.what == (
            f"the pipeline has committed rows to {old}, but the file says {new}, which has none "
            "of them"
            if kind == "append"
            else f"the rows of this pipeline are in {old}, and the file says {new}"
        )
    lake.run(stream.plan(**moved), recovery="start-over" if kind == "append" else "resume")
    lake.run(stream.plan(**moved))
    place = "db.moved" if kind == "append" else "other.events"
    found = lake.catalog.client().load_table(place).scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == {"append": [0, 1, 2], "fan-out": [2], "mirror": [0, 1]}[kind]


class ConcurrentWriter:
    """Does something to the table between the files of a batch and its commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[], object]) -> None:
        self.is_done = False

        def reach(point: str) -> None:
            if point == "before-commit" and not self.is_done:
                self.is_done = True
                meddle()

        monkeypatch.setattr(batch_module, "crash_point", reach)


@pytest.mark.parametrize(
    ("kind", "how", "problem"),
    [
        ("append", "recreate", UNMARKED),
        ("upsert", "rollback", ROLLED_BACK),
        ("fan-out", "replace", REPLACED),
        ("mirror", "drop", DROPPED_OF_MANY),
    ],
)
def test_table_that_loses_rows_during_a_run_accepts_no_more(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str, how: str, problem: str
) -> None:
    stream = Stream(lake, kind)
    stream.write(0, 1)
    stream.write(2)
    ConcurrentWriter(monkeypatch, lambda: break_table(lake, how))
    with pytest.raises(IcestreamError):
        stream.write(3)
    assert how == "drop" or 3 not in stream.ids()

    with pytest.raises(CheckpointLostError) as caught:
        stream.write()
    assert caught.value.what == problem
    assert how == "drop" or 3 not in stream.ids()


def test_branch_dropped_during_a_run_is_reported(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(lake, "append")
    stream.source.append_rows([row(0, "events")])
    lake.run(stream.plan(branch="dev"))
    stream.source.append_rows([row(1, "events")])
    ConcurrentWriter(monkeypatch, lambda: lake.sql("ALTER TABLE lake.db.events DROP BRANCH dev"))
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(stream.plan(branch="dev"))

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {lake.name}.db.events: branch 'dev' was dropped; the "
        "rows that this pipeline committed are no longer all there\n"
        "  Nothing was written. Run the pipeline again: it lists the ways to continue."
    )
    assert "dev" not in lake.catalog.client().load_table("db.events").refs()


def test_maintenance_by_other_tools_does_not_stop_the_pipeline(lake: Lake) -> None:
    stream = Stream(lake, "append")
    tools = [
        ["INSERT INTO lake.db.events VALUES (100, 'x', 'x')"],
        [
            "DELETE FROM lake.db.events WHERE id = 0",
            f"CALL {lake.name}.system.rewrite_data_files(table => 'db.events', "
            "options => map('rewrite-all', 'true'))",
            f"CALL {lake.name}.system.rewrite_manifests('db.events')",
        ],
        ["ALTER TABLE lake.db.events UNSET TBLPROPERTIES ('icestream.mark-snapshot.events')"],
    ]
    for number, commands in enumerate([[], *tools]):
        for command in commands:
            lake.sql(command)
        if commands:
            expire(lake)
        stream.source.append_rows([row(number, "events")])
        lake.run(stream.plan(format_version=2))
    assert stream.ids() == [1, 2, 3, 100]


def test_commit_of_another_writer_is_no_replacement_if_the_catalog_shows_one_snapshot(
    lake: Lake,
) -> None:
    """The REST server of Nessie shows the newest snapshot, without its parent."""
    stream = Stream(lake, "append")
    stream.write(0)
    lake.sql(
        "CREATE OR REPLACE TABLE lake.db.events USING iceberg "
        "TBLPROPERTIES ('nessie.catalog.content-id' = 'c') AS SELECT * FROM lake.db.events"
    )
    expire(lake)
    stream.write(1)
    assert stream.ids() == [0, 1]


def test_recorded_snapshot_is_the_committed_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    append(lake, sink, pa.table({"id": [1]}))
    files = written(sink, pa.table({"id": [2]}))
    other = lake.sink()
    other.open(lake.spark, "other")
    theirs = [written(other, pa.table({"id": [n]})) for n in (3, 4)]
    original = Fence.validate
    moved: list[int] = []

    def validate(fence: Fence, ancestors: object) -> bool:
        passed = original(fence, ancestors)
        if fence._key.endswith(".events") and len(moved) < 2:
            moved.append(len(moved))
            other.commit_unmarked(theirs[moved[-1]])
        return passed

    monkeypatch.setattr(Fence, "validate", validate)
    commit = sink.commit(files, mark(1, rows=1))

    assert (commit.retries, len(moved)) == (2, 2)
    table = lake.catalog.client().load_table("db.events")
    head = table.current_snapshot()
    assert head is not None
    recorded = json.loads(table.properties["icestream.mark-snapshot.events"])
    assert recorded["snapshot"] == head.snapshot_id == commit.snapshot_id
    assert recorded["table"] == str(table.metadata.table_uuid)
    assert recorded["sequence"] <= (head.sequence_number or 0)
    assert sink.lost_rows() == lake.sink().lost_rows() == []


def test_invalid_snapshot_record_is_reported(lake: Lake) -> None:
    sink = lake.sink()
    append(lake, sink, pa.table({"id": [1]}))
    sink.target.handle.set_properties({"icestream.mark-snapshot.events": "[]"})
    with pytest.raises(CorruptStateError) as caught:
        lake.sink().open(lake.spark, "events")

    assert caught.value.what == (
        "table property 'icestream.mark-snapshot.events' is not a snapshot recorded by icestream: "
        "'[]'"
    )
