"""`icestream schema show` and `schema diff`, over tables that the tests create."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from tests.unit.cli.shop import plan_of, write_file

from icestream.engine.batch.columns import StreamColumns
from icestream.engine.state import PipelineState

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table
    from tests.fixtures.command_line import Icestream

SCHEMA = Schema(
    NestedField(1, "id", IntegerType(), required=True, doc="of the order"),
    NestedField(2, "ts", TimestamptzType(), required=False),
    NestedField(
        3,
        "items",
        ListType(4, StructType(NestedField(5, "sku", StringType(), required=False)), False),
        required=False,
    ),
)


def file(columns: str = "", evolution: str = "full", transforms: str = "[]") -> str:
    schema = f', schema: "{columns}"' if columns else ""
    return f"""\
version: "1.0"
sources:
  shop: {{connector: files, config: {{path: in, format: json{schema}}}}}
sinks:
  lake:
    connector: iceberg
    config: {{namespace: demo, table: events, schema_evolution: {evolution}}}
pipelines:
  shop: {{source: shop, sink: lake, transforms: {transforms}}}
"""


def make_table(folder: Path, **properties: str) -> Table:
    client = plan_of(folder).catalogs["lake"].client()
    client.create_namespace_if_not_exists("demo")
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day"))
    return client.create_table("demo.events", SCHEMA, partition_spec=spec, properties=properties)


def diff(icestream: Icestream, *arguments: str) -> Any:
    [report] = icestream("schema", "diff", "--output", "json", *arguments).document["pipelines"]
    return report


def remember(folder: Path, columns: pa.Schema) -> None:
    plan = plan_of(folder)
    state = PipelineState(plan.state, "shop")
    state.make()
    kept = StreamColumns(plan.pipelines[0], state)
    kept._columns = columns
    kept._remember()


def test_columns_are_shown_with_ids_and_partitions(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file())
    table = make_table(tmp_path)
    with table.update_spec() as update:
        update.remove_field("ts_day")
        update.add_identity("id")
    ended = icestream("schema", "show", "demo.events")

    assert ended.out.splitlines() == [
        "table           lake.demo.events",
        "format version  2",
        "partitioning    [id]",
        "  older files   [day(ts)]",
        "",
        "id  column             type         required  comment",
        " 1  id                 int          true      of the order",
        " 2  ts                 timestamptz  false",
        " 3  items              list         false",
        " 4  items.element      struct       false",
        " 5  items.element.sku  string       false",
    ]


def test_columns_are_shown_as_json(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file())
    make_table(tmp_path)
    document = icestream("schema", "show", "--output", "json").document

    assert document["columns"][0] == {
        "id": 1,
        "column": "id",
        "type": "int",
        "required": True,
        "comment": "of the order",
    }
    assert (document["partitioned_by"], document["partitioned_before"]) == ("[day(ts)]", [])
    assert (document["schema_id"], document["format_version"]) == (0, 2)


def test_declared_columns_are_compared(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file("id bigint, ts timestamp, name string"))
    declared = {1: "id", 3: "items", 4: "items.element", 5: "items.element.sku"}
    make_table(tmp_path, **{"icestream.columns.shop": json.dumps(declared)})
    ended = icestream("schema", "diff")

    assert (ended.code, ended.out.splitlines()) == (
        0,
        [
            "shop -> lake.demo.events (schema_evolution: full)",
            "  ~ widen 'id' from int to long",
            "  ~ make 'id' optional",
            "  ~ add 'name' string",
            "  ~ drop 'items'",
            "",
            "  ALTER TABLE `lake`.`demo`.`events` ALTER COLUMN `id` TYPE BIGINT;",
            "  ALTER TABLE `lake`.`demo`.`events` ALTER COLUMN `id` DROP NOT NULL;",
            "  ALTER TABLE `lake`.`demo`.`events` ADD COLUMN `name` STRING;",
            "  ALTER TABLE `lake`.`demo`.`events` DROP COLUMN `items`;",
        ],
    )
    assert icestream("schema", "diff", "--detailed-exitcode").code == 4


def test_disallowed_change_is_marked(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file("id bigint NOT NULL, name string", "strict"))
    make_table(tmp_path)

    assert icestream("schema", "diff").out.splitlines() == [
        "shop -> lake.demo.events (schema_evolution: strict)",
        "  ~ widen 'id' from int to long",
        "  ~ add 'name' string",
        "  ! column 'id' is int in the table and long in the stream; the stream has columns that "
        "the table lacks: 'name' string",
        "  ! Use `schema_evolution: full`, convert the stream with a `cast` transform, or alter "
        "the table.",
        "",
        "  ALTER TABLE `lake`.`demo`.`events` ALTER COLUMN `id` TYPE BIGINT;",
        "  ALTER TABLE `lake`.`demo`.`events` ADD COLUMN `name` STRING;",
    ]


def test_columns_of_earlier_batches_are_compared(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file(evolution="add_columns"))
    make_table(tmp_path)
    remember(tmp_path, pa.schema([("id", pa.int32()), ("at", pa.time64("us"))]))
    report = diff(icestream)

    assert report["stream"] == "seen"
    assert report["changes"] == [
        {
            "kind": "add_column",
            "column": "at",
            "type": "time",
            "doc": None,
            "words": "add 'at' time",
        }
    ]
    assert report["sql"] == ["-- column 'at' is time, a type that Spark SQL does not support"]


def test_matching_columns_are_reported(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file("id int NOT NULL", "add_columns"))
    make_table(tmp_path)
    ended = icestream("schema", "diff", "--detailed-exitcode")

    assert (ended.code, ended.out.splitlines()[1:]) == (
        0,
        ["  the columns declared by the source match the table"],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (file(), "the stream's columns are not known before the first run"),
        (
            file("id int", transforms="[{filter: id > 1}]"),
            "the pipeline has transforms; its columns are only known during a run",
        ),
        (file("id int"), "the table does not exist yet; `icestream run` will create it"),
        (
            file("id int").replace("table: events", "route_by: id"),
            "the stream is routed to many tables; their columns are only known during a run",
        ),
    ],
)
def test_unknown_schemas_are_reported(
    icestream: Icestream, tmp_path: Path, text: str, message: str
) -> None:
    write_file(tmp_path, text)
    if "not exist" not in message:
        make_table(tmp_path)

    assert icestream("schema", "diff").out.splitlines()[1:] == [f"  {message}"]
    assert diff(icestream)["changes"] == []


def test_type_of_a_new_column_is_in_the_json(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, file("id int NOT NULL, n bigint COMMENT 'count'", "add_columns"))
    make_table(tmp_path)
    report = diff(icestream, "--pipeline", "shop")

    assert (report["pipeline"], report["table"], report["stream"]) == (
        "shop",
        "lake.demo.events",
        "declared",
    )
    assert report["changes"][0]["type"] == str(LongType())
    assert report["sql"] == [
        "ALTER TABLE `lake`.`demo`.`events` ADD COLUMN `n` BIGINT COMMENT 'count'"
    ]
    assert report["refused"] is None
