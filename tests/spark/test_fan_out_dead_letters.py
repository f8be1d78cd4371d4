"""Dead letters of many tables, replayed once their table accepts them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import PowerCutError, ids, planned, row, scripted

from icestream.engine.dead_letters.replay import Replay
from icestream.engine.dead_letters.table import PipelineDeadLetters
from icestream.errors import CommitConflictError
from icestream.sinks.iceberg.sink import IcebergTableSink
from icestream.tables.lookup import find_table

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.engine.dead_letters.replay import ReplayResult
    from icestream.testing.scripted import ScriptedSource


def box(lake: Lake) -> PipelineDeadLetters:
    catalogs = {lake.name: lake.catalog}
    return PipelineDeadLetters(
        lambda: find_table((lake.name, "db", "dead"), catalogs), "events", lake.spark
    )


def replayed(lake: Lake, source: ScriptedSource) -> ReplayResult:
    letters = box(lake)
    plan = planned(lake, source, on_error="dead_letter", allowed_tables=("other.*",))
    replay = Replay(lake.spark, plan, lake.state, letters)
    replay.open()
    replay.run(letters.read())
    return replay.outcome


def let_fail(monkeypatch: pytest.MonkeyPatch, error: Exception, *tables: str) -> None:
    original = IcebergTableSink.commit

    def commit(self: IcebergTableSink, *arguments: Any) -> Any:
        if self.table in tables:
            raise error
        return original(self, *arguments)

    monkeypatch.setattr(IcebergTableSink, "commit", commit)


def test_dead_letters_are_replayed_to_their_tables_once_despite_crashes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"), row(3, None), row(4, "other.c"))
    let_fail(monkeypatch, CommitConflictError("refused 4 times"), "b", "c")
    lake.run(planned(lake, source, on_error="dead_letter", allowed_tables=("other.*",)))
    assert (ids(lake, "a"), len(lake.rows("dead"))) == ([1], 3)
    monkeypatch.undo()

    let_fail(monkeypatch, PowerCutError(), "b")
    with pytest.raises(PowerCutError):
        replayed(lake, source)
    monkeypatch.undo()
    assert len(lake.rows("dead")) == 3, "one of the tables has its rows, and no letter is gone"

    outcome = replayed(lake, source)
    assert (outcome.finished, outcome.letters, outcome.replayed) == (2, 1, 0)
    assert outcome.still_bad == {"`route_by` is null for the row": 1}
    assert ids(lake, "b") == [2]
    assert [one[0] for one in lake.sql("SELECT id FROM lake.other.c")] == [4]
    assert [letter["raw"] for letter in lake.rows("dead")] == [
        b'{"id": 3, "kind": null, "note": null}'
    ]


def test_dead_letters_do_not_count_as_rows_of_dropped_tables(lake: Lake) -> None:
    source = scripted(row(1, "a"), row(2, None))
    lake.run(planned(lake, source, on_error="dead_letter"))
    lake.sql("DROP TABLE lake.db.a")
    shutil.rmtree(lake.state)
    lake.run(planned(lake, source, on_error="dead_letter"))

    assert ids(lake, "a") == [1]
    assert len(lake.rows("dead")) == 1, "the batch and its letter are the same as before"
