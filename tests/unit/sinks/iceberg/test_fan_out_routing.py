"""The parts of a fan-out that need no JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.catalog import Abilities
from icestream.contracts.offset import BatchMark
from icestream.contracts.transform import ROW
from icestream.errors import AttentionError, BadRecordError, CorruptStateError, SchemaMismatchError
from icestream.sinks.iceberg.missing_values import MissingValues
from icestream.sinks.iceberg.multi import routing
from icestream.sinks.iceberg.multi.fan_out import WriteUnit, _balance_units, _split_rows
from icestream.sinks.iceberg.multi.routing import (
    NULL_ROUTE,
    Route,
    RouteFaults,
    RoutingWriter,
    StagedRows,
)
from icestream.sinks.iceberg.multi.state_file import FanOutStateFile
from icestream.sinks.iceberg.multi.table_names import TableNameRules, column_path
from icestream.sinks.iceberg.partition_terms import parse_sort_term
from icestream.sinks.iceberg.staging_cleanup import remove_staged_files
from icestream.sinks.iceberg.writer import sort_rows

if TYPE_CHECKING:
    from pathlib import Path

NAMING = TableNameRules(
    Abilities(nested_namespaces=True),
    namespace=("db",),
    allowed=("sales.*", "a.b.orders"),
    dead_letter=("db", "dead"),
)
ROUTE_BY_KIND = Route(("kind",), ("db",), NAMING)
COLUMNS = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("note", pa.string())])


def batch(*rows: tuple[int, str | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(COLUMNS.names, row, strict=True)) for row in rows], schema=COLUMNS
    )


def staged(folder: Path, *batches: pa.RecordBatch) -> dict[str, Any]:
    writer = RoutingWriter(
        columns=COLUMNS, route=ROUTE_BY_KIND, folder=str(folder), io_properties={}
    )
    (file,) = writer.write(batches)
    assert file.rows == sum(each.num_rows for each in batches)
    return file.metadata


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("kind", ("kind",)),
        (" meta.kind ", ("meta", "kind")),
        ("`event-type`", ("event-type",)),
        ("`a.b`.c", ("a.b", "c")),
        ("lower(kind)", None),
        ("a || b", None),
    ],
)
def test_column_is_distinguished_from_an_expression(
    text: str, path: tuple[str, ...] | None
) -> None:
    assert column_path(text) == path


@pytest.mark.parametrize(
    ("value", "table"),
    [
        ("orders", ("db", "orders")),
        ("sales.orders", ("sales", "orders")),
        ("a.b.orders", ("a", "b", "orders")),
        ("42", ("db", "42")),
        ("naïve-name", ("db", "naïve-name")),
    ],
)
def test_value_names_a_table(value: str, table: tuple[str, ...]) -> None:
    assert ROUTE_BY_KIND.table_of(value) == table


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is not a valid table name: it is empty"),
        ("sales.", "is not a valid table name: it is empty"),
        ("..", "is not a valid table name: it is empty"),
        ("../secret", "is not a valid table name: it is empty"),
        ("a/b", "is not a valid table name: it contains a path separator"),
        ("a\\b", "is not a valid table name: it contains a path separator"),
        ("a\nb", "is not a valid table name: it contains a control character"),
        (" a", "is not a valid table name: it begins or ends with a space"),
        ("dead", "is the dead-letter table"),
        ("db.dead", "is the dead-letter table"),
        ("orders__tombstones", "is reserved for the deleted keys of another table"),
        ("hr.payroll", "is outside of namespace 'db', and `allowed_tables` does not list it"),
        ("sales.eu.x", "is outside of namespace 'db', and `allowed_tables` does not list it"),
        ("__icestream", "is reserved for the folder in which rows are staged"),
    ],
)
def test_value_that_names_no_table_is_refused(value: str, reason: str) -> None:
    with pytest.raises(ValueError, match="route_by") as caught:
        ROUTE_BY_KIND.table_of(value)
    assert str(caught.value) == f"route_by: {value!r} {reason}"


def test_long_name_is_refused_and_truncated_in_the_message() -> None:
    with pytest.raises(ValueError, match="longer than 255 bytes") as caught:
        ROUTE_BY_KIND.table_of("x" * 300)
    assert f"'{'x' * 57}...' is not" in str(caught.value)


def test_spellings_of_one_table_are_one_where_the_catalog_ignores_case() -> None:
    naming = TableNameRules(
        Abilities(case_sensitive=False), ("DB",), ("Sales.O*",), dead_letter=("db", "dead")
    )
    route = Route(("kind",), ("DB",), naming)

    assert route.tables(pa.array(["Orders", "orders", "dB.ORDERS", "SALES.Orders"])) == {
        "Orders": ("db", "orders"),
        "orders": ("db", "orders"),
        "dB.ORDERS": ("db", "orders"),
        "SALES.Orders": ("sales", "orders"),
    }
    with pytest.raises(ValueError, match="'DEAD' is the dead-letter table"):
        route.table_of("DEAD")


def test_nested_namespace_is_refused_if_the_catalog_has_none() -> None:
    route = Route(("kind",), ("db",), TableNameRules(Abilities()))
    with pytest.raises(ValueError, match="the catalog has no nested namespaces"):
        route.table_of("a.b.orders")


def test_faults_are_reported_by_row_and_only_if_there_are_any() -> None:
    faults = RouteFaults(ROUTE_BY_KIND)

    assert faults(batch((1, "a", None), (2, "b", None))) is None
    found = faults(batch((1, "a", None), (2, None, None), (3, "", None)))
    assert found is not None
    assert found.to_pylist() == [
        None,
        "`route_by` is null for the row",
        "route_by: '' is not a valid table name: it is empty",
    ]


def test_rows_without_a_key_and_rows_without_a_table_are_both_reported(tmp_path: Path) -> None:
    missing = MissingValues((("note", "part of the key"),), ())
    faults = RouteFaults(ROUTE_BY_KIND, missing)
    reason = "column 'note' is part of the key, and the row has no value for it"

    assert faults(batch((1, "a", "x"))) is None
    found = faults(batch((1, "a", None), (2, None, None), (3, None, "x"), (4, "a", "x")))
    assert found is not None
    assert found.to_pylist() == [reason, NULL_ROUTE, NULL_ROUTE, None]
    found = faults(batch((1, "a", None), (2, "a", "x")))
    assert found is not None
    assert found.to_pylist() == [reason, None]

    writer = RoutingWriter(
        columns=COLUMNS,
        route=ROUTE_BY_KIND,
        folder=str(tmp_path),
        io_properties={},
        missing=missing,
    )
    with pytest.raises(BadRecordError) as caught:
        writer.write([batch((1, "a", "x")), batch((2, "a", "x"), (3, "a", None))])
    assert caught.value.what == reason
    assert list(tmp_path.iterdir()) == []


def test_name_inside_a_struct_is_found() -> None:
    rows = pa.RecordBatch.from_pylist([{"meta": {"kind": 7}}, {"meta": None}])
    route = Route(("meta", "kind"), ("db",), NAMING)
    route.check(rows.schema)

    assert route.values(rows).to_pylist() == ["7", None]


def test_column_that_holds_no_names_is_refused() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        ROUTE_BY_KIND.check(pa.schema([("kind", pa.list_(pa.string()))]))
    assert caught.value.what == ("route_by: column 'kind' must be text, found list<item: string>")


def test_rows_are_staged_by_table_in_their_order(tmp_path: Path) -> None:
    what = staged(
        tmp_path,
        batch((1, "a", None), (2, "b", "x"), (3, "a", None)),
        batch((4, "b", None), (5, "db.a", None)),
    )

    tables = what["tables"]
    assert list(tables) == [("db", "a"), ("db", "b")]
    assert tables["db", "a"].filled_columns == {"id", "kind"}
    assert tables["db", "b"].filled_columns == {"id", "kind", "note"}
    found = {
        name[-1]: [
            number
            for block in StagedRows(what["file-path"], tuple(one.blocks), {})()
            for number in block["id"].to_pylist()
        ]
        for name, one in tables.items()
    }
    assert found == {"a": [1, 3, 5], "b": [2, 4]}


def test_rows_keep_the_numbers_of_their_records(tmp_path: Path) -> None:
    numbered = batch((1, "a", None)).append_column(ROW, pa.array([77], pa.int64()))

    what = staged(tmp_path, numbered)

    (block,) = StagedRows(what["file-path"], ((0, 1),), {})()
    assert block[ROW].to_pylist() == [77]


def test_staged_rows_are_flushed_above_the_buffer_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "FLUSH_BYTES", 1)

    what = staged(tmp_path, batch((1, "a", None)), batch((2, "a", "x"), (3, "b", None)))

    assert what["tables"]["db", "a"].blocks == [(0, 1), (1, 1)]
    assert what["tables"]["db", "a"].filled_columns == {"id", "kind", "note"}


def test_bad_row_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadRecordError, match="is null for the row"):
        staged(tmp_path, batch((1, "a", None)), batch((2, None, None)))

    assert list(tmp_path.iterdir()) == []


def test_column_with_far_too_many_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MAX_TABLES", 2)
    with pytest.raises(AttentionError) as caught:
        staged(tmp_path, batch((1, "a", None), (2, "b", None), (3, "c", None)))

    assert str(caught.value) == (
        "route_by: the rows of one batch name more than 2 tables\n"
        "  Nothing of the batch was written. Check that `route_by` names a column with few "
        "values."
    )


def test_abandoned_staging_files_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "__icestream" / "orders"
    staged(folder, batch((1, "a", None)))

    remove_staged_files(str(folder), {})
    remove_staged_files(str(tmp_path / "never made"), {})

    assert list(folder.iterdir()) == []


def test_large_table_is_split_between_tasks_and_small_ones_share_one() -> None:
    large = [StagedRows("x", ((0, 40), (1, 40)), {}), StagedRows("y", ((0, 40),), {})]

    cut = [[(one.path, one.blocks) for one in part] for part in _split_rows(large, 80)]

    assert cut == [[("x", ((0, 40),)), ("x", ((1, 40),))], [("y", ((0, 40),))]]
    assert list(_split_rows(large, 120)) == [tuple(large)]
    units = [WriteUnit(n, 0, (StagedRows("x", ((0, n),), {}),), Any) for n in (1, 2, 3, 4)]  # type: ignore[arg-type]
    assert [[unit.table for unit in one] for one in _balance_units(units, 2)] == [[4, 1], [3, 2]]


def test_each_sort_term_has_a_null_order() -> None:
    rows = pa.table({"a": [None, 2, 1, None], "b": [1, 1, 1, 2]})
    terms = [parse_sort_term("a desc nulls first"), parse_sort_term("b desc")]

    assert sort_rows(rows, terms).to_pydict() == {"a": [None, None, 2, 1], "b": [2, 1, 1, 1]}


def test_state_file_survives_the_process(tmp_path: Path) -> None:
    mark = BatchMark("p", "q", 3, "s", {"row": 1}, {"row": 2})
    state_file = FanOutStateFile(tmp_path / "cache")
    assert not state_file.exists
    state_file.add(frozenset({("db", "a")}))
    state_file.record_restart(2, mark)

    again = FanOutStateFile(tmp_path / "cache")

    assert again.exists
    assert again.state.tables == {("db", "a")}
    assert (again.state.generation, again.replayed_batch()) == (2, mark)


def test_recovered_tables_are_stored_with_the_next_write(tmp_path: Path) -> None:
    state_file = FanOutStateFile(tmp_path)
    state_file.recover(frozenset({("db", "a")}))
    assert not FanOutStateFile(tmp_path).exists
    state_file.record_restart(1, None)

    assert FanOutStateFile(tmp_path).state.tables == {("db", "a")}


def test_unreadable_state_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "fan-out.json").write_text("{")
    with pytest.raises(CorruptStateError) as caught:
        FanOutStateFile(tmp_path)

    assert caught.value.what.startswith(f"the file {tmp_path}/fan-out.json can't be read: ")
    assert caught.value.todo == "Remove it: the tables are then found by their marks."
