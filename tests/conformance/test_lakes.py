"""The real sink on every catalog and every store: rows, keys, columns, snapshots, writers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.catalog import quote_for_spark
from icestream.errors import IcestreamError
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedOptions, ScriptedSource

if TYPE_CHECKING:
    from tests.conformance.targets import Target
    from tests.fixtures.spark import Lake

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string())])


def script(*ids: int, name: str = "scripted", **columns: Any) -> ScriptedSource:
    """Return a source of one row an id; `columns` are further ones, with one value for all."""
    extra = [(name, pa.scalar(value).type) for name, value in columns.items()]
    schema = pa.schema([*COLUMNS, *extra])
    source = ScriptedSource(ScriptedOptions(name=name), schema=schema, has_end=True)
    source.append_rows({"id": n, "name": f"row {n}", "op": "u", **columns} for n in ids)
    return source


def by_pyiceberg(lake: Lake, table: str = "events") -> dict[int, str]:
    return {row["id"]: row["name"] for row in lake.rows(table)}


def by_spark(
    lake: Lake, table: str = "events", at: int | None = None, column: str = "name"
) -> dict[int, str | None]:
    reader = lake.spark.read if at is None else lake.spark.read.option("versionAsOf", at)
    found = reader.table(quote_for_spark(lake.name, *lake.namespace, table)).collect()
    return {row.id: row[column] for row in found}


def test_append(lake: Lake) -> None:
    source = script(1, 2)
    lake.run(lake.plan(source))
    source.append_rows([{"id": 3, "name": "row 3", "op": "u"}])
    lake.run(lake.plan(source))
    lake.run(lake.plan(source))

    assert by_pyiceberg(lake) == {1: "row 1", 2: "row 2", 3: "row 3"}
    assert by_spark(lake) == by_pyiceberg(lake)
    assert len(lake.rows()) == 3


def test_upsert(lake: Lake) -> None:
    source = script(1, 2, 3)
    keyed: dict[str, Any] = {"commit_mode": "upsert", "key_fields": ("id",), "op_field": "op"}
    lake.run(lake.plan(source, **keyed))
    source.append_rows(
        [
            {"id": 1, "name": "changed", "op": "u"},
            {"id": 2, "name": None, "op": "d"},
            {"id": 4, "name": "row 4", "op": "u"},
        ]
    )
    lake.run(lake.plan(source, **keyed))

    assert by_pyiceberg(lake) == {1: "changed", 3: "row 3", 4: "row 4"}
    assert by_spark(lake) == by_pyiceberg(lake)


def test_evolve(lake: Lake) -> None:
    lake.run(lake.plan(script(1, 2)))
    lake.run(lake.plan(script(1, 2, 3, colour="red")))

    colours = {row["id"]: row["colour"] for row in lake.rows()}
    assert colours == {1: None, 2: None, 3: "red"}
    assert by_spark(lake, column="colour") == colours


def test_time_travel(lake: Lake) -> None:
    source = script(1)
    lake.run(lake.plan(source))
    source.append_rows([{"id": 2, "name": "row 2", "op": "u"}])
    lake.run(lake.plan(source))

    table = lake.catalog.find_table((*lake.namespace, "events"))
    assert table is not None
    first = table.history()[0].snapshot_id
    assert table.scan(snapshot_id=first).to_arrow()["id"].to_pylist() == [1]
    assert by_spark(lake, at=first) == {1: "row 1"}


def test_two_writers(lake: Lake, target: Target) -> None:
    lake.run(lake.plan(script(0), name="first"))
    faults: list[BaseException] = []

    def write(name: str, *ids: int) -> None:
        each = Batching(1, 0.0, 1)
        try:
            lake.run(lake.plan(script(*ids, name=name), name=name, batching=each))
        except BaseException as exc:  # noqa: BLE001 - shown by the test's own thread
            faults.append(exc)

    writers = [
        threading.Thread(target=write, args=("one", 1, 2, 3)),
        threading.Thread(target=write, args=("two", 4, 5, 6)),
    ]
    for writer in writers:
        writer.start()
        if not target.keeps_races:
            writer.join()
    for writer in writers:
        writer.join()

    assert faults == []
    assert sorted(row["id"] for row in lake.rows()) == [0, 1, 2, 3, 4, 5, 6]
    assert by_spark(lake) == by_pyiceberg(lake)


def test_name_that_needs_quoting(lake: Lake, target: Target) -> None:
    lake.run(lake.plan(script(1), table=target.odd_table))

    assert by_pyiceberg(lake, target.odd_table) == {1: "row 1"}
    assert by_spark(lake, target.odd_table) == {1: "row 1"}


def test_nested_namespace(lake: Lake) -> None:
    lake.namespace = (*lake.namespace, "eu", "west")
    if not lake.catalog.abilities.nested_namespaces:
        with pytest.raises(IcestreamError, match=r"namespaces? .*west"):
            lake.run(lake.plan(script(1)))
        return

    lake.run(lake.plan(script(1)))

    assert by_pyiceberg(lake) == by_spark(lake) == {1: "row 1"}


def test_check(lake: Lake) -> None:
    lake.run(lake.plan(script(1)))

    results = {step.name: step.run() for step in lake.sink().check()}

    assert results["find namespace"] == lake.namespace[0]
    assert results["find table"] == f"{lake.sink().identity()}, 3 columns"
