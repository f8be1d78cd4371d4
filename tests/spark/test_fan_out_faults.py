"""Many tables when things go wrong: one that refuses, lost state, other instances."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import PowerCutError, ids, planned, row, scripted, tables, written

from icestream.errors import (
    CheckpointLostError,
    CommitConflictError,
    SchemaMismatchError,
    SupersededError,
    TransientError,
)
from icestream.metrics.events import RecordsFailed
from icestream.sinks.iceberg.sink import IcebergTableSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the commits of some tables fail."""
    original = IcebergTableSink.commit

    def fail(error: Exception, *names: str) -> None:
        def commit(self: IcebergTableSink, *arguments: Any) -> Any:
            if self.table in names:
                # One each: tables fail side by side, and every error says where.
                raise copy.copy(error)
            return original(self, *arguments)

        monkeypatch.setattr(IcebergTableSink, "commit", commit)

    return fail


def forget_last_commit(lake: Lake) -> None:
    """Leave the checkpoint as a crash after the table's commits, before Spark's own, would."""
    commits = lake.state / "checkpoints" / "events" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(newest), commits / f".{newest}.crc"):
        path.unlink()


def test_table_with_incompatible_rows_is_reported_and_the_others_are_written(lake: Lake) -> None:
    lake.sql(f"CREATE NAMESPACE {lake.name}.db")
    lake.sql(f"CREATE TABLE {lake.name}.db.b (id STRING, kind STRING) USING iceberg")
    source = scripted(row(1, "a"), row(2, "b"), row(3, "c"))
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(planned(lake, source, allowed_tables=("db.b",)))

    assert caught.value.where == f"pipeline 'events', table {lake.name}.db.b"
    assert caught.value.what == "column 'id' is string in the table and long in the stream"
    assert caught.value.todo.splitlines()[-1] == (
        "2 other tables have committed the batch; a replay skips what is committed."
    )
    lake.sql(f"DROP TABLE {lake.name}.db.b")
    lake.run(planned(lake, source))
    assert [ids(lake, name) for name in "abc"] == [[1], [2], [3]]


