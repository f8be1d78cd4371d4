"""`check` binds columns that only the systems tell, and fails only what a run would refuse."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.catalogs.jdbc import embedded
from icestream.config import parse
from icestream.engine.column_check import column_steps
from icestream.engine.state import PipelineState
from icestream.errors import ConfigError
from icestream.plan import build
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.schemas.spark_types import parse_spark_type

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources: {shop: {connector: files, config: {path: in, format: FORMAT, glob: "*"}}}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      OPTIONS
pipelines:
  orders: {source: shop, sink: lake, transforms: TRANSFORMS}
"""
UPSERT = "commit_mode: upsert\n      key_fields: [order]"


def checked(
    folder: Path, options: str = "", transforms: str = "[]", file_format: str = "json"
) -> list[str]:
    text = FILE.replace("OPTIONS", options).replace("TRANSFORMS", transforms)
    config = parse(text.replace("FORMAT", file_format), folder / "a.yaml")
    plan = build(config)
    (pipeline,) = plan.pipelines
    return [step.run() for step in column_steps(config, pipeline, plan.state)]


def message(folder: Path, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(folder, *arguments)
    return str(caught.value).replace(str(folder), "")


def write(folder: Path, *records: dict[str, Any], name: str = "a.json") -> None:
    (folder / "in").mkdir(exist_ok=True)
    path = folder / "in" / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(path, (1_700_000_000, 1_700_000_000))


def create_table(folder: Path, partitioned_by: str = "", **columns: str) -> None:
    schema = pa.schema([(name, parse_spark_type(kind)) for name, kind in columns.items()])
    catalog = embedded(folder / "lake")
    catalog.client().create_namespace("sales")
    table = catalog.client().create_table("sales.orders", arrow_to_iceberg(schema))
    if partitioned_by:
        with table.update_spec() as update:
            update.add_identity(partitioned_by)
    catalog.close()


def test_unknown_column_of_sampled_records_fails(tmp_path: Path) -> None:
    write(tmp_path, {"order_id": 1, "price": 2.5}, {"order_id": 2})

    assert message(tmp_path, UPSERT, "[{filter: prize > 0}]") == (
        "/a.yaml:11:60 pipelines.orders.transforms[0].filter: the rows have no column 'prize'\n"
        "  Did you mean 'price'? They have: order_id, price.\n"
        "/a.yaml:9:20 sinks.lake.config.key_fields[0]: the rows have no column 'order'\n"
        "  Did you mean 'order_id'? They have: order_id, price."
    )
    assert checked(tmp_path, transforms="[{filter: price > 0}]") == [
        "2 columns, inferred from 2 records"
    ]


def test_column_may_be_in_a_record_that_was_not_sampled(tmp_path: Path) -> None:
    write(tmp_path, *({"id": number} for number in range(10_001)))

    assert checked(tmp_path, UPSERT, "[{filter: price > 0}]") == [
        "1 column, inferred from 10000 records"
    ]


def test_broken_type_of_a_sampled_column_fails_however_many_records_there_are(
    tmp_path: Path,
) -> None:
    write(tmp_path, *({"id": number} for number in range(10_001)))

    assert message(tmp_path, 'partitioning: ["days(id)"]') == (
        "/a.yaml:8:22 sinks.lake.config.partitioning[0]: column 'id' is a bigint, which 'day' "
        "can't transform\n"
        "  It takes a date or a timestamp. Use another transform, or another column."
    )


def test_empty_folder_tells_no_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert checked(tmp_path, UPSERT) == ["only known during a run"]


def test_columns_of_an_earlier_run_win_over_a_sample(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1})
    state = PipelineState(tmp_path / ".icestream", "orders")
    state.make()
    columns = pa.schema([("order", pa.int64())])
    encoded = base64.b64encode(columns.serialize().to_pybytes()).decode()
    state.remember_schema({"columns": {}, "arrow": encoded})

    assert checked(tmp_path, UPSERT) == ["1 column, saved by an earlier run"]
    assert "'id'" in message(tmp_path, UPSERT, "[{drop: [id]}]")


def test_next_record_may_add_a_column_to_the_table(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1})
    create_table(tmp_path, id="bigint", price="double")

    assert checked(tmp_path, UPSERT) == ["2 columns, those of the table"]
    assert "column 'price' is a double, which can't be part of a key" in message(
        tmp_path, UPSERT.replace("order", "price")
    )


def test_publish_check_sees_the_columns_of_rows_and_table(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1})
    create_table(tmp_path, older="bigint")
    options = (
        "branch: audit\n      publish: {{checks: [{{name: a, sql: SELECT * FROM rows WHERE {}}}]}}"
    )
    drop = "[{select: [id]}]"

    assert checked(tmp_path, options.format("older IS NULL AND id IS NULL"), drop)
    assert message(tmp_path, options.format("odler IS NULL"), drop) == (
        "/a.yaml:9:41 sinks.lake.config.publish.checks[0].sql: the rows have no column 'odler'\n"
        "  Did you mean 'older'? They have: older, id."
    )


@pytest.mark.parametrize(
    ("partitioned_by", "what"),
    [
        (
            None,
            "the table is unpartitioned, so it has no partition 'kind=a'\n"
            "  Add `partitioning`, or use `commit_mode: overwrite_table`.",
        ),
        (
            "",
            "the table is not partitioned, so it has no partition 'kind=a'\n"
            "  Use `commit_mode: overwrite_table`, or partition the table.",
        ),
        (
            "id",
            "partition 'kind=a': the table has no partition field 'kind'\n"
            "  Its partition fields: id.",
        ),
        ("kind", ""),
    ],
)
def test_partitions_to_overwrite_are_those_of_the_table(
    partitioned_by: str | None, what: str, tmp_path: Path
) -> None:
    write(tmp_path, {"id": 1, "kind": "a"})
    if partitioned_by is not None:
        create_table(tmp_path, partitioned_by, id="bigint", kind="string")
    options = "commit_mode: overwrite_partitions\n      overwrite_partitions: [kind=a]"

    if not what:
        assert checked(tmp_path, options)
        return
    place = "/a.yaml:9:30 sinks.lake.config.overwrite_partitions[0]"
    assert message(tmp_path, options) == f"{place}: {what}"


def test_change_source_has_columns_for_each_of_its_tables(tmp_path: Path) -> None:
    text = (
        "sources: {pg: {connector: postgres-cdc, config: {host: h, database: d, user: u}}}\n"
        "sinks: {lake: {connector: iceberg}}\n"
        "pipelines: {p: {source: pg, sink: lake}}\n"
    )
    config = parse(text, tmp_path / "a.yaml")
    plan = build(config)
    assert list(column_steps(config, plan.pipelines[0], plan.state)) == []
