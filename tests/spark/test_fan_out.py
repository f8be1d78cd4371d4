"""One stream into many tables: made on the way, each exactly once, one that fails named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import (
    PowerCutError,
    ids,
    planned,
    row,
    scripted,
    skipped,
    tables,
    written,
)

from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.sinks.iceberg.sink import IcebergTableSink

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake


def columns(lake: Lake, table: str) -> list[str]:
    return list(lake.catalog.client().load_table(("db", table)).schema().column_names)


def test_one_batch_creates_and_fills_a_hundred_tables(lake: Lake) -> None:
    source = scripted(*(row(n, f"kind_{n % 100}") for n in range(1_000)))

    lake.run(planned(lake, source))

    assert tables(lake) == sorted(f"kind_{n}" for n in range(100))
    assert ids(lake, "kind_7") == list(range(7, 1_000, 100))
    assert written(lake) == {f"db.kind_{n}": 10 for n in range(100)}


def test_table_named_later_is_added_and_the_others_continue(lake: Lake) -> None:
    source = scripted(row(1, "orders"), row(2, "refunds"))
    lake.run(planned(lake, source))
    source.append_rows([row(3, "orders"), row(4, "returns")])
    lake.run(planned(lake, source))

    assert tables(lake) == ["orders", "refunds", "returns"]
    assert (ids(lake, "orders"), ids(lake, "refunds")) == ([1, 3], [2])
    assert ids(lake, "returns") == [4]


def test_name_with_a_namespace_selects_that_namespace(lake: Lake) -> None:
    source = scripted(row(1, "sales.orders"), row(2, "orders"), row(3, "db.orders"))
    lake.run(planned(lake, source, allowed_tables=("sales.*",)))

    assert tables(lake, "sales") == ["orders"]
    assert ids(lake, "orders") == [2, 3]


def test_each_table_has_the_columns_that_its_rows_fill(lake: Lake) -> None:
    source = scripted(row(1, "plain"), row(2, "noted", "hello"))
    lake.run(planned(lake, source))
    assert columns(lake, "plain") == ["id", "kind"]
    assert columns(lake, "noted") == ["id", "kind", "note"]

    source.append_rows([row(3, "plain", "at last")])
    lake.run(planned(lake, source))

    assert columns(lake, "plain") == ["id", "kind", "note"]
    assert sorted(one["note"] or "" for one in lake.rows("plain")) == ["", "at last"]


def test_expression_names_the_table(lake: Lake) -> None:
    source = scripted(row(1, "Orders"), row(2, "REFUNDS"))

    lake.run(planned(lake, source, route_by="concat('t_', lower(kind))"))

    assert tables(lake) == ["t_orders", "t_refunds"]
    assert columns(lake, "t_orders") == ["id", "kind"]


def test_expression_that_does_not_match_the_columns_is_reported(lake: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(planned(lake, scripted(row(1, "a")), route_by="lower(colour)"))

    assert str(caught.value).startswith(
        "pipeline 'events', sink 'lake': `lower(colour)` does not fit the rows: "
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"
    )
    assert caught.value.todo == "Their columns, after the transforms: id, kind, note."


def test_missing_column_is_reported(lake: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(planned(lake, scripted(row(1, "a")), route_by="colour"))

    assert caught.value.what == "route_by: the rows have no column 'colour'"
    assert caught.value.todo == "Their columns: id, kind, note."


def test_crash_between_two_tables_writes_each_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(*(row(n, f"kind_{n % 5}") for n in range(50)))
    original = IcebergTableSink.commit

    def commit(self: IcebergTableSink, *arguments: Any) -> Any:
        if self.table in ("kind_1", "kind_3"):
            raise PowerCutError
        return original(self, *arguments)

    monkeypatch.setattr(IcebergTableSink, "commit", commit)
    with pytest.raises(PowerCutError):
        lake.run(planned(lake, source))
    monkeypatch.undo()
    assert (len(lake.rows("kind_0")), len(lake.rows("kind_1"))) == (10, 0)
    lake.events.clear()
    lake.run(planned(lake, source))

    assert [ids(lake, f"kind_{n}") for n in range(5)] == [list(range(n, 50, 5)) for n in range(5)]
    assert written(lake) == {"db.kind_1": 10, "db.kind_3": 10}
    assert skipped(lake) == ["db.kind_0", "db.kind_2", "db.kind_4"]


def test_staged_rows_are_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = scripted(row(1, "orders"))

    def cut(*_: Any) -> None:
        raise PowerCutError

    monkeypatch.setattr("icestream.engine.batch.batch.commit_batch", cut)
    with pytest.raises(PowerCutError):
        lake.run(planned(lake, source))
    monkeypatch.undo()
    assert list(lake.folder.rglob("staged-*.arrow"))
    lake.run(planned(lake, source))

    assert ids(lake, "orders") == [1]
    assert list(lake.folder.rglob("staged-*.arrow")) == []


def test_row_without_a_name_stops_the_pipeline(lake: Lake) -> None:
    with pytest.raises(BadRecordError) as caught:
        lake.run(planned(lake, scripted(row(1, "orders"), row(2, None))))

    assert str(caught.value) == (
        "pipeline 'events', batch 0: `route_by` is null for the row\n"
        "  Nothing of the batch was written. Leave such rows out with a `filter` transform, or "
        "set `on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`."
    )
    assert tables(lake) == []


@pytest.mark.parametrize("route_by", ["kind", "nullif(kind, 'x')"])
def test_rows_without_a_name_become_dead_letters(lake: Lake, route_by: str) -> None:
    source = scripted(row(1, "orders"), row(2, None), row(3, "a/b"), row(4, "orders"))

    lake.run(planned(lake, source, on_error="dead_letter", route_by=route_by))

    assert ids(lake, "orders") == [1, 4]
    assert sorted(letter["reason"] for letter in lake.rows("dead")) == [
        "`route_by` is null for the row",
        "route_by: 'a/b' is not a valid table name: it contains a path separator",
    ]
    assert {letter["raw"] for letter in lake.rows("dead")} == {
        b'{"id": 2, "kind": null, "note": null}',
        b'{"id": 3, "kind": "a/b", "note": null}',
    }


def test_rows_without_a_name_are_dropped_and_counted(lake: Lake) -> None:
    runner = lake.run(planned(lake, scripted(row(1, "a"), row(2, None)), on_error="drop"))

    assert ids(lake, "a") == [1]
    assert runner.progress.bad == 1


def test_upsert_finds_the_keys_of_each_table(lake: Lake) -> None:
    options: dict[str, Any] = {"commit_mode": "upsert", "key_fields": ("id",)}
    source = scripted(row(1, "a", "old"), row(1, "b", "old"), row(2, "a", "kept"))
    lake.run(planned(lake, source, **options))
    source.append_rows([row(1, "a", "newer"), row(1, "a", "newest"), row(3, "b")])
    lake.run(planned(lake, source, **options))

    assert sorted((one["id"], one["note"]) for one in lake.rows("a")) == [
        (1, "newest"),
        (2, "kept"),
    ]
    assert sorted(ids(lake, "b")) == [1, 3]


def test_rows_of_a_file_are_in_the_configured_order(lake: Lake) -> None:
    source = scripted(row(3, "a"), row(1, "a", "x"), row(2, "a"), row(9, "b"), row(1, "b"))

    lake.run(planned(lake, source, sort_order=("note nulls last", "id desc")))

    assert [one["id"] for one in lake.rows("a")] == [1, 3, 2]
    assert [one["id"] for one in lake.rows("b")] == [9, 1]
