"""`plan` of a mirror or fan-out: its tables, and what a run creates in the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from tests.unit.plan.test_pipeline_tables import FAN_OUT, MIRROR, listed, make_tables, plan_of

from icestream.contracts.changes import COLUMN_ID, ChangeSchema
from icestream.contracts.source import SourceObject
from icestream.errors import UnreachableError
from icestream.plan import describe, render_text
from icestream.sinks.iceberg.multi.state_file import FanOutStateFile
from icestream.sinks.iceberg.properties import CREATED_BY, SOURCE_COLUMNS
from icestream.testing.scripted import ScriptedChanges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icestream.errors import IcestreamError
    from icestream.plan.plan import Plan

GB = 1_000_000_000


def mirror(
    folder: Path, tables: Sequence[pa.Schema] | IcestreamError | None, text: str = MIRROR
) -> Plan:
    source = ScriptedChanges()
    source.tables = tables
    return plan_of(folder, text, source)


def lines(plan: Plan) -> list[str]:
    """Return the lines of a pipeline's tables and source, without properties."""
    text = render_text(describe(plan)).split("\n\n")[1]
    keep = (line for line in text.splitlines() if " = " not in line)
    return [line for line in keep if line[4:10].strip() in ("table", "source") or line[2] in "+~!?"]


def tables_of(plan: Plan) -> dict[str, Any]:
    return {one["name"]: one for one in describe(plan)["pipelines"][0]["tables"]}


def test_new_tables_are_shown_with_their_columns(tmp_path: Path) -> None:
    plan = mirror(
        tmp_path, [listed("public.orders", size=12_000_000), listed("public.log", key=())]
    )

    assert lines(plan) == [
        "    source     shop: scripted changes",
        "    table      lake.shop.* mirrors 2 tables",
        "  + table      lake.shop.log would be created from public.log with 1 column, no key; "
        "unpartitioned: empty in the source",
        "  +   column id long",
        "  + table      lake.shop.orders would be created from public.orders with 1 column, key "
        "id; unpartitioned: about 12 MB in the source",
        "  +   column id long",
        "  + table      properties of a new table:",
    ]
    assert describe(plan)["counts"]["create"] == 2
    assert not (tmp_path / "lake").exists()


def test_objects_of_the_source_are_shown(tmp_path: Path) -> None:
    plan = mirror(tmp_path, [])
    source: Any = plan.pipelines[0].source
    source.objects = [
        SourceObject("publication", "shop", exists=True),
        SourceObject("replication slot", "shop", exists=False),
    ]

    assert lines(plan)[:3] == [
        "    source     shop: scripted changes",
        "    source     publication shop exists",
        "  + source     replication slot shop would be created",
    ]
    counts = describe(plan)["counts"]
    assert (counts["create"], counts["none"]) == (1, 1)


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        (int(7.6 * GB), "partitioned by bucket(8, id): about 7.6 GB in the source"),
        (int(1.4 * GB), "unpartitioned: about 1.4 GB in the source"),
        (900 * GB, "partitioned by bucket(256, id): about 900 GB in the source"),
        (None, "unpartitioned: no first load"),
    ],
)
def test_partitioning_is_shown_with_its_reason(
    tmp_path: Path, size: int | None, layout: str
) -> None:
    (line,) = [line for line in lines(mirror(tmp_path, [listed("a.b", size=size)])) if "; " in line]

    assert line.partition("; ")[2] == layout


def test_partitioning_of_the_file_is_its_own_reason(tmp_path: Path) -> None:
    text = MIRROR.replace("namespace: shop", "namespace: shop, partitioning: bucket")

    (line,) = [line for line in lines(mirror(tmp_path, [listed("a.b")], text)) if "; " in line]

    assert line.partition("; ")[2] == "partitioned by bucket(16, id): set in the file"


def test_large_table_without_a_key_says_why_it_has_no_buckets(tmp_path: Path) -> None:
    (one,) = tables_of(mirror(tmp_path, [listed("a.b", key=(), size=8 * GB)])).values()

    assert one["partitioning_reason"] == (
        "about 8.0 GB in the source, but no key column can be bucketed"
    )


