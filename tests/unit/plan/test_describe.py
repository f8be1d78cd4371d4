from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType, NestedField, TimestamptzType

from icestream.catalogs.jdbc import embedded
from icestream.config import parse
from icestream.plan import build, describe, render_text

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources: {shop: {connector: datagen, config: {schema: "id bigint, ts timestamp, amount int"}}}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      partitioning: ["days(ts)", "bucket(16, id)"]
      sort_order: [id, "ts desc"]
      table_properties: {owner: shop}
pipelines:
  orders: {source: shop, sink: lake, transforms: [{filter: "amount > 0"}]}
"""


def description(text: str, folder: Path, *, ask: bool = True) -> dict[str, Any]:
    return describe(build(parse(text, folder / "a.yaml")), ask=ask)


AS_IN_THE_FILE = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(16), "id_bucket"),
    PartitionField(2, 1001, DayTransform(), "ts_day"),
)


def make_table(folder: Path, spec: PartitionSpec = AS_IN_THE_FILE, **properties: str) -> None:
    catalog = embedded(folder / "lake")
    client = catalog.client()
    client.create_namespace("sales")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "ts", TimestamptzType(), required=False),
    )
    client.create_table("sales.orders", schema, partition_spec=spec, properties=properties)
    catalog.close()


def test_missing_table_would_be_created_but_plan_creates_nothing(tmp_path: Path) -> None:
    found = description(FILE, tmp_path)
    assert found["pipelines"][0]["table"]["action"] == "create"
    assert found["counts"]["create"] == 1
    assert not list(tmp_path.iterdir())


def test_missing_table_that_may_not_be_created_is_marked(tmp_path: Path) -> None:
    found = description(
        FILE.replace("table: orders", "table: orders\n      create: false"), tmp_path
    )
    assert found["pipelines"][0]["table"]["action"] == "missing"
    assert "  ! table      lake.sales.orders does not exist, and `create` is false" in render_text(
        found
    )


def test_matching_table_is_left_alone(tmp_path: Path) -> None:
    make_table(tmp_path, owner="shop")
    found = description(FILE, tmp_path)
    assert found["pipelines"][0]["table"]["action"] == "none"
    assert render_text(found).endswith("Plan: 1 pipeline, 0 to create, 0 to change, 1 unchanged.")


def test_property_that_differs_is_a_change(tmp_path: Path) -> None:
    make_table(tmp_path, owner="someone")
    found = description(FILE, tmp_path)
    assert found["pipelines"][0]["table"]["changes"] == [
        {"property": "owner", "from": "someone", "to": "shop"}
    ]
    assert "  ~   owner = someone -> shop" in render_text(found).splitlines()


def test_partitioning_of_an_unpartitioned_table_is_shown_before_it_happens(
    tmp_path: Path,
) -> None:
    make_table(tmp_path, PartitionSpec(), owner="shop")
    found = description(FILE, tmp_path)
    assert found["pipelines"][0]["table"]["changes"][0]["from"] == "unpartitioned"
    assert (
        "  ~   unpartitioned, new files by [day(ts), bucket(16, id)]"
        in render_text(found).splitlines()
    )


def test_other_partitioning_is_shown_before_it_happens(tmp_path: Path) -> None:
    make_table(tmp_path, PartitionSpec(AS_IN_THE_FILE.fields[1]), owner="shop")
    found = description(FILE, tmp_path)
    assert found["pipelines"][0]["table"]["changes"] == [
        {
            "layout": "partitioning",
            "from": "[day(ts)]",
            "to": "[day(ts), bucket(16, id)]",
        }
    ]
    assert (
        "  ~   partitioned by [day(ts)], new files by [day(ts), bucket(16, id)]"
        in render_text(found).splitlines()
    )


@pytest.mark.parametrize("partitioning", ["", "      partitioning: table_default\n"])
def test_file_without_partition_fields_changes_no_partitioning(
    partitioning: str, tmp_path: Path
) -> None:
    make_table(tmp_path, owner="shop")
    line = '      partitioning: ["days(ts)", "bucket(16, id)"]\n'
    found = description(FILE.replace(line, partitioning), tmp_path)
    assert found["pipelines"][0]["table"]["action"] == "none"


def declaring(columns: str, options: str) -> str:
    return f"""\
