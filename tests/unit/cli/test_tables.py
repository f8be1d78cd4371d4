"""`icestream snapshots`, `query` and `status`, over a table that the tests create."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.cli.shop import FILE, make_table, plan_of, write_file

from icestream.engine.state import PipelineState

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("shop"))


def make_shop(folder: Path) -> Path:
    write_file(folder)
    make_table(plan_of(folder))
    return folder


@pytest.fixture
def look(icestream: Icestream, read_only: Path, monkeypatch: pytest.MonkeyPatch) -> Icestream:
    """A command that only reads, in a folder that such tests share."""
    monkeypatch.chdir(read_only)
    return icestream


def test_snapshots_show_history_newest_first(look: Icestream) -> None:
    document = look("snapshots", "--output", "json").document
    newest, oldest = document["snapshots"]
    assert document["table"] == "lake.demo.events"
    assert document["metadata_location"].endswith(".metadata.json")
    assert (newest["pipeline"], newest["epoch"], newest["is_current"]) == ("shop", 1, True)
    assert newest["parent_snapshot_id"] == oldest["snapshot_id"]
    assert oldest["parent_snapshot_id"] is None
    assert {"snapshot_id", "timestamp_ms", "manifest_list", "summary"} <= set(newest)
    assert newest["summary"]["operation"] == "append"
    assert newest["summary"]["icestream.position"] == '{"row": 6}'


@pytest.mark.parametrize(
    "arguments", [["demo.events"], ["lake.demo.events"], ["--pipeline", "shop"], []]
)
def test_table_is_found_by_any_of_its_names(look: Icestream, arguments: list[str]) -> None:
    ended = look("snapshots", *arguments, "--limit", "1")
    lines = ended.out.splitlines()
    assert lines[0] == "table     lake.demo.events"
    assert lines[4].split()[-2:] == ["shop", "1"]
    assert lines[5:] == ["... and 1 older snapshot"]


def test_unknown_table_gets_a_suggestion(look: Icestream) -> None:
    ended = look("snapshots", "demo.event")
    assert (ended.code, ended.err) == (
        1,
        "error: no table is called 'demo.event'\n"
        "  Did you mean 'demo.events'? Available: lake.demo.events.\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshots"],
        ["snapshots", "demo.events"],
        ["snapshots", "lake.demo.events"],
        ["schema", "show", "demo.events"],
        ["query", "SELECT * FROM demo.events"],
    ],
    ids=" ".join,
)
def test_command_that_reads_creates_no_catalog(
    icestream: Icestream, tmp_path: Path, arguments: list[str]
) -> None:
    write_file(tmp_path)
    ended = icestream(*arguments)
    assert (ended.code, ended.err.splitlines()[-1]) == (
        1,
        "  There are no tables yet. `icestream run` creates those that the file names.",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["icestream.yaml"]


def test_file_with_two_tables_needs_a_name(icestream: Icestream, tmp_path: Path) -> None:
    second = "  more: {connector: iceberg, config: {namespace: demo, table: more}}\n"
    write_file(tmp_path, FILE.replace("pipelines:", second + "pipelines:"))
    ended = icestream("snapshots")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: the file has 2 tables\n"
        "  Pass one of them as TABLE: lake.demo.events, lake.demo.more.\n",
    )


def test_query_prints_rows_as_a_table(look: Icestream) -> None:
    sql = "SELECT product, count(*) AS n FROM demo.events GROUP BY product ORDER BY n DESC"
    ended = look("query", sql)
    assert ended.out.splitlines() == ["product  n", "mug      4", "socks    2", "(2 rows)"]


def test_query_prints_rows_as_json(look: Icestream) -> None:
    sql = "SELECT id, price, {'a': [1]} AS nested FROM lake.demo.events ORDER BY id"
    document = look("query", sql, "--limit", "3", "--output", "json").document
    assert document == {
        "format_version": 1,
        "columns": ["id", "price", "nested"],
        "rows": [
            {"id": 0, "price": 8.5, "nested": {"a": [1]}},
            {"id": 1, "price": 2.0, "nested": {"a": [1]}},
            {"id": 2, "price": "nan", "nested": {"a": [1]}},
        ],
        "is_cut": True,
    }


def test_query_reports_omitted_rows(look: Icestream) -> None:
    ended = look("query", "SELECT * FROM demo.events", "--limit", "2")
    assert ended.out.splitlines()[-1] == "(2 rows)"
    assert ended.err == "Showing the first 2 rows; use --limit for more.\n"


def test_status_of_a_pipeline_that_never_ran(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    (one,) = icestream("status", "--output", "json").document["pipelines"]
    assert (one["state"], one["rows"], one["snapshot_id"], one["mark"]) == (
        "never run",
        0,
        None,
        None,
    )


def test_status_joins_state_lock_and_table(icestream: Icestream, tmp_path: Path) -> None:
    state = PipelineState(plan_of(make_shop(tmp_path)).state, "shop")
    state.make()
    status = {"state": "running", "rows": 6, "batches": 2, "lag_rows": 7, "error": None}
    state.write_status(status)
    with state.locked():
        (running,) = icestream("status", "--output", "json").document["pipelines"]
    assert (running["state"], running["is_running"]) == ("running", True)
    assert (running["rows"], running["lag_rows"], running["table_rows"]) == (6, 7, 6)
    assert running["mark"] == {"epoch": 1, "query_id": "query-1", "rows": 3, "end": {"row": 6}}
    assert running["last_commit_at"] is not None
    (killed,) = icestream("status", "--output", "json").document["pipelines"]
    assert (killed["state"], killed["is_running"]) == ("stopped", False)


def test_status_of_many_tables_comes_from_the_status_file(
    icestream: Icestream, tmp_path: Path
) -> None:
    write_file(tmp_path, FILE.replace("table: events", "route_by: event_type"))
    state = PipelineState(plan_of(tmp_path).state, "shop")
    state.make()
    moment = "2026-11-15T10:30:00.000+00:00"
    state.write_status({"state": "finished", "rows": 6, "error": None, "last_commit_at": moment})
    (one,) = icestream("status", "--output", "json").document["pipelines"]
    assert (one["table"], one["last_commit_at"]) == ("lake.demo.*", moment)


def test_status_shows_the_first_line_of_an_error(icestream: Icestream, tmp_path: Path) -> None:
    state = PipelineState(plan_of(make_shop(tmp_path)).state, "shop")
    state.make()
    error = {"type": "BadRecordError", "message": "record 7 is broken\n  Mend it."}
    state.write_status({"state": "failed", "rows": 6, "batches": 2, "lag_rows": 0, "error": error})
    ended = icestream("status")
    lines = ended.out.splitlines()
    assert ended.code == 0
    assert lines[1].split()[:3] == ["shop", "failed", "6"]
    assert lines[2] == "shop: record 7 is broken"


def test_status_works_with_a_broken_catalog(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    (tmp_path / "lake").write_text("a file where a folder should be", encoding="utf-8")
    (one,) = icestream("status", "--output", "json").document["pipelines"]
    assert one["state"] == "never run"
    assert one["table_error"].startswith("catalog 'lake'")


@pytest.fixture
def branched(tmp_path: Path) -> int:
    """A shop whose branch `audit` stands at its first snapshot, which is returned."""
    write_file(tmp_path)
    table = make_table(plan_of(tmp_path))
    first = table.history()[0].snapshot_id
    table.manage_snapshots().create_branch(first, "audit").commit()
    return first


def test_query_reads_the_requested_branch(icestream: Icestream, branched: int) -> None:
    count = "SELECT count(*) AS n FROM demo.events"
    assert branched
    assert icestream("query", count, "--output", "json").document["rows"] == [{"n": 6}]
    on_branch = icestream("query", "--branch", "audit", count, "--output", "json")
    assert on_branch.document["rows"] == [{"n": 3}]


def test_query_of_a_missing_branch_lists_the_existing_ones(
    icestream: Icestream, branched: int
) -> None:
    ended = icestream("query", "--branch", "audti", "SELECT * FROM demo.events")
    assert branched
    assert (ended.code, ended.err) == (
        1,
        "error: query: no table of the query has a branch 'audti'\n  Available: audit, main.\n",
    )


def test_snapshots_show_the_branches_that_point_to_them(
    icestream: Icestream, branched: int
) -> None:
    newest, oldest = icestream("snapshots", "--output", "json").document["snapshots"]
    assert (newest["refs"], oldest["refs"]) == (["main"], ["audit"])
    lines = icestream("snapshots").out.splitlines()
    assert lines[5].startswith(f"{branched} (audit) ")


def test_status_shows_the_branch_that_a_pipeline_writes_to(
    icestream: Icestream, tmp_path: Path
) -> None:
    write_file(tmp_path, FILE.replace("table: events", "table: events, branch: audit"))
    make_table(plan_of(tmp_path))
    (report,) = icestream("status", "--output", "json").document["pipelines"]
    assert (report["branch"], report["table_rows"]) == ("audit", 6)
    assert " lake.demo.events (audit) " in icestream("status").out