def test_hundreds_of_tables_are_summarised_and_all_in_the_document(tmp_path: Path) -> None:
    plan = mirror(tmp_path, [listed(f"public.t{number:03}") for number in range(200)])

    shown = lines(plan)

    assert len(shown) == 1 + 1 + 20 + 1 + 1
    assert not any(line.startswith("  +   ") for line in shown)
    assert shown[-2] == (
        "  + table      ... and 180 more that would be created: see `--output json`"
    )
    assert len(tables_of(plan)) == 200
    assert tables_of(plan)["lake.shop.t199"]["columns"] == [{"name": "id", "type": "long"}]


def test_existing_table_is_compared_with_the_table_of_the_source(tmp_path: Path) -> None:
    schema = ChangeSchema(("public", "orders"), ("number",), is_snapshot=True, is_first=True)
    columns = [
        pa.field("number", pa.int64(), metadata={COLUMN_ID: b"1"}),
        pa.field("note", pa.string(), metadata={COLUMN_ID: b"2"}),
    ]
    plan = mirror(tmp_path, [schema.on(pa.schema(columns)), listed("public.items")])
    make_tables(plan, "shop.items", **{CREATED_BY: "shop"})
    make_tables(plan, "shop.orders", **{CREATED_BY: "shop", SOURCE_COLUMNS + "shop": '{"1": 1}'})

    assert lines(plan)[1:] == [
        "    table      lake.shop.* mirrors 2 tables",
        "  ~ table      lake.shop.orders would be changed",
        "  ~   rename 'id' to 'number'",
        "  ~   add 'note' string",
        "    table      lake.shop.items exists",
    ]
    counts = describe(plan)["counts"]
    assert (counts["create"], counts["change"], counts["none"]) == (0, 1, 1)


@pytest.mark.parametrize("text", [MIRROR, FAN_OUT], ids=["mirror", "fan-out"])
def test_property_that_differs_is_a_change_of_each_table(tmp_path: Path, text: str) -> None:
    text = text.replace("namespace: shop", "namespace: shop, table_properties: {owner: me}")
    plan = plan_of(tmp_path, text)
    make_tables(plan, "shop.items", "shop.orders", **{CREATED_BY: "shop"})

    assert lines(plan)[2:] == [
        "  ~ table      lake.shop.items would be changed",
        "  ~ table      lake.shop.orders would be changed",
        "    table      the rows may name further ones",
    ]
    assert tables_of(plan)["lake.shop.items"]["changes"] == [
        {"property": "owner", "from": None, "to": "me"}
    ]


@pytest.mark.parametrize(
    "rules",
    ["transforms: [{drop: [note]}]", "tables: {public.orders: {transforms: [{drop: [note]}]}}"],
)
def test_columns_of_a_transformed_table_are_not_guessed(tmp_path: Path, rules: str) -> None:
    text = MIRROR.replace("sink: lake}", f"sink: lake, {rules}}}")
    plan = mirror(tmp_path, [listed("public.orders")], text)

    assert tables_of(plan)["lake.shop.orders"] == {
        "name": "lake.shop.orders",
        "source": "public.orders",
        "action": "create",
        "reason": "its transforms decide the columns",
    }
    make_tables(plan, "shop.orders", **{CREATED_BY: "shop"})
    assert tables_of(plan)["lake.shop.orders"]["action"] == "none"


def test_table_without_transforms_is_shown_beside_one_with(tmp_path: Path) -> None:
    rules = "tables: {public.orders: {transforms: [{drop: [note]}]}}"
    text = MIRROR.replace("sink: lake}", f"sink: lake, {rules}}}")
    plan = mirror(tmp_path, [listed("public.orders"), listed("public.items")], text)

    assert "columns" in tables_of(plan)["lake.shop.items"]
    assert "columns" not in tables_of(plan)["lake.shop.orders"]


