"""Each row once: after replays, expiry, lost checkpoints, lost answers and other instances."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.sink import Sink
from icestream.engine.batch import batch as batch_module
from icestream.errors import CheckpointLostError, CorruptStateError, SupersededError
from icestream.metrics.events import BatchSkipped, BatchWritten
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def numbered(start: int, stop: int) -> list[dict[str, object]]:
    return [{"id": n, "name": f"row {n}"} for n in range(start, stop)]


@pytest.fixture
def source() -> ScriptedSource:
    scripted = ScriptedSource(schema=SCHEMA)
    scripted.append_rows(numbered(0, 10))
    return scripted


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def forget_last_commit(lake: Lake, pipeline: str = "events") -> None:
    """Leave the checkpoint as a crash between the table's commit and Spark's own would."""
    commits = lake.state / "checkpoints" / pipeline / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(newest), commits / f".{newest}.crc"):
        path.unlink()


def test_rows_arrive_and_later_rows_are_added(lake: Lake, source: ScriptedSource) -> None:
    lake.run(lake.plan(source))
    source.append_rows(numbered(10, 15))
    lake.run(lake.plan(source))

    assert ids(lake) == list(range(15))


def test_replayed_batch_is_not_written_again(lake: Lake, source: ScriptedSource) -> None:
    lake.run(lake.plan(source))
    forget_last_commit(lake)
    lake.events.clear()
    lake.run(lake.plan(source))

    assert ids(lake) == list(range(10))
    assert [e.epoch for e in lake.events if isinstance(e, BatchSkipped)] == [0]
    assert not [e for e in lake.events if isinstance(e, BatchWritten)]


def test_replay_after_compaction_and_expiry_by_another_tool_is_not_written_again(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(lake.plan(source))
    source.append_rows(numbered(10, 20))
    lake.run(lake.plan(source))
    forget_last_commit(lake)
    lake.sql(
        f"CALL {lake.name}.system.rewrite_data_files(table => 'db.events', "
        "options => map('rewrite-all', 'true'))"
    )
    lake.sql(
        f"CALL {lake.name}.system.expire_snapshots(table => 'db.events', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    lake.run(lake.plan(source))

    assert ids(lake) == list(range(20))
    assert lake.sql("SELECT count(*) FROM lake.db.events.snapshots")[0][0] == 1


def test_crash_between_write_and_commit_writes_the_batch_once(
    lake: Lake, source: ScriptedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCutError(Exception):
        pass

    def cut(point: str) -> None:
        if point == "before-commit":
            raise PowerCutError

    monkeypatch.setattr(batch_module, "crash_point", cut)
    with pytest.raises(PowerCutError):
        lake.run(lake.plan(source))
    monkeypatch.undo()
    lake.run(lake.plan(source))

    assert ids(lake) == list(range(10))


def test_marks_without_a_checkpoint_stop_the_pipeline_and_offer_two_remedies(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(lake.plan(source))
    shutil.rmtree(lake.state)
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(lake.plan(source))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the table holds this pipeline's rows "
        "up to batch 0, but there is no checkpoint\n"
        '  To resume after the last committed row, at {"row": 10}: '
        "icestream run --pipeline events --resume\n"
        "  To read the source from the beginning, keeping the rows in the table: "
        "icestream run --pipeline events --start-over"
    )
    assert caught.value.exit_code == 5


def test_resuming_from_the_mark_continues_after_the_last_row(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(lake.plan(source))
    shutil.rmtree(lake.state)
    source.append_rows(numbered(10, 15))
    lake.run(lake.plan(source), recovery="resume")
    source.append_rows(numbered(15, 20))
    lake.run(lake.plan(source))

    assert ids(lake) == list(range(20))


def test_starting_over_reads_everything_again_and_then_continues(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(lake.plan(source))
    shutil.rmtree(lake.state)
    lake.run(lake.plan(source), recovery="start-over")
    source.append_rows(numbered(10, 12))
    lake.run(lake.plan(source))

    assert ids(lake) == sorted([*range(10), *range(10), 10, 11])


def test_renamed_pipeline_is_detected_by_its_source(lake: Lake, source: ScriptedSource) -> None:
    lake.run(lake.plan(source))
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(lake.plan(source, name="renamed"))

    assert caught.value.what == (
        "the table holds rows of the same source up to batch 0, written by pipeline 'events', "
        "which is no longer in the file"
    )
    source.append_rows(numbered(10, 12))
    lake.run(lake.plan(source, name="renamed"), recovery="resume")
    assert ids(lake) == list(range(12))


def test_checkpoint_from_an_older_backup_is_refused(lake: Lake, source: ScriptedSource) -> None:
    lake.run(lake.plan(source))
    shutil.copytree(lake.state, lake.folder / "backup")
    source.append_rows(numbered(10, 15))
    lake.run(lake.plan(source))
    shutil.rmtree(lake.state)
    shutil.copytree(lake.folder / "backup", lake.state)
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(lake.plan(source))

    assert caught.value.what == (
        "the table holds this pipeline's rows up to batch 1, but the checkpoint, an older copy, "
        "ends at batch 0"
    )
    assert ids(lake) == list(range(15))


def test_table_dropped_between_runs_is_detected(lake: Lake, source: ScriptedSource) -> None:
    lake.run(lake.plan(source))
    lake.catalog.client().drop_table(("db", "events"))
    source.append_rows(numbered(10, 15))
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(lake.plan(source))

    assert caught.value.what == (
        "the pipeline has committed rows, but the table has no mark of it: it was dropped or "
        "recreated, or the mark was removed"
    )


@pytest.mark.parametrize("name", ["metadata", "offsets/0"])
def test_corrupt_checkpoint_file_is_reported(lake: Lake, source: ScriptedSource, name: str) -> None:
    lake.run(lake.plan(source))
    path = lake.state / "checkpoints" / "events" / name
    path.write_text("not what Spark wrote")
    with pytest.raises(CorruptStateError) as caught:
        lake.run(lake.plan(source))

    assert caught.value.what.startswith(f"the checkpoint file {path} can't be read: ")


def test_corrupt_state_file_is_reported(lake: Lake, source: ScriptedSource) -> None:
    lake.run(lake.plan(source))
    path = lake.state / "pipelines" / "events" / "start.json"
    path.write_text("{")
    with pytest.raises(CorruptStateError) as caught:
        lake.run(lake.plan(source))

    assert caught.value.what.startswith(f"the file {path} can't be read: ")


def test_superseded_instance_commits_nothing_and_reports_it(
    lake: Lake, source: ScriptedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other instance commits while this one stands between its write and its commit."""
    lake.run(lake.plan(source))
    source.append_rows(numbered(10, 15))
    original = Sink.commit_batch
    overtaken: list[Any] = []

    def commit_batch(sink: Any, files: Any, mark: Any, on_commit: Any) -> Any:
        if not overtaken:
            overtaken.append(mark)
            other = lake.sink()
            other.open(lake.spark, "events")
            original(other, files, replace(mark, instance="other"), on_commit)
        return original(sink, files, mark, on_commit)

    monkeypatch.setattr(Sink, "commit_batch", commit_batch)
    with pytest.raises(SupersededError) as caught:
        lake.run(lake.plan(source))

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {lake.name}.db.events: another instance of this "
        "pipeline has taken over and wrote batch 1\n"
        "  Nothing was written by this one. Run one instance of a pipeline at a time."
    )
    monkeypatch.undo()
    lake.run(lake.plan(source))
    assert ids(lake) == list(range(15))


