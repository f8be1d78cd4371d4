"""Branches: written to by themselves, checked, and then published; or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.power_cut import power_cut_at

from icestream.engine.crash_points import POINTS
from icestream.errors import CheckpointLostError, PublishError
from icestream.metrics.events import BatchWritten
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
IDS = {"name": "ids", "sql": "SELECT * FROM rows WHERE id IS NULL;"}
AUDIT: dict[str, Any] = {"branch": "audit", "publish": {"checks": [IDS]}}


def numbered(start: int, stop: int) -> list[dict[str, object]]:
    return [{"id": n, "name": f"row {n}"} for n in range(start, stop)]


@pytest.fixture
def source() -> ScriptedSource:
    scripted = ScriptedSource(schema=SCHEMA)
    scripted.append_rows(numbered(0, 6))
    return scripted


def plan(lake: Lake, source: ScriptedSource, **options: Any) -> PipelinePlan:
    return lake.plan(source, batching=Batching(1, 0.1, 3), **(options or AUDIT))


def ids(lake: Lake, branch: str = "main") -> list[int | None]:
    table = lake.catalog.client().load_table(("db", "events"))
    reference = table.refs().get(branch)
    if reference is None:
        return []
    rows = table.scan(snapshot_id=reference.snapshot_id).to_arrow().to_pylist()
    return sorted((row["id"] for row in rows), key=lambda n: -1 if n is None else n)


def test_rows_go_to_the_branch_of_a_new_table(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source, branch="dev"))
    source.append_rows(numbered(6, 8))
    lake.run(plan(lake, source, branch="dev"))

    assert ids(lake, "dev") == list(range(8))
    assert "main" not in lake.catalog.client().load_table(("db", "events")).refs()
    assert lake.rows() == []


def test_branch_starts_at_main_and_leaves_main_unchanged(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(plan(lake, source, branch="main"))
    source.append_rows(numbered(6, 8))
    lake.run(plan(lake, source, branch="dev"))

    assert ids(lake) == list(range(6))
    assert ids(lake, "dev") == list(range(8))


@pytest.mark.parametrize(
    ("point", "mode"), [("after-commit", "append"), ("before-commit", "overwrite_table")]
)
def test_branch_holds_each_row_once_after_a_crash(
    lake: Lake, source: ScriptedSource, point: str, mode: str
) -> None:
    lake.run(plan(lake, source, branch="dev", commit_mode=mode))
    source.append_rows(numbered(6, 14))
    with power_cut_at(point, times=2):
        lake.run(plan(lake, source, branch="dev", commit_mode=mode))
    lake.run(plan(lake, source, branch="dev", commit_mode=mode))

    assert ids(lake, "dev") == list(range(0 if mode == "append" else 6, 14))


def test_rows_that_pass_the_checks_are_published(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source))
    assert ids(lake) == list(range(6))

    source.append_rows(numbered(6, 8))
    lake.run(plan(lake, source))
    assert ids(lake) == list(range(8))
    table = lake.catalog.client().load_table(("db", "events"))
    assert table.refs()["main"].snapshot_id == table.refs()["audit"].snapshot_id


def test_failed_check_stops_before_readers_see_a_row(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source))
    source.append_rows([{"id": None, "name": "x"}, *numbered(6, 8), *numbered(8, 11)])
    with pytest.raises(PublishError) as caught:
        lake.run(plan(lake, source))

    assert str(caught.value).splitlines() == [
        f"pipeline 'events', batch 2, table {lake.name}.db.events: check 'ids' finds 1 row on "
        "branch 'audit'; nothing was published to 'main'",
        '  Show the rows: icestream query --branch audit "SELECT * FROM db.events"',
        "  Fix the rows on the branch, or the check, and run again: the checks are repeated, and "
        "no later batch is written until they pass.",
        "  To publish the rows as they are, in Spark SQL: "
        f"CALL {lake.name}.system.fast_forward('db.events', 'main', 'audit')",
    ]
    assert caught.value.exit_code == 5
    assert [one.epoch for one in lake.events if isinstance(one, BatchWritten)] == [0, 1, 2]
    assert ids(lake) == list(range(6))
    with pytest.raises(PublishError):
        lake.run(plan(lake, source))
    assert ids(lake, "audit") == [None, *range(8)], "no later batch is written"
    assert ids(lake) == list(range(6))


def test_rows_fixed_on_the_branch_are_published_and_the_pipeline_continues(
    lake: Lake, source: ScriptedSource
) -> None:
    source.append_rows([{"id": None, "name": "x"}, *numbered(6, 9)])
    with pytest.raises(PublishError):
        lake.run(plan(lake, source))
    lake.sql("DELETE FROM lake.db.events.branch_audit WHERE id IS NULL")
    lake.run(plan(lake, source))

    assert ids(lake) == list(range(9))


def test_manually_published_rows_let_the_pipeline_continue(
    lake: Lake, source: ScriptedSource
) -> None:
    none_wanted = {"name": "none", "sql": "SELECT 1 FROM rows WHERE id < 3"}
    audit = {"branch": "audit", "publish": {"checks": [none_wanted]}}
    with pytest.raises(PublishError, match="check 'none' finds 3 rows"):
        lake.run(plan(lake, source, **audit))
    lake.sql(f"CALL {lake.name}.system.fast_forward('db.events', 'main', 'audit')")
    with pytest.raises(PublishError, match="batch 1, "):
        lake.run(plan(lake, source, **audit))

    assert ids(lake) == [0, 1, 2]


@pytest.mark.parametrize("point", POINTS)
def test_rows_on_the_branch_are_published_after_a_crash(
    lake: Lake, source: ScriptedSource, point: str
) -> None:
    with power_cut_at(point, times=2):
        lake.run(plan(lake, source))
    assert ids(lake) == list(range(6 if point == "after-batch" else 3))
    lake.run(plan(lake, source))

    assert ids(lake) == list(range(6))


def test_check_sees_the_branch_and_what_is_published(lake: Lake, source: ScriptedSource) -> None:
    published = f"(SELECT count(*) FROM {lake.name}.db.events)"  # noqa: S608 - our own names
    shrinks = {
        "name": "grows",
        "sql": f"WITH n AS (SELECT count(*) AS c FROM rows) SELECT c FROM n WHERE c < {published}",  # noqa: S608
    }
    few = {"name": "few", "sql": "SELECT count(*) FROM rows HAVING count(*) > 5"}
    audit = {"branch": "audit", "publish": {"checks": [shrinks, few]}}
    with pytest.raises(PublishError, match=r"batch 1, .*check 'few' finds 1 row"):
        lake.run(plan(lake, source, **audit))

    assert ids(lake) == [0, 1, 2]


def test_check_that_cannot_run_publishes_nothing(lake: Lake, source: ScriptedSource) -> None:
    wrong = {"name": "wrong", "sql": "SELECT nothing FROM rows"}
    with pytest.raises(PublishError) as caught:
        lake.run(plan(lake, source, branch="audit", publish={"checks": [wrong]}))

    assert caught.value.what.startswith(
        "check 'wrong' can't be run on branch 'audit': [UNRESOLVED_COLUMN.WITH_SUGGESTION]"
    )
    assert caught.value.todo == (
        "The batch is on 'audit', and nothing of it was published to 'main'. Fix the query and "
        "run again."
    )
    assert ids(lake) == []


def test_main_branch_moved_by_another_writer_is_reported(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(plan(lake, source))
    lake.sql("INSERT INTO lake.db.events VALUES (100, 'other')")
    moved = lake.catalog.client().load_table(("db", "events")).refs()["main"].snapshot_id
    source.append_rows(numbered(6, 8))
    with pytest.raises(PublishError) as caught:
        lake.run(plan(lake, source))

    assert str(caught.value) == (
        f"pipeline 'events', batch 2, table {lake.name}.db.events: 'main' was moved by another "
        f"writer to snapshot {moved}, which branch 'audit' does not have, so it can't be moved "
        "forward\n"
        "  The batch is on 'audit'. Let this pipeline alone write to 'main': roll it back to the "
        "branch's last published snapshot, in Spark SQL: CALL "
        f"{lake.name}.system.rollback_to_snapshot('db.events', ID), and run again."
    )
    assert ids(lake) == [*range(6), 100]


def test_changed_branch_in_the_file_is_reported(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source, branch="dev"))
    source.append_rows(numbered(6, 8))
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(plan(lake, source, branch="main"))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the rows of this pipeline, up to batch "
        "1, are on branch 'dev', and the file says 'main'\n"
        "  To bring them to 'main', use e.g. Spark's `fast_forward`, or write `branch: dev` "
        "again.\n"
        "  To continue without the rows: icestream run --pipeline events --resume\n"
        "  To read the source from the beginning: icestream run --pipeline events "
        "--start-over"
    )
    lake.sql(f"CALL {lake.name}.system.fast_forward('db.events', 'main', 'dev')")
    lake.run(plan(lake, source, branch="main"))
    assert ids(lake) == list(range(8))


def test_branch_dropped_with_its_rows_is_reported(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source, branch="dev"))
    lake.sql("ALTER TABLE lake.db.events DROP BRANCH dev")
    source.append_rows(numbered(6, 8))
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(plan(lake, source, branch="dev"))

    assert caught.value.what == (
        "branch 'dev' was dropped; the rows that this pipeline committed, up to batch 1, are no "
        "longer all there"
    )
    bring_back = (caught.value.todo or "").splitlines()[0].partition("Spark SQL: ")[2]
    lake.sql(bring_back)
    lake.run(plan(lake, source, branch="dev"))
    assert ids(lake, "dev") == list(range(8))

    lake.sql("ALTER TABLE lake.db.events DROP BRANCH dev")
    lake.run(plan(lake, source, branch="dev"), recovery="start-over")
    assert ids(lake, "dev") == list(range(8))


def test_branch_dropped_after_its_rows_were_published_is_created_again(
    lake: Lake, source: ScriptedSource
) -> None:
    lake.run(plan(lake, source))
    lake.sql("ALTER TABLE lake.db.events DROP BRANCH audit")
    source.append_rows(numbered(6, 8))
    lake.run(plan(lake, source))

    assert ids(lake) == ids(lake, "audit") == list(range(8))