def test_all_tables_that_keep_failing_are_reported(
    lake: Lake, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"), row(3, "c"))
    failing(CommitConflictError("refused 4 times"), "b", "c")
    with pytest.raises(CommitConflictError) as caught:
        lake.run(planned(lake, source))

    assert str(caught.value) == (
        f"pipeline 'events', batch 0, table {lake.name}.db.b: refused 4 times\n"
        f"  These tables failed too: {lake.name}.db.c.\n"
        "  1 other table has committed the batch; a replay skips what is committed."
    )
    monkeypatch.undo()
    lake.run(planned(lake, source))
    assert [ids(lake, name) for name in "abc"] == [[1], [2], [3]]


def test_rows_of_a_table_that_keeps_failing_become_dead_letters(
    lake: Lake, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"), row(3, None), row(4, "b"))
    failing(CommitConflictError("refused 4 times"), "b")
    lake.run(planned(lake, source, on_error="dead_letter"))

    letters = sorted(lake.rows("dead"), key=lambda letter: letter["raw"])
    reason = f"table {lake.name}.db.b: refused 4 times"
    assert [(letter["raw"], letter["reason"]) for letter in letters] == [
        (b'{"id": 2, "kind": "b", "note": null}', reason),
        (
            b'{"id": 3, "kind": null, "note": null}',
            "`route_by` is null for the row",
        ),
        (b'{"id": 4, "kind": "b", "note": null}', reason),
    ]
    assert {letter["position"] for letter in letters} == {
        f"scripted scripted, part {part}, row {place}" for part, place in ((0, 1), (1, 0), (1, 1))
    }
    failed = {e.table: e.count for e in lake.events if isinstance(e, RecordsFailed)}
    assert failed == {f"{lake.name}.db.*": 1, f"{lake.name}.db.b": 2}

    # Dead letters are written last: a replay finds the batch complete, even if the table works.
    monkeypatch.undo()
    forget_last_commit(lake)
    lake.run(planned(lake, source, on_error="dead_letter"))
    source.append_rows([row(5, "b"), row(6, "a")])
    lake.run(planned(lake, source, on_error="dead_letter"))
    assert (ids(lake, "a"), ids(lake, "b"), len(lake.rows("dead"))) == ([1, 6], [5], 3)


def test_transient_fault_causes_no_dead_letters(
    lake: Lake, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"))
    failing(TransientError("the catalog is away"), "b")
    with pytest.raises(TransientError) as caught:
        lake.run(planned(lake, source, on_error="dead_letter"))

    assert str(caught.value) == (
        f"pipeline 'events', batch 0, table {lake.name}.db.b: the catalog is away"
    )
    monkeypatch.undo()
    lake.run(planned(lake, source, on_error="dead_letter"))
    assert (ids(lake, "a"), ids(lake, "b"), lake.rows("dead")) == ([1], [2], [])


def test_unknown_table_is_refused_if_none_may_be_created(lake: Lake) -> None:
    source = scripted(row(1, "a"))
    lake.run(planned(lake, source))
    source.append_rows([row(2, "a"), row(3, "new")])
    lake.run(planned(lake, source, on_error="dead_letter", create=False))

    assert ids(lake, "a") == [1, 2]
    assert tables(lake) == ["a", "dead"]
    assert [letter["reason"] for letter in lake.rows("dead")] == [
        f"table {lake.name}.db.new: the table does not exist, and `create` is false"
    ]


def test_resuming_without_a_checkpoint_fills_the_tables_that_lack_the_last_batch(
    lake: Lake, failing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"))
    lake.run(planned(lake, source))
    source.append_rows([row(3, "a"), row(4, "b"), row(5, "c")])
    failing(PowerCutError(), "b")
    with pytest.raises(PowerCutError):
        lake.run(planned(lake, source))
    monkeypatch.undo()
    shutil.rmtree(lake.state)
    with pytest.raises(CheckpointLostError, match="up to batch 1, but there is no checkpoint"):
        lake.run(planned(lake, source))

    source.append_rows([row(6, "a")])
    lake.events.clear()
    lake.run(planned(lake, source), recovery="resume")
    assert [ids(lake, name) for name in "abc"] == [[1, 3, 6], [2, 4], [5]]
    assert written(lake) == {f"db.{name}": 1 for name in "ab"}

    # Once more: the newest mark is that of the second checkpoint, though its numbers are small.
    shutil.rmtree(lake.state)
    source.append_rows([row(7, "c")])
    lake.run(planned(lake, source), recovery="resume")
    source.append_rows([row(8, "b")])
    lake.run(planned(lake, source))
    assert [ids(lake, name) for name in "abc"] == [[1, 3, 6], [2, 4, 8], [5, 7]]


def test_starting_over_appends_to_every_table(lake: Lake) -> None:
    source = scripted(row(1, "a"), row(2, "b"))
    lake.run(planned(lake, source))
    lake.run(planned(lake, source), recovery="start-over")

    assert (ids(lake, "a"), ids(lake, "b")) == ([1, 1], [2, 2])


def test_table_not_found_at_the_start_is_not_written_again(lake: Lake) -> None:
    source, allowed = scripted(row(1, "other.a")), ("other.*",)
    lake.run(planned(lake, source, allowed_tables=allowed))
    shutil.rmtree(lake.state)
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(planned(lake, source, allowed_tables=allowed))

    assert str(caught.value) == (
        f"pipeline 'events', batch 0, table {lake.name}.other.a: the table holds this pipeline's "
        "rows up to batch 0 of another checkpoint, and was not found at the start: it is outside "
        "of the sink's namespace, or could not be read then\n"
        "  Nothing was written to it. To write to it all the same, next to what it holds, unset "
        "its property 'icestream.mark.events'."
    )


def test_renamed_pipeline_must_get_its_name_back(lake: Lake) -> None:
    source = scripted(row(1, "a"))
    lake.run(planned(lake, source))
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(planned(lake, source, name="renamed"), recovery="resume")

    assert str(caught.value) == (
        f"pipeline 'renamed', table {lake.name}.db.*: the tables hold rows of the same source up "
        "to batch 0, written by pipeline 'events', which is no longer in the file\n"
        "  Rename the pipeline back to 'events': the tables' marks carry that name.\n"
        "  To read the source from the beginning, keeping the rows in the tables: list the "
        "tables in `allowed_tables` of the sink, since another pipeline created them, then run "
        "icestream run --pipeline renamed --start-over"
    )


def test_instance_superseded_in_one_table_stops(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"))
    original = IcebergTableSink.commit

    def commit(self: IcebergTableSink, files: Any, mark: Any) -> Any:
        monkeypatch.undo()
        other = lake.sink("a")
        other.open(lake.spark, "events")
        original(other, files, replace(mark, instance="other"))
        return original(self, files, mark)

    monkeypatch.setattr(IcebergTableSink, "commit", commit)
    with pytest.raises(SupersededError) as caught:
        lake.run(planned(lake, source, on_error="dead_letter"))

    assert caught.value.where == f"pipeline 'events', batch 0, table {lake.name}.db.a"
    assert ids(lake, "a") == [1]