sources: {{shop: {{connector: files, config: {{path: in, format: json, schema: "{columns}"}}}}}}
sinks:
  lake: {{connector: iceberg, config: {{namespace: sales, table: orders, {options}}}}}
pipelines: {{orders: {{source: shop, sink: lake}}}}
"""


def test_columns_that_the_source_declares_are_compared_with_the_table(tmp_path: Path) -> None:
    make_table(tmp_path, PartitionSpec(), **{"icestream.columns.orders": '{"1": "id", "2": "ts"}'})
    for file, changes in [
        (
            declaring(
                "id int, n bigint, at timestamp", "schema_evolution: full, renames: {ts: at}"
            ),
            ["rename 'ts' to 'at'", "add 'n' long"],
        ),
        (declaring("id int", "schema_evolution: full"), ["drop 'ts'"]),
        (declaring("id int", "schema_evolution: strict"), []),
    ]:
        text = render_text(description(file, tmp_path))
        assert [line[6:] for line in text.splitlines() if line.startswith("  ~   ")] == changes


def test_incompatible_table_is_marked(tmp_path: Path) -> None:
    make_table(tmp_path, PartitionSpec())
    file = declaring("id int, n bigint", "schema_evolution: strict")
    found = description(file, tmp_path)
    table = found["pipelines"][0]["table"]
    todo = "Use `schema_evolution: add_columns`, or alter the table."
    assert (table["action"], table["reason"], table["todo"]) == (
        "refused",
        "the stream has columns that the table lacks: 'n' long",
        todo,
    )
    lines = render_text(found).splitlines()
    at = lines.index(
        "  ! table      lake.sales.orders does not match the rows, a run would stop: "
        "the stream has columns that the table lacks: 'n' long"
    )
    assert lines[at + 1] == f"  !   {todo}"
    assert lines[-1] == "Plan: 1 pipeline, 0 to create, 0 to change, 0 unchanged, 1 refused."


def test_column_that_the_pipeline_did_not_declare_before_is_not_dropped(tmp_path: Path) -> None:
    make_table(tmp_path, PartitionSpec(), **{"icestream.columns.orders": '{"1": "id"}'})
    file = declaring("id int", "schema_evolution: full")
    assert description(file, tmp_path)["pipelines"][0]["table"]["action"] == "none"


def test_columns_are_not_dropped_for_the_rows_of_a_branch(tmp_path: Path) -> None:
    make_table(tmp_path, PartitionSpec(), **{"icestream.columns.orders": '{"1": "id", "2": "ts"}'})
    file = declaring("id int", "schema_evolution: full, branch: audit")
    table = description(file, tmp_path)["pipelines"][0]["table"]
    assert (table["action"], table["reason"]) == (
        "refused",
        "columns belong to all branches, and rows for branch 'audit' would drop 'ts'",
    )


def test_table_in_an_unreachable_catalog_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/catalog.db").write_text("this is no database" * 100)
    table = description(FILE, tmp_path)["pipelines"][0]["table"]
    assert table["action"] == "unknown"
    assert table["reason"].startswith("the file cannot be read as an SQLite database")


def test_catalog_is_not_contacted_offline(tmp_path: Path) -> None:
    table = description(FILE, tmp_path, ask=False)["pipelines"][0]["table"]
    assert (table["action"], table["reason"]) == ("unknown", "skipped")


def test_text_shows_what_would_be_done(tmp_path: Path) -> None:
    lines = render_text(description(FILE, tmp_path)).splitlines()
    assert lines[:11] == [
        f"{tmp_path}/a.yaml, state in {tmp_path}/.icestream",
        "",
        "Pipeline orders",
        "    source     shop: datagen schema seed 42",
        "    transform  filter: amount > 0",
        "  + table      lake.sales.orders would be created",
        "  +   column id long",
        "  +   column ts timestamptz",
        "  +   column amount int",
        "  +   partitioned by day(ts), bucket(16, id)",
        "  +   sorted by id asc nulls first, ts desc nulls last",
    ]
    assert "  +   owner = shop" in lines
    assert lines[-1] == "Plan: 1 pipeline, 1 to create, 0 to change, 0 unchanged."


@pytest.mark.parametrize(
    ("transforms", "names", "lines"),
    [
        (
            "[{cast: {id: smallint}}, {select: [id, ts, upper('x') AS loud]}]",
            [("id", "int"), ("ts", "timestamptz"), ("loud", None)],
            ["column id int", "column ts timestamptz", "column loud, of a type that Spark decides"],
        ),
        (
            "[{select: [id, ts, upper('x')]}]",
            [("id", "long"), ("ts", "timestamptz")],
            ["column id long", "column ts timestamptz", "and columns that are known during a run"],
        ),
    ],
)
def test_columns_of_a_new_table_are_those_after_the_transforms(
    transforms: str, names: list[tuple[str, str]], lines: list[str], tmp_path: Path
) -> None:
    found = description(FILE.replace('[{filter: "amount > 0"}]', transforms), tmp_path)
    table = found["pipelines"][0]["table"]
    assert [(one["name"], one["type"]) for one in table["columns"]] == names
    shown = render_text(found)
    assert "\n".join(f"  +   {line}" for line in lines) + "\n  +   partitioned" in shown


def test_unknown_columns_of_a_new_table_are_inferred(tmp_path: Path) -> None:
    kafka = "sources: {shop: {connector: kafka, config: {brokers: ['b:1'], topics: [t]}}}\n"
    found = description(kafka + FILE.partition("\n")[2], tmp_path)
    assert found["pipelines"][0]["table"]["columns"] == []
    assert "  +   columns of the first records\n  +   partitioned" in render_text(found)


def test_planned_parts_are_marked(tmp_path: Path) -> None:
    text = FILE.replace("table: orders", "table: orders\n      readers: [trino]")
    lines = render_text(description(text, tmp_path)).splitlines()
    at = lines.index("In the file, but not available in this version")
    assert lines[at + 1] == f"  ! {tmp_path}/a.yaml:8:7 sinks.lake.config.readers: 'readers'"
    assert lines[-1] == (
        "Plan: 1 pipeline, 1 to create, 0 to change, 0 unchanged, 1 not available in this version."
    )


def test_routed_tables_are_shown(tmp_path: Path) -> None:
    found = description(FILE.replace("table: orders", "route_by: lower(id)"), tmp_path)
    lines = render_text(found).splitlines()

    assert "    table      routed by lower(id) into lake.sales.*" in lines
    assert lines[-1] == "Plan: 1 pipeline, 0 to create, 0 to change, 0 unchanged, 1 unknown."
    assert found["pipelines"][0]["table"]["reason"] == "the rows name the tables"


@pytest.mark.parametrize("kind", ["text", "json"])
def test_secrets_are_in_no_description(kind: str, tmp_path: Path) -> None:
    text = FILE.replace("owner: shop", "owner-token: hunter2").replace(
        "sources:",
        "catalogs: {x: {type: jdbc, warehouse: w, jdbc: {uri: 'postgresql://h/d', user: u, "
        "password: hunter2}}}\nsources:",
    )
    found = description(text, tmp_path)
    assert "hunter2" not in (render_text(found) if kind == "text" else json.dumps(found))


def test_description_has_a_format_version(tmp_path: Path) -> None:
    assert description(FILE, tmp_path)["format_version"] == 1


def test_branch_and_its_publishing_are_shown(tmp_path: Path) -> None:
    checks = "{name: ids, sql: SELECT 1}, {name: sums, sql: SELECT 2}"
    text = FILE.replace(
        "table: orders",
        f"table: orders\n      branch: audit\n      publish: {{checks: [{checks}]}}\n"
        "      commit_mode: overwrite",
    )
    described = description(text, tmp_path)
    lines = render_text(described).splitlines()

    assert described["pipelines"][0]["table"]["branch"] == "audit"
    assert "    branch     audit, published to main once its checks hold: ids, sums" in lines
    assert any(line.startswith("    commit     overwrite, after ") for line in lines)
    text = FILE.replace("table: orders", "table: orders\n      branch: dev")
    assert "    branch     dev" in render_text(description(text, tmp_path)).splitlines()
    assert "    branch " not in render_text(description(FILE, tmp_path))
