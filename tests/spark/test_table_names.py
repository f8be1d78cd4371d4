"""Names of tables that come from data: none leads out of the warehouse, odd ones work."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.fan_outs import planned, row, scripted
from tests.fixtures.scripted_orders import mirror

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.changes import change_schema_of
from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.testing.scripted import ScriptedChanges, ScriptedSource, change_block

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

HOSTILE = ["../../x", "..", "/etc", "a/../../../x", "..\\x", "x\x00y", "%2e%2e/x", "a?/../b", "a#b"]
ODD = ["my table", "a'b`\"", "50%", "a%20b", "c:d", "a=b;c", "日本", "a.b", "*[x]{y}", "~$@!|<>"]


def entries(lake: Lake) -> set[str]:
    """Return what is next to the warehouse, up to the test's folder and its parent."""
    beside = [*lake.folder.iterdir(), *lake.folder.parent.iterdir()]
    return {str(path) for path in beside} - {str(lake.state)}


def block(*table: str, **shape_options: Any) -> Any:
    block = change_block(
        "shop.orders", {"id": pa.int64()}, [{"id": 1}], key=("id",), **shape_options
    )
    shape = replace(change_schema_of(block.schema), table=table)
    return block.replace_schema_metadata(shape.on(pa.schema(list(block.schema))).metadata)


@pytest.mark.parametrize(
    ("table", "is_tombstones"),
    [(("shop", "../../x"), False), (("../../../shop", "x"), False), (("shop", "../../x"), True)],
)
def test_source_table_named_like_a_path_is_not_mirrored(
    lake: Lake, table: tuple[str, str], *, is_tombstones: bool
) -> None:
    before = entries(lake)
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(mirror(lake, ScriptedChanges([block(*table, is_tombstones=is_tombstones)])))

    name = ".".join(table)
    assert str(caught.value) == (
        f"sink 'lake': table {name!r} of the source cannot be mirrored: {name!r} is not a "
        "valid table name: it contains a path separator\n"
        "  Rename it at the source, or leave it out of the tables that the source reads. If it is "
        "the only one, name its target with `namespace` and `table`."
    )
    assert entries(lake) == before


def test_no_name_escapes_the_warehouse(lake: Lake) -> None:
    before = entries(lake)
    names = [*HOSTILE, "".join(random.choices("./\\ \x00ab%?#", k=6))]  # noqa: S311
    source = scripted(*(row(number, name) for number, name in enumerate(names)), row(99, "good"))
    lake.run(planned(lake, source, on_error="drop"))
    for name in HOSTILE:
        with pytest.raises((SchemaMismatchError, BadRecordError)):
            lake.run(mirror(lake, ScriptedChanges([block("shop", name)])), recovery="start-over")

    assert entries(lake) == before, names
    assert [one["id"] for one in lake.rows("good")] == [99]


def test_odd_names_are_separate_tables(lake: Lake) -> None:
    lake.run(mirror(lake, ScriptedChanges([block("shop", name) for name in ODD])))

    client = lake.catalog.client()
    assert sorted(name[-1] for name in client.list_tables("shop")) == sorted(ODD)
    for name in ODD:
        loaded = client.load_table(("shop", name))
        assert loaded.scan().to_arrow().to_pylist() == [{"id": 1}], name
        full = quote_for_spark(lake.name, "shop", name)
        assert [tuple(one) for one in lake.spark.table(full).collect()] == [(1,)], name


def test_partition_values_stay_in_the_folder_of_the_table(lake: Lake) -> None:
    before = entries(lake)
    values = ["../../../x", "..", ".", "/x", "a/../../b", "a?b#c", "%2F", "", " ", "a=b"]
    source = ScriptedSource(schema=pa.schema([("../p", pa.string())]))
    source.append_rows([{"../p": value} for value in values])
    lake.run(lake.plan(source, partitioning=["identity(../p)"]))

    table = lake.catalog.client().load_table(("db", "events"))
    folder = table.location().removeprefix("file://").removeprefix("file:")
    for task in table.scan().plan_files():
        path = task.file.file_path.removeprefix("file://").removeprefix("file:")
        assert path.startswith(f"{folder}/data/")
        assert "/../" not in path
    assert sorted(one["../p"] for one in lake.rows()) == sorted(values)
    assert entries(lake) == before
