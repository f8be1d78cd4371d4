"""Upsert: rows by key, whatever the batch holds and whatever the table held before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import PIPELINE, mark, written

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.errors import BadRecordError, SchemaMismatchError

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.contracts.sink import Commit
    from icestream.sinks.iceberg.sink import IcebergTableSink

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string())])

Rows = list[dict[str, Any]]


def upserting(lake: Lake, **options: Any) -> IcebergTableSink:
    given = {"commit_mode": "upsert", "key_fields": ("id",), "op_field": "op", **options}
    sink = lake.sink(**given)
    sink.open(lake.spark, PIPELINE)
    return sink


def change(
    sink: IcebergTableSink, *splits: Rows, epoch: int = 0, schema: pa.Schema = SCHEMA
) -> Commit:
    """Commit one batch; each list of rows is the work of a task of its own."""
    files = []
    for rows in splits:
        files += written(sink, pa.Table.from_pylist(rows, schema=schema))
    return sink.commit(files, mark(epoch))


def table(lake: Lake, columns: str = "id, name", order: str = "id") -> list[tuple[Any, ...]]:
    found = lake.sql(f"select {columns} from lake.db.events order by {order}")  # noqa: S608
    return [tuple(row) for row in found]


def summary(lake: Lake) -> dict[str, str]:
    snapshot = lake.catalog.client().load_table(("db", "events")).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return dict(snapshot.summary.additional_properties)


@pytest.fixture(params=[2, 3])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_row_of_a_key_is_replaced_and_others_stay(lake: Lake, version: int) -> None:
    sink = upserting(lake, format_version=version)
    change(sink, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}])
    change(sink, [{"id": 2, "name": "B"}, {"id": 4, "name": "d"}], epoch=1)
    assert table(lake) == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    assert [tuple(row.values()) for row in sorted(lake.rows(), key=lambda row: row["id"])] == [
        (1, "a"),
        (2, "B"),
        (3, "c"),
        (4, "d"),
    ]
    totals = summary(lake)
    assert (totals["icestream.rows-inserted"], totals["icestream.rows-updated"]) == ("1", "1")


def test_delete_removes_the_row(lake: Lake, version: int) -> None:
    sink = upserting(lake, format_version=version)
    change(sink, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    change(sink, [{"id": 1, "op": "D"}, {"id": 9, "op": "delete"}], epoch=1)
    assert table(lake) == [(2, "b")]
    assert summary(lake)["icestream.rows-deleted"] == "1"


def test_newest_of_several_changes_to_a_key_wins(lake: Lake) -> None:
    sink = upserting(lake)
    change(
        sink,
        [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "x"}],
        [
            {"id": 1, "name": "c"},
            {"id": 2, "op": "d"},
            {"id": 3, "op": "d"},
            {"id": 3, "name": "y"},
        ],
    )
    assert table(lake) == [(1, "c"), (3, "y")]


def test_deletion_vectors_of_several_batches_are_merged(lake: Lake, version: int) -> None:
    sink = upserting(lake, format_version=version)
    change(sink, [{"id": n, "name": "old"} for n in range(1000)])
    for epoch in range(1, 5):
        change(sink, [{"id": n, "name": f"{epoch}"} for n in range(epoch, 1000, 7)], epoch=epoch)
    expected = dict.fromkeys(range(1000), "old")
    for epoch in range(1, 5):
        expected |= {n: str(epoch) for n in range(epoch, 1000, 7)}
    assert dict(table(lake)) == expected
    files = lake.sql("select count(*) from lake.db.events.delete_files")
    assert files[0][0] <= 5


def test_row_id_survives_an_update(lake: Lake) -> None:
    sink = upserting(lake)
    change(sink, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    before = dict(table(lake, "id, _row_id"))
    change(sink, [{"id": 2, "name": "B"}, {"id": 3, "name": "c"}], epoch=1)
    change(sink, [{"id": 2, "name": "BB"}], epoch=2)
    after = dict(table(lake, "id, _row_id"))
    assert {1: after[1], 2: after[2]} == before
    assert after[3] not in before.values()
    newer = dict(table(lake, "id, _last_updated_sequence_number"))
    assert newer[2] > newer[3] > newer[1]


def test_late_change_does_not_overwrite_a_newer_row(lake: Lake, version: int) -> None:
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us", tz="UTC")))
    sink = upserting(lake, sequence_field="at", format_version=version)
    change(
        sink, [{"id": 1, "name": "new", "at": 20}, {"id": 2, "name": "b", "at": 5}], schema=schema
    )
    change(
        sink,
        [{"id": 1, "name": "late", "at": 10}, {"id": 2, "name": "B", "at": 5}],
        epoch=1,
        schema=schema,
    )
    assert table(lake) == [(1, "new"), (2, "B")]
    assert summary(lake)["icestream.rows-late"] == "1"


def test_late_change_does_not_restore_a_deleted_row(lake: Lake, version: int) -> None:
    schema = SCHEMA.append(pa.field("no", pa.int32()))
    sink = upserting(lake, sequence_field="no", format_version=version)
    change(sink, [{"id": 1, "name": "a", "no": 1}, {"id": 2, "name": "b", "no": 1}], schema=schema)
    change(sink, [{"id": n, "op": "d", "no": 5} for n in (1, 2, 3)], epoch=1, schema=schema)
    late = [{"id": n, "name": "late", "no": 4} for n in (1, 3)]
    again = upserting(lake, sequence_field="no", format_version=version)
    change(again, [*late, {"id": 2, "name": "newer", "no": 6}], epoch=2, schema=schema)
    assert table(lake) == [(2, "newer")]
    assert summary(lake)["icestream.rows-late"] == "2"


def test_tombstone_expires_after_its_retention(lake: Lake) -> None:
    schema = SCHEMA.append(pa.field("no", pa.int32()))
    sink = upserting(lake, sequence_field="no", tombstone_days=2)
    change(sink, [{"id": 1, "op": "d", "no": 5}, {"id": 2, "name": "b", "no": 1}], schema=schema)
    lake.sql("update lake.db.events__tombstones set __deleted_at = __deleted_at - interval 4 days")
    again = upserting(lake, sequence_field="no", tombstone_days=2)
    change(again, [{"id": 2, "op": "d", "no": 9}], epoch=1, schema=schema)
    kept = lake.sql("select key_1, __sequence from lake.db.events__tombstones")
    assert [tuple(row) for row in kept] == [(2, 9)]


def test_tombstones_of_many_batches_are_merged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from icestream.sinks.iceberg.upsert import tombstones

    monkeypatch.setattr(tombstones, "MANY_FILES", 3)
    schema = SCHEMA.append(pa.field("no", pa.int32()))
    sink = upserting(lake, sequence_field="no")
    for epoch in range(4):
        change(sink, [{"id": epoch, "op": "d", "no": 5}], epoch=epoch, schema=schema)
    files = lake.sql("select count(*) from lake.db.events__tombstones.data_files")
    assert files[0][0] == 2
    late = [{"id": n, "name": "late", "no": 4} for n in range(5)]
    change(sink, late, epoch=4, schema=schema)
    assert table(lake) == [(4, "late")]


def test_sort_order_does_not_decide_which_change_is_newer(lake: Lake) -> None:
    sink = upserting(lake, sort_order=("name",))
    change(sink, [{"id": 1, "name": "z"}, {"id": 1, "name": "a"}, {"id": 2, "name": "Z"}])
    assert table(lake) == [(1, "a"), (2, "Z")]
    assert [row["name"] for row in lake.rows()] == ["Z", "a"]
    assert sink.sort_columns() == []


def test_renamed_key_is_still_found(lake: Lake, version: int) -> None:
    schema = SCHEMA.append(pa.field("no", pa.int32()))
    sink = upserting(lake, sequence_field="no", format_version=version)
    change(sink, [{"id": 1, "name": "a", "no": 1}, {"id": 2, "op": "d", "no": 5}], schema=schema)
    lake.sql("alter table lake.db.events rename column id to order_id")
    renamed = pa.schema([("order_id", pa.int64()), *list(schema)[1:]])
    again = upserting(lake, key_fields=("order_id",), sequence_field="no")
    rows = [{"order_id": 1, "name": "b", "no": 2}, {"order_id": 2, "name": "late", "no": 4}]
    change(again, rows, epoch=1, schema=renamed)
    assert table(lake, "order_id, name", "order_id") == [(1, "b")]


def test_table_upgraded_from_format_2_can_be_upserted(lake: Lake) -> None:
    sink = upserting(lake, format_version=2)
    change(sink, [{"id": n, "name": "a"} for n in range(4)])
    change(sink, [{"id": 0, "op": "d"}, {"id": 1, "name": "b"}], epoch=1)
    lake.sql("alter table lake.db.events set tblproperties ('format-version' = '3')")
    again = upserting(lake, format_version=2)
    change(again, [{"id": 2, "name": "c"}], epoch=2)
    change(again, [{"id": 1, "name": "d"}, {"id": 2, "name": "e"}, {"id": 3, "op": "d"}], epoch=3)
    assert table(lake) == [(1, "d"), (2, "e")]


def test_value_inside_a_renamed_field_is_kept(lake: Lake) -> None:
    def schema(inner: str) -> pa.Schema:
        where = pa.field("at", pa.struct([(inner, pa.string())]))
        return pa.schema([*SCHEMA, where, pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))])

    sink = upserting(lake)
    change(sink, [{"id": 1, "name": "a", "at": {"zip": "0150"}}], schema=schema("zip"))
    lake.sql("alter table lake.db.events rename column at.zip to postcode")
    again = upserting(lake)
    partial = {"id": 1, "name": "b", UNCHANGED_COLUMNS: ["at"]}
    change(again, [partial], epoch=1, schema=schema("postcode"))
    assert table(lake, "name, at.postcode", "name") == [("b", "0150")]


def test_composite_and_text_keys(lake: Lake, version: int) -> None:
    schema = pa.schema([("shop", pa.string()), ("no", pa.int32()), ("total", pa.decimal128(9, 2))])
    sink = upserting(lake, key_fields=("shop", "no"), format_version=version)
    rows = [{"shop": shop, "no": no, "total": no} for shop in ("ü", "", "b") for no in range(100)]
    change(sink, rows, schema=schema)
    change(
        sink, [{"shop": "", "no": 5, "total": -1}, {"shop": "new", "no": 5}], epoch=1, schema=schema
    )
    found = table(lake, "shop, no, total", "shop, no")
    assert len(found) == 301
    assert [row for row in found if row[1] == 5 and row[0] in ("", "new")] == [
        ("", 5, -1),
        ("new", 5, None),
    ]


def test_key_that_moves_to_another_partition(lake: Lake, version: int) -> None:
    sink = upserting(lake, partitioning=("name",), format_version=version)
    change(sink, [{"id": 1, "name": "north"}, {"id": 2, "name": "south"}])
    change(sink, [{"id": 1, "name": "south"}], epoch=1)
    assert table(lake) == [(1, "south"), (2, "south")]
    assert table(lake, "id", "id") == [(1,), (2,)]


def test_column_that_was_not_sent_keeps_its_table_value(lake: Lake, version: int) -> None:
    schema = SCHEMA.append(pa.field("blob", pa.string())).append(
        pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))
    )
    sink = upserting(lake, format_version=version)
    change(sink, [{"id": n, "name": "a", "blob": f"big{n}"} for n in range(4)], schema=schema)
    change(
        sink,
        [
            {"id": 1, "name": "b", UNCHANGED_COLUMNS: ["blob"]},
            {"id": 2, "name": "x", "blob": "now"},
        ],
        # From another task of the batch; a delete in between; a key that the table lacks.
        [
            {"id": 2, "name": "c", UNCHANGED_COLUMNS: ["blob"]},
            {"id": 3, "op": "d"},
            {"id": 3, "name": "again", UNCHANGED_COLUMNS: ["blob"]},
            {"id": 7, "name": "new", UNCHANGED_COLUMNS: ["blob"]},
        ],
        epoch=1,
        schema=schema,
    )
    assert table(lake, "id, name, blob") == [
        (0, "a", "big0"),
        (1, "b", "big1"),
        (2, "c", "now"),
        (3, "again", None),
        (7, "new", None),
    ]


def test_soft_delete_keeps_and_marks_the_row(lake: Lake) -> None:
    sink = upserting(lake, delete_mode="soft")
    change(sink, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    change(sink, [{"id": 1, "op": "d"}], epoch=1)
    columns = "id, name, _is_deleted, _deleted_at is not null"
    assert table(lake, columns) == [(1, "a", True, True), (2, "b", False, False)]
    change(sink, [{"id": 1, "name": "back"}], epoch=2)
    assert table(lake, columns) == [(1, "back", False, False), (2, "b", False, False)]


def test_ignored_delete_changes_nothing(lake: Lake) -> None:
    sink = upserting(lake, delete_mode="ignore")
    change(sink, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    change(sink, [{"id": 1, "op": "d"}, {"id": 2, "name": "B"}], epoch=1)
    assert table(lake) == [(1, "a"), (2, "B")]


def test_upsert_respects_changes_by_other_tools(lake: Lake) -> None:
    sink = upserting(lake)
    change(sink, [{"id": n, "name": "a"} for n in range(10)])
    lake.sql("delete from lake.db.events where id = 3")
    lake.sql("insert into lake.db.events values (50, 'theirs')")
    change(sink, [{"id": 3, "name": "again"}, {"id": 50, "name": "ours"}], epoch=1)
    lake.sql(
        "call lake.system.rewrite_data_files(table => 'db.events', "
        "options => map('rewrite-all', 'true'))"
    )
    change(sink, [{"id": 3, "name": "third"}, {"id": 1, "op": "d"}], epoch=2)
    expected = {n: "a" for n in range(10) if n != 1} | {3: "third", 50: "ours"}
    assert dict(table(lake)) == expected


def test_batch_is_retried_after_a_concurrent_compaction(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icestream.sinks.iceberg.upsert import mode

    sink = upserting(lake)
    change(sink, [{"id": n, "name": "a"} for n in range(10)])
    change(sink, [{"id": 3, "name": "b"}], epoch=1)
    original = mode.Upsert._change
    met: list[int] = []

    def meet_a_compaction(self: mode.Upsert, outcome: Any) -> Any:
        if not met:
            met.append(1)
            lake.sql(
                "call lake.system.rewrite_data_files(table => 'db.events', "
                "options => map('rewrite-all', 'true'))"
            )
        return original(self, outcome)

    monkeypatch.setattr(mode.Upsert, "_change", meet_a_compaction)
    commit = change(sink, [{"id": 3, "name": "c"}, {"id": 4, "op": "d"}], epoch=2)
    assert commit.retries == 1
    assert dict(table(lake)) == {n: "a" for n in range(10) if n != 4} | {3: "c"}


@pytest.mark.parametrize("there_before", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
def test_row_added_by_another_writer_during_the_batch_is_found(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, there_before: bool, by_hand: bool
) -> None:
    from icestream.sinks.iceberg.upsert import mode

    sink = upserting(lake)
    change(sink, [{"id": 1, "name": "a"}] if there_before else [{"id": 7, "op": "d"}])
    original = mode.Upsert._change
    met: list[int] = []

    def meet_a_writer(self: mode.Upsert, outcome: Any) -> Any:
        if not met:
            met.append(1)
            lake.sql("insert into lake.db.events values (2, 'theirs')")
        return original(self, outcome)

    monkeypatch.setattr(mode.Upsert, "_change", meet_a_writer)
    files = written(sink, pa.Table.from_pylist([{"id": 2, "name": "ours"}], schema=SCHEMA))
    commit = sink.commit_unmarked(files) if by_hand else sink.commit(files, mark(1))
    assert commit.retries == 1
    assert table(lake) == [*([(1, "a")] if there_before else []), (2, "ours")]


def test_null_in_a_key_is_refused(lake: Lake) -> None:
    sink = upserting(lake)
    with pytest.raises(BadRecordError) as caught:
        change(sink, [{"id": 1, "name": "a"}, {"id": None, "name": "b"}])
    assert str(caught.value) == (
        "column 'id' is part of the key, and a row has no value for it: {'id': None}\n  Nothing "
        "of the batch was written. Leave such rows out with a `filter` transform: `id is not null`."
    )
    assert list((lake.folder / "lake").rglob("*.arrow")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"key_fields": ("ids",)},
            "key_fields: the rows have no column 'ids'\n  Their columns: id, name, op.",
        ),
        (
            {"sequence_field": "name"},
            "sequence_field: column 'name' is a string, which can't be compared by age\n  Use a "
            "column of whole numbers, dates, times or timestamps.",
        ),
    ],
)
def test_missing_key_column_is_refused(lake: Lake, options: dict[str, Any], message: str) -> None:
    sink = upserting(lake, **options)
    with pytest.raises(SchemaMismatchError) as caught:
        change(sink, [{"id": 1, "name": "a"}])
    assert message in str(caught.value)


def test_staged_rows_are_deleted_after_the_commit(lake: Lake) -> None:
    sink = upserting(lake)
    change(sink, [{"id": 1, "name": "a"}])
    assert list((lake.folder / "lake").rglob("*.arrow")) == []