def test_second_instance_on_the_same_state_is_refused_at_once(
    lake: Lake, source: ScriptedSource
) -> None:
    first = lake.runner(lake.plan(source))
    first.state.make()
    with first.state.locked(), pytest.raises(SupersededError) as caught:
        lake.run(lake.plan(source))

    assert "the pipeline is already running as process " in caught.value.what
    assert first.state.status() is None, "the status file is the first one's"


def test_instance_superseded_before_the_table_existed_does_not_adopt_the_other_mark(
    lake: Lake, source: ScriptedSource
) -> None:
    """The fence stays shut although this instance meets the table only after the other's commit."""
    late = lake.sink()
    late.open(lake.spark, "events")
    lake.run(lake.plan(source))
    with pytest.raises(SupersededError, match="has taken over and wrote batch 0"):
        late.prepare(SCHEMA)

    assert ids(lake) == list(range(10))


def test_table_dropped_after_a_skipped_replay_is_detected(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(lake.plan(source))
    forget_last_commit(lake)
    (lake.state / "pipelines" / "events" / "status.json").unlink()
    lake.run(lake.plan(source))
    lake.catalog.client().drop_table(("db", "events"))
    with pytest.raises(CheckpointLostError, match="the table has no mark of it"):
        lake.run(lake.plan(source))