def test_bucketed_table_of_an_earlier_version_is_unchanged(tmp_path: Path) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform

    plan = mirror(tmp_path, [listed("public.orders")])
    client = plan.catalogs["lake"].client()
    client.create_namespace("shop")
    client.create_table(
        "shop.orders",
        Schema(NestedField(1, "id", LongType(), required=False)),
        partition_spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(16), "id_bucket")),
        properties={CREATED_BY: "shop"},
    )

    (one,) = tables_of(plan).values()
    assert (one["action"], one["partitioned_by"]) == ("none", "[bucket(16, id)]")


def test_table_of_somebody_else_would_be_refused(tmp_path: Path) -> None:
    plan = mirror(tmp_path, [listed("public.orders")])
    make_tables(plan, "shop.orders")

    assert lines(plan)[2:] == [
        "  ! table      lake.shop.orders would stop the run: the table exists, and this pipeline "
        "did not create it",
        "  !   If the pipeline may write to it, list it in the sink: `allowed_tables: "
        "[shop.orders]`.",
    ]
    allowed = MIRROR.replace("namespace: shop", "namespace: shop, allowed_tables: [shop.orders]")
    (one,) = tables_of(mirror(tmp_path, [listed("public.orders")], allowed)).values()
    assert one["action"] == "none"


def test_dropped_table_would_stop_the_run(tmp_path: Path) -> None:
    plan = mirror(tmp_path, [listed("public.orders")])
    make_tables(plan, "shop.other")
    state = FanOutStateFile(plan.sink_cache("shop"))
    state.add_written(frozenset({("shop", "orders")}), "shop.*")

    (one,) = tables_of(plan).values()

    assert (one["action"], one["reason"]) == (
        "refused",
        "the table was dropped, and the rows that this pipeline committed went with it",
    )


def test_table_that_the_source_no_longer_lists_is_shown_as_such(tmp_path: Path) -> None:
    plan = mirror(tmp_path, [listed("public.orders")])
    make_tables(plan, "shop.orders", "shop.old", **{CREATED_BY: "shop"})

    assert lines(plan)[1:] == [
        "    table      lake.shop.* mirrors 1 table",
        "    table      lake.shop.old exists: the source no longer lists its table",
        "    table      lake.shop.orders exists",
    ]


def test_unreachable_source_leaves_the_rest_of_the_plan(tmp_path: Path) -> None:
    error = UnreachableError("connection refused", where="source db:5432", todo="Start it.")
    plan = mirror(tmp_path, error)
    make_tables(plan, "shop.orders", **{CREATED_BY: "shop"})

    assert lines(plan)[1:] == [
        "  ? table      lake.shop.* unknown: source db:5432: connection refused",
        "  !   Start it.",
        "    table      lake.shop.orders exists",
    ]
    counts = describe(plan)["counts"]
    assert (counts["unknown"], counts["none"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (MIRROR, "    table      lake.shop.* mirrors 1 table"),
        (FAN_OUT, "    table      routed by event_type into lake.shop.*"),
    ],
    ids=["mirror", "fan-out"],
)
def test_tables_of_earlier_runs_are_shown_where_rows_name_them(
    tmp_path: Path, text: str, head: str
) -> None:
    plan = plan_of(tmp_path, text)
    make_tables(plan, "shop.orders", **{CREATED_BY: "shop"})

    assert lines(plan)[1:] == [
        head,
        "    table      lake.shop.orders exists",
        "    table      the rows may name further ones",
    ]


def test_mirror_whose_rows_name_the_tables_is_unknown_before_its_first_run(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    assert lines(plan)[1:] == ["  ? table      lake.shop.* unknown: the rows name the tables"]
    assert describe(plan)["counts"]["unknown"] == 1


def test_source_is_not_asked_offline(tmp_path: Path) -> None:
    found = describe(mirror(tmp_path, [listed("public.orders")]), ask=False)["pipelines"][0]

    assert (found["tables"], found["source"]["objects"]) == ([], [])
    assert (found["table"]["action"], found["table"]["reason"]) == ("unknown", "skipped")
