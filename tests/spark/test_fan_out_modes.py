"""Every commit mode, and branches, where one stream goes into many tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import ids, planned, row, scripted, skipped, written
from tests.fixtures.power_cut import power_cut_at

from icestream.engine.crash_points import AFTER_TABLE, POINTS
from icestream.errors import PublishError, SchemaMismatchError
from icestream.plan.plan import Batching

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.testing.scripted import ScriptedSource

CUTS = (*POINTS, AFTER_TABLE)
KINDS = "abc"
BY_NOTE: dict[str, Any] = {"partitioning": ("note",)}
NAMED: dict[str, Any] = {
    "commit_mode": "overwrite_partitions",
    "overwrite_partitions": ("note=x",),
    **BY_NOTE,
}
IDS = {"name": "ids", "sql": "SELECT * FROM rows WHERE id < 0"}
AUDIT: dict[str, Any] = {"branch": "audit", "publish": {"checks": [IDS]}}


def numbered(start: int, stop: int, note: str | None = None) -> list[dict[str, object]]:
    return [row(n, KINDS[n % len(KINDS)], note) for n in range(start, stop)]


def load(lake: Lake, source: ScriptedSource, **options: Any) -> None:
    """Load what the source has, some rows a batch, so that a load has several."""
    plan = planned(lake, source, **options)
    lake.run(replace(plan, batching=Batching(1, 0.1, 6)))


def shares(start: int, stop: int) -> list[list[int]]:
    return [[n for n in range(start, stop) if n % len(KINDS) == one] for one in range(len(KINDS))]


def held(lake: Lake) -> list[list[int]]:
    return [ids(lake, kind) for kind in KINDS]


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_table"])
def test_load_replaces_each_table_once_and_then_appends(lake: Lake, mode: str) -> None:
    layout = BY_NOTE if mode == "overwrite" else {}
    source = scripted(*numbered(0, 12, "x"))
    load(lake, source, commit_mode=mode, **layout)
    assert held(lake) == shares(0, 12)

    source.append_rows(numbered(12, 30, "x"))
    load(lake, source, commit_mode=mode, **layout)
    assert held(lake) == shares(12, 30)


def test_load_leaves_tables_without_rows_unchanged(lake: Lake) -> None:
    source = scripted(*numbered(0, 6))
    load(lake, source, commit_mode="overwrite_table")
    source.append_rows([row(100, "b"), row(101, "new")])
    load(lake, source, commit_mode="overwrite_table")

    assert held(lake) == [[0, 3], [100], [2, 5]]
    assert ids(lake, "new") == [101]


@pytest.mark.parametrize(
    ("point", "mode"),
    [*((point, "overwrite") for point in CUTS), (AFTER_TABLE, "overwrite_table")],
)
def test_interrupted_load_is_resumed_in_every_table(lake: Lake, point: str, mode: str) -> None:
    source = scripted(*numbered(0, 6))
    load(lake, source, commit_mode=mode)
    source.append_rows(numbered(6, 18))
    with power_cut_at(point, times=2):
        load(lake, source, commit_mode=mode)
    load(lake, source, commit_mode=mode)
    assert held(lake) == shares(6, 18)

    source.append_rows(numbered(18, 24))
    load(lake, source, commit_mode=mode)
    assert held(lake) == shares(18, 24), "the next load replaces again"


def test_replay_replaces_only_the_tables_without_the_batch(lake: Lake) -> None:
    source = scripted(*numbered(0, 3))
    lake.run(planned(lake, source, commit_mode="overwrite_table"))
    source.append_rows(numbered(3, 6))
    with power_cut_at("after-commit"):
        lake.run(planned(lake, source, commit_mode="overwrite_table"))
    lake.events.clear()
    lake.run(planned(lake, source, commit_mode="overwrite_table"))

    assert held(lake) == shares(3, 6)
    assert (skipped(lake), written(lake)) == (["db.a", "db.b", "db.c"], {})


def test_named_partitions_are_replaced_in_the_tables_that_rows_name(lake: Lake) -> None:
    source = scripted(*numbered(0, 6, "x"), *numbered(6, 12, "y"))
    lake.run(planned(lake, source, **BY_NOTE))
    source.append_rows([row(20, "a", "x"), row(21, "b", "x")])
    with power_cut_at(AFTER_TABLE):
        lake.run(planned(lake, source, **NAMED))
    lake.run(planned(lake, source, **NAMED))

    assert held(lake) == [[6, 9, 20], [7, 10, 21], [2, 5, 8, 11]]


def test_table_with_a_row_outside_the_named_partitions_is_refused_by_name(lake: Lake) -> None:
    source = scripted(row(1, "a", "x"), row(2, "b", "y"))
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(planned(lake, source, **NAMED))

    assert caught.value.where == f"pipeline 'events', table {lake.name}.db.b"
    assert caught.value.what == (
        "1 row of the batch belong to partition 'note=y', which `overwrite_partitions` does not "
        "name: 'note=x'"
    )
    assert (ids(lake, "a"), lake.rows("b")) == ([1], [])


def seen(lake: Lake, branch: str) -> list[list[int]]:
    """Return the ids that readers of a branch see in each table."""
    found = []
    for kind in KINDS:
        table = lake.catalog.client().load_table(("db", kind))
        reference = table.refs().get(branch)
        rows: list[dict[str, Any]] = []
        if reference is not None:
            rows = table.scan(snapshot_id=reference.snapshot_id).to_arrow().to_pylist()
        found.append(sorted(one["id"] for one in rows))
    return found


def test_rows_go_to_the_branch_of_each_table(lake: Lake) -> None:
    source = scripted(*numbered(0, 6))
    lake.run(planned(lake, source))
    source.append_rows(numbered(6, 12))
    lake.run(planned(lake, source, branch="dev"), recovery="resume")

    assert seen(lake, "dev") == shares(0, 12)
    assert seen(lake, "main") == shares(0, 6)


def test_first_batch_publishes_also_the_tables_that_it_does_not_name(lake: Lake) -> None:
    source = scripted(*numbered(0, 6))
    lake.run(planned(lake, source, branch="audit"))
    assert seen(lake, "main") == [[], [], []]
    source.append_rows([row(6, "a")])
    lake.run(planned(lake, source, **AUDIT))

    assert seen(lake, "main") == shares(0, 7)


@pytest.mark.parametrize("point", ["before-commit", AFTER_TABLE, "after-commit", "after-batch"])
def test_every_table_is_published_wherever_the_run_is_interrupted(lake: Lake, point: str) -> None:
    source = scripted(*numbered(0, 12))
    with power_cut_at(point, times=2):
        load(lake, source, **AUDIT)
    load(lake, source, **AUDIT)

    assert seen(lake, "audit") == seen(lake, "main") == shares(0, 12)


def test_table_that_fails_its_check_stops_the_pipeline_and_the_others_are_published(
    lake: Lake,
) -> None:
    source = scripted(row(1, "a"), row(-1, "b"), row(2, "c"))
    with pytest.raises(PublishError) as caught:
        lake.run(planned(lake, source, **AUDIT))

    assert caught.value.where == f"pipeline 'events', batch 0, table {lake.name}.db.b"
    assert caught.value.what == (
        "check 'ids' finds 1 row on branch 'audit'; nothing was published to 'main'"
    )
    assert seen(lake, "main") == [[1], [], [2]]
    lake.sql("DELETE FROM lake.db.b.branch_audit WHERE id < 0")
    source.append_rows([row(3, "a")])
    lake.run(planned(lake, source, **AUDIT))
    assert seen(lake, "main") == seen(lake, "audit") == [[1, 3], [], [2]]
