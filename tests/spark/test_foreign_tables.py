"""Rows and sources that name tables: other people's tables are reached by a list alone."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.fan_outs import ids, planned, row, scripted, tables
from tests.fixtures.scripted_orders import ORDERS, mirror, of_orders, order, rows, snapshot

from icestream.errors import (
    AttentionError,
    BadRecordError,
    CheckpointLostError,
    ConnectorError,
    ForeignTableError,
)
from icestream.metrics.events import RecordsFailed
from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.spark import Lake

OUTSIDE = "is outside of namespace 'db', and `allowed_tables` does not list it"


@pytest.fixture
def payroll(lake: Lake) -> Lake:
    """A lake with a foreign table `payroll`, in two namespaces."""
    for namespace in ("hr", "db"):
        lake.sql(f"CREATE NAMESPACE {lake.name}.{namespace}")
        lake.sql(f"CREATE TABLE {lake.name}.{namespace}.payroll (salary bigint) USING iceberg")
    return lake


def is_untouched(lake: Lake, namespace: str) -> bool:
    table = lake.catalog.client().load_table((namespace, "payroll"))
    return table.schema().column_names == ["salary"] and table.current_snapshot() is None


def test_row_cannot_reach_another_namespace(payroll: Lake) -> None:
    with pytest.raises(BadRecordError) as caught:
        payroll.run(planned(payroll, scripted(row(1, "a"), row(2, "hr.payroll"))))

    assert caught.value.what == f"route_by: 'hr.payroll' {OUTSIDE}"
    assert caught.value.exit_code == 5
    assert is_untouched(payroll, "hr")


@pytest.mark.parametrize("on_error", ["fail", "drop"])
def test_row_cannot_reach_a_foreign_table(payroll: Lake, on_error: str) -> None:
    source = scripted(row(1, "a"), row(2, "payroll"))
    with pytest.raises(ForeignTableError) as caught:
        payroll.run(planned(payroll, source, on_error=on_error))

    name = f"{payroll.name}.db.payroll"
    assert str(caught.value) == (
        f"pipeline 'events', batch 0, table {name}: the table exists, and this pipeline did not "
        "create it\n"
        "  If the pipeline may write to it, list it in the sink: `allowed_tables: [db.payroll]`.\n"
        "  1 other table has committed the batch; a replay skips what is committed."
    )
    assert is_untouched(payroll, "db")


def test_rows_that_name_foreign_tables_become_dead_letters(payroll: Lake) -> None:
    source = scripted(row(1, "a"), row(2, "hr.payroll"), row(3, "payroll"), row(4, "a"))
    payroll.run(planned(payroll, source, on_error="dead_letter"))
    source.append_rows([row(5, "payroll"), row(6, "a")])
    payroll.run(planned(payroll, source, on_error="dead_letter"))

    assert ids(payroll, "a") == [1, 4, 6]
    assert is_untouched(payroll, "hr")
    assert is_untouched(payroll, "db")
    failed = [event for event in payroll.events if isinstance(event, RecordsFailed)]
    assert sum(event.count for event in failed) == 3
    assert sum(event.dead_letters for event in failed) == 3
    assert {letter["reason"] for letter in payroll.rows("dead")} == {
        f"route_by: 'hr.payroll' {OUTSIDE}",
        f"table {payroll.name}.db.payroll: the table exists, and this pipeline did not create it",
    }


def test_disallowed_name_is_a_fault_of_its_row(payroll: Lake) -> None:
    source = scripted(row(1, "a"), row(2, "hr.payroll"))
    payroll.run(planned(payroll, source, on_error="drop"))
    assert ids(payroll, "a") == [1]
    assert is_untouched(payroll, "hr")


def forget_as_earlier_versions(lake: Lake) -> None:
    """Leave of the state what versions before `allowed_tables` kept."""
    (path,) = lake.state.rglob("fan-out.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({name: kept[name] for name in ("tables", "generation", "again")}))
    (path,) = lake.state.rglob("status.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "committed": False}))


def test_foreign_tables_written_by_an_earlier_version_must_be_listed(lake: Lake) -> None:
    source = scripted(row(1, "a"), row(2, "hr.x"), row(3, "hr.y"))
    lake.run(planned(lake, source, allowed_tables=("hr.*",)))
    forget_as_earlier_versions(lake)
    source.append_rows([row(4, "hr.x")])
    with pytest.raises(AttentionError) as caught:
        lake.run(planned(lake, source, on_error="drop"))

    assert str(caught.value) == (
        f"sink 'lake', {lake.catalog.identity()}: the pipeline has written to tables outside of "
        "namespace 'db', which rows may no longer name unless the file lists them\n"
        "  Add to the sink: `allowed_tables: [hr.x, hr.y]`."
    )
    lake.run(planned(lake, source, on_error="drop", allowed_tables=("hr.x", "hr.y")))
    found = lake.sql("SELECT id FROM lake.hr.x")
    assert sorted(one["id"] for one in found) == [2, 4]


def test_empty_table_mirrored_by_an_earlier_version_is_not_foreign(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "shop.orders"
    monkeypatch.setattr(
        ScriptedChanges, "loaded_tables", lambda *_: frozenset({tuple(table.split("."))})
    )
    first = change_block(table, ORDERS, [], ids=(1, 2), is_snapshot=True, is_first=True)
    source = ScriptedChanges([first])
    lake.run(mirror(lake, source, commit_mode="append"))
    own = ("created-by", "mark.events", "mark-snapshot.events")
    listed = ", ".join(f"'icestream.{name}'" for name in own)
    lake.sql(f"ALTER TABLE {lake.name}.{table} UNSET TBLPROPERTIES ({listed})")
    forget_as_earlier_versions(lake)
    source.script.append([change_block(table, ORDERS, [order(1, "new")], ids=(1, 2))])
    lake.run(mirror(lake, source, commit_mode="append"))

    assert [one["id"] for one in rows(lake)] == [1]


def test_listed_tables_are_written(payroll: Lake) -> None:
    source = scripted(row(1, "hr.payroll"), row(2, "payroll"), row(3, "audit.x"))
    allowed = ("hr.pay*", "db.payroll", "audit.*")

    payroll.run(planned(payroll, source, allowed_tables=allowed))

    assert ids(payroll, "payroll") == [2]
    assert tables(payroll, "audit") == ["x"]
    found = payroll.sql("SELECT id FROM lake.hr.payroll")
    assert [one["id"] for one in found] == [1]


def test_tables_of_another_pipeline_are_foreign_and_its_own_are_not(lake: Lake) -> None:
    source = scripted(row(1, "a"))
    lake.run(planned(lake, source))
    lake.run(planned(lake, source), recovery="start-over")
    with pytest.raises(ForeignTableError, match="this pipeline did not create it"):
        lake.run(planned(lake, source, name="other"), recovery="start-over")

    assert ids(lake, "a") == [1, 1]


def test_mirror_does_not_replace_a_foreign_table(lake: Lake) -> None:
    lake.sql(f"CREATE NAMESPACE {lake.name}.shop")
    lake.sql(f"CREATE TABLE {lake.name}.shop.orders AS SELECT 7L AS id, 'theirs' AS note")
    source = ScriptedChanges([snapshot(order(1, "ours"))], [of_orders(order(2, "ours"))])
    with pytest.raises(ForeignTableError) as caught:
        lake.run(mirror(lake, source))

    assert str(caught.value) == (
        f"table {lake.name}.shop.orders: the table exists, and this pipeline did not create it\n"
        "  If the pipeline may write to it, list it in the sink: `allowed_tables: [shop.orders]`."
    )
    assert rows(lake) == [order(7, "theirs")]
    lake.run(mirror(lake, source, allowed_tables=("shop.*",)))
    assert rows(lake) == [order(1, "ours"), order(2, "ours")]


@contextmanager
def unreadable(lake: Lake, *tables: str) -> Iterator[None]:
    """Take the metadata files of tables away for a while."""
    loaded = [lake.catalog.client().load_table(table) for table in tables]
    files = [Path(table.metadata_location.removeprefix("file:")) for table in loaded]
    for file in files:
        file.rename(f"{file}.away")
    yield
    for file in files:
        Path(f"{file}.away").rename(file)


def test_mirror_starts_despite_an_unreadable_foreign_table(payroll: Lake) -> None:
    with unreadable(payroll, "hr.payroll"):
        payroll.run(mirror(payroll, ScriptedChanges([snapshot(order(1))])))

    assert [one["id"] for one in rows(payroll)] == [1]


def test_unreadable_table_in_the_namespace_of_the_file_stops_the_start(payroll: Lake) -> None:
    with (
        unreadable(payroll, "db.payroll"),
        pytest.raises(ConnectorError, match="the catalog refused the table"),
    ):
        payroll.run(planned(payroll, scripted(row(1, "a"))))
    assert tables(payroll) == ["payroll"]


def test_mirror_does_not_start_over_while_no_table_can_be_read(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(order(1))])
    lake.run(mirror(lake, source))
    shutil.rmtree(lake.state)

    with (
        unreadable(lake, "shop.orders"),
        pytest.raises(ConnectorError, match="the catalog refused the table"),
    ):
        lake.run(mirror(lake, source))
    with pytest.raises(CheckpointLostError, match="but there is no checkpoint"):
        lake.run(mirror(lake, source))


def test_own_table_unreadable_at_the_start_gets_no_duplicates(lake: Lake) -> None:
    def added(table: str, number: int) -> object:
        return change_block(f"shop.{table}", ORDERS, [order(number)], key=())

    source = ScriptedChanges([added("items", 1), added("orders", 1)], [added("orders", 2)])
    lake.run(mirror(lake, source, commit_mode="append"))
    shutil.rmtree(lake.state)

    # The other table, which is behind this one, determines where to resume.
    with unreadable(lake, "shop.orders"), pytest.raises(ConnectorError, match="refused the table"):
        lake.run(mirror(lake, source, commit_mode="append"), recovery="resume")
    for _ in range(2):
        with pytest.raises(CheckpointLostError, match="could not be read then"):
            lake.run(mirror(lake, source, commit_mode="append"))
    assert [one["id"] for one in rows(lake)] == [1, 2]
