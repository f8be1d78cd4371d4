from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icestream.api import settings as api_settings
from icestream.config import parse
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan import Batching, Plan, RestartPolicy, build, describe, refuse_planned
from icestream.plan.spark_settings import batching_for, max_batch_rows
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.transforms.filter import FilterTransform
from icestream.transforms.select import SelectTransform

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources:
  shop: {connector: datagen, config: {rows: 10}}
sinks:
  lake:
    connector: iceberg
    config: {namespace: sales, table: orders}
  other:
    connector: iceberg
    config: {namespace: sales, table: other}
pipelines:
  orders:
    source: shop
    sink: lake
    transforms:
      - filter: "price > 0"
      - select: [event_id, "price * 2 AS twice"]
  more: {source: shop, sink: other, restart: {max: 1}}
  never: {source: shop, sink: lake, enabled: false}
"""


def plan_of(text: str, folder: Path, *, only: tuple[str, ...] = (), **environment: str) -> Plan:
    return build(parse(text, folder / "a.yaml", environment=environment), only=only)


def catalog_block(uri: str) -> str:
    return f"{{type: jdbc, jdbc: {{uri: '{uri}'}}, warehouse: wh}}"


def test_pipeline_is_built_from_its_parts(tmp_path: Path) -> None:
    plan = plan_of(FILE, tmp_path)
    orders, more = plan.pipelines
    assert orders.name == "orders"
    assert orders.source.identity().startswith("datagen")
    assert orders.sink.identity() == "lake.sales.orders"
    assert [type(step) for step in orders.transforms] == [FilterTransform, SelectTransform]
    assert orders.steps == (
        "filter: price > 0",
        'select: ["event_id", "price * 2 AS twice"]',
    )
    assert more.restart == RestartPolicy(max=1, backoff_secs=1)
    assert plan.state == tmp_path / ".icestream"
    assert set(plan.sinks) == {"lake", "other"}
    assert not plan.planned


def test_pipelines_have_sources_of_their_own(tmp_path: Path) -> None:
    orders, more = plan_of(FILE, tmp_path).pipelines
    assert orders.source is not more.source


def test_disabled_pipeline_is_left_out(tmp_path: Path) -> None:
    assert [each.name for each in plan_of(FILE, tmp_path).pipelines] == ["orders", "more"]


def test_only_the_requested_pipelines_are_planned(tmp_path: Path) -> None:
    plan = plan_of(FILE, tmp_path, only=("more",))
    assert [each.name for each in plan.pipelines] == ["more"]
    assert set(plan.sinks) == {"other"}


def test_unknown_pipeline_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(FILE, tmp_path, only=("order",))
    assert str(caught.value) == (
        f"{tmp_path}/a.yaml: no pipeline is named 'order'\n"
        "  Did you mean 'orders'? Available: orders, more, never."
    )


def test_requested_disabled_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(FILE, tmp_path, only=("never",))
    assert str(caught.value) == (
        f"{tmp_path}/a.yaml:18:46 pipelines.never.enabled: the pipeline 'never' is switched off\n"
        "  Set `enabled: true`, or leave the key out."
    )


def test_file_with_sinks_alone_is_planned(tmp_path: Path) -> None:
    plan = plan_of("sinks: {a: {connector: iceberg, config: {namespace: n, table: t}}}", tmp_path)
    assert not plan.pipelines
    assert plan.sinks["a"].identity() == "lake.n.t"


def test_embedded_catalog_is_next_to_the_state(tmp_path: Path) -> None:
    plan = plan_of("state: {path: s/state}\n" + FILE, tmp_path)
    assert list(plan.catalogs) == ["lake"]
    assert plan.spark_conf["spark.sql.catalog.lake.warehouse"] == f"file://{tmp_path}/s/lake"
    assert f"{tmp_path}/s/lake/catalog.db" in plan.spark_conf["spark.sql.catalog.lake.uri"]
    assert not (tmp_path / "s").exists()


def test_named_catalog_keeps_its_name(tmp_path: Path) -> None:
    text = f"catalogs: {{prod: {catalog_block('sqlite:///c.db')}}}\n" + FILE.replace(
        "table: orders", "table: orders, catalog: prod"
    )
    plan = plan_of(text, tmp_path)
    assert set(plan.catalogs) == {"prod", "lake"}
    assert plan.pipelines[0].sink.identity() == "prod.sales.orders"
    assert f"{tmp_path}/c.db" in plan.spark_conf["spark.sql.catalog.prod.uri"]
    assert plan.spark_conf["spark.sql.catalog.prod.warehouse"] == f"file://{tmp_path}/wh"


def test_only_inline_catalog_is_called_lake(tmp_path: Path) -> None:
    block = catalog_block("jdbc:sqlite:c.db")
    text = FILE.replace("namespace: sales,", f"namespace: sales, catalog: {block},")
    assert set(plan_of(text, tmp_path).catalogs) == {"lake"}


def test_further_inline_catalogs_are_named_after_their_sinks(tmp_path: Path) -> None:
    text = FILE.replace(
        "table: orders", f"table: orders, catalog: {catalog_block('sqlite:///a.db')}"
    ).replace("table: other", f"table: other, catalog: {catalog_block('sqlite:///b.db')}")
    orders, more = plan_of(text, tmp_path).pipelines
    assert orders.sink.identity() == "lake.sales.orders"
    assert more.sink.identity() == "other.sales.other"


def test_inline_catalog_next_to_the_embedded_one_is_named_after_its_sink(tmp_path: Path) -> None:
    block = catalog_block("sqlite:///b.db")
    text = FILE.replace("table: other", f"table: other, catalog: {block}")
    assert set(plan_of(text, tmp_path).catalogs) == {"lake", "other"}


def test_dead_letters_are_a_table_of_the_same_catalog(tmp_path: Path) -> None:
    text = FILE.replace("table: orders", "table: orders, on_error: dead_letter, dead_letter: bad.x")
    orders = plan_of(text, tmp_path).pipelines[0]
    assert orders.on_error == "dead_letter"
    assert orders.dead_letter is not None
    assert orders.dead_letter.identity() == "lake.bad.x"


def test_dead_letters_with_a_bare_name_are_in_the_namespace_of_the_sink(tmp_path: Path) -> None:
    text = FILE.replace("table: orders", "table: orders, on_error: dead_letter, dead_letter: bad")
    orders = plan_of(text, tmp_path).pipelines[0]
    assert orders.dead_letter is not None
    assert orders.dead_letter.identity() == "lake.sales.bad"


@pytest.mark.parametrize(
    ("memory", "rows"), [("512m", 500_000), ("1g", 1_000_000), ("900g", 5_000_000)]
)
def test_max_rows_of_a_batch_depend_on_memory(
    memory: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.plan.spark_settings.physical_memory", lambda: 64 << 30)
    text = f"spark: {{conf: {{spark.driver.memory: {memory}}}}}\n" + FILE
    plan = plan_of(text, tmp_path, only=("orders",))
    assert plan.pipelines[0].batching == Batching(10_000, 60, rows)


@pytest.mark.parametrize(
    ("memory", "pipelines", "rows"),
    [
        ("2g", 1, 2_000_000),
        ("2g", 4, 500_000),
        ("2g", 10, 200_000),
        ("512m", 4, 125_000),
        # Never so few that commits are all there is, and never more than one may have.
        ("512m", 100, 50_000),
        ("900g", 3, 5_000_000),
    ],
)
def test_pipelines_of_a_process_divide_its_memory(
    memory: str, pipelines: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.plan.spark_settings.physical_memory", lambda: 64 << 30)
    assert max_batch_rows({"spark.driver.memory": memory}, pipelines) == rows


def test_every_running_pipeline_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.plan.spark_settings.physical_memory", lambda: 64 << 30)
    plan = plan_of(FILE, tmp_path)
    assert [each.batching.max_batch_rows for each in plan.pipelines] == [1_000_000, 1_000_000]


def test_pipelines_started_later_take_their_share_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("icestream.plan.spark_settings.physical_memory", lambda: 64 << 30)
    memory = {"spark.driver.memory": "2g"}
    planned_alone = batching_for(IcebergOptions(namespace="a"), memory)
    assert [planned_alone.max_rows(running) for running in (1, 2, 4)] == [
        2_000_000,
        1_000_000,
        500_000,
    ]
    one_of_four = batching_for(IcebergOptions(namespace="a"), memory, 4)
    assert one_of_four.max_rows(1) == 500_000, "others of the plan may be about to start"
    given = batching_for(IcebergOptions(namespace="a", max_batch_rows=900_000), memory)
    assert given.max_rows(100) == 900_000


def test_batches_that_keep_missing_fields_have_a_quarter_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("icestream.plan.spark_settings.physical_memory", lambda: 64 << 30)
    options = IcebergOptions(namespace="a", missing_fields="keep")
    sizes = [
        batching_for(each, {"spark.driver.memory": "2g"}).max_batch_rows
        for each in (options, IcebergOptions(namespace="a"))
    ]
    assert sizes == [500_000, 2_000_000]


def test_jars_are_those_that_the_file_needs(tmp_path: Path) -> None:
    plan = plan_of("spark: {packages: ['a:b:1']}\n" + FILE, tmp_path)
    runtime, sqlite, mine = plan.jars
    assert runtime.startswith("org.apache.iceberg:iceberg-spark-runtime-4.")
    assert sqlite.startswith("org.xerial:sqlite-jdbc:")
    assert mine == "a:b:1"


def test_extensions_of_the_user_are_kept(tmp_path: Path) -> None:
    plan = plan_of("spark: {conf: {spark.sql.extensions: my.Own}}", tmp_path)
    assert plan.spark_conf["spark.sql.extensions"] == (
        "my.Own,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    )


def test_secrets_are_shown_as_their_reference_or_hidden(tmp_path: Path) -> None:
    text = """\
catalogs:
  a: {type: jdbc, warehouse: wh, jdbc: {uri: "postgresql://h/d", user: u, password: "${PW}"}}
  b: {type: jdbc, warehouse: wh, jdbc: {uri: "postgresql://h/d", user: u, password: literal-pw}}
spark:
  conf:
    spark.hadoop.fs.s3a.access.key: AKIA-literal
    spark.hadoop.fs.s3a.secret.key: ${PW}
    spark.mine: https://user:literal-pw@host
"""
    plan = plan_of(text, tmp_path, PW="from-env")
    visible = plan.visible_conf()
    assert "from-env" not in str(plan) + str(visible)
    assert "literal" not in str(plan) + str(visible)
    assert visible["spark.sql.catalog.a.jdbc.password"] == "${PW}"
    assert visible["spark.sql.catalog.b.jdbc.password"] == "(hidden)"
    assert visible["spark.hadoop.fs.s3a.secret.key"] == "${PW}"
    assert visible["spark.hadoop.fs.s3a.access.key"] == "(hidden)"
    assert visible["spark.mine"] == "(hidden)"
    assert plan.spark_conf["spark.sql.catalog.a.jdbc.password"] == "from-env"


def test_catalog_without_a_warehouse_is_reported_with_its_location(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of("catalogs:\n  a: {type: jdbc, jdbc: {uri: postgresql://h/d}}\n", tmp_path)
    assert str(caught.value).startswith(
        f"{tmp_path}/a.yaml:2:3 catalogs.a: no warehouse is set\n  "
    )


@pytest.mark.parametrize(
    ("changes", "place", "namespace"),
    [
        ("namespace: a.b, table: t", "6:59 sinks.s.config.namespace", "a.b"),
        (
            "namespace: a, table: t, on_error: dead_letter, dead_letter: x.y.bad",
            "6:108 sinks.s.config.dead_letter",
            "x.y",
        ),
        ("namespace: a.b, route_by: country", "6:59 sinks.s.config.namespace", "a.b"),
    ],
)
def test_nested_namespace_is_refused_if_the_catalog_has_none(
    changes: str, place: str, namespace: str, tmp_path: Path
) -> None:
    text = f"""\
catalogs:
  h: {{type: hive, hive: {{uri: "thrift://m", warehouse: /w}}}}
sources:
  d: {{connector: datagen}}
sinks:
  s: {{connector: iceberg, config: {{catalog: h, {changes}}}}}
pipelines:
  p: {{source: d, sink: s}}
"""
    with pytest.raises(ConfigError) as caught:
        plan_of(text, tmp_path)

    assert str(caught.value) == (
        f"{tmp_path}/a.yaml:{place}: the namespace {namespace!r} lies in another one, and the "
        "catalog 'h' (hive thrift://m:9083) has one level of them\n"
        f"  Name it e.g. {namespace.replace('.', '_')!r}, or use another kind of catalog."
    )


def test_paths_of_sources_are_relative_to_the_file(tmp_path: Path) -> None:
    plan = plan_of("sources: {f: {connector: files, config: {path: in/x}}}", tmp_path)
    assert plan.sources["f"].options.path == str(tmp_path / "in/x")


def test_planned_parts_are_listed_and_refused_by_name(tmp_path: Path) -> None:
    text = """\
state: {path: "s3a://bucket/state"}
catalogs:
  nes: {type: nessie, nessie: {uri: "http://n", warehouse: wh}}
sources:
  table: {connector: iceberg, config: {namespace: a, table: b}}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: a
      table: b
      commit_mode: upsert
      key_fields: [id]
      branch: main
      schema_evolution: full
      maintenance: {manifests: true}
pipelines:
  p: {source: table, sink: lake, transforms: [{flatten: [a]}]}
views:
  v: {source: a.b, target: a.c, sql: select 1}
"""
    plan = plan_of(text, tmp_path)
    with pytest.raises(UnavailableError) as caught:
        refuse_planned(plan)
    file = tmp_path / "a.yaml"
    assert str(caught.value).splitlines() == [
        f"{file}:{place}: {name!r} is not available in this version"
        for place, name in [
            ("1:15 state.path", "s3a"),
            ("5:22 sources.table.connector", "iceberg"),
            ("16:7 sinks.lake.config.maintenance", "maintenance"),
            ("18:48 pipelines.p.transforms[0].flatten", "flatten"),
            ("19:1 views", "views"),
        ]
    ]


def test_built_parts_are_not_refused(tmp_path: Path) -> None:
    refuse_planned(plan_of(FILE, tmp_path))


def test_planning_loads_neither_spark_nor_a_client_library(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(FILE)
    code = (
        "import sys; from icestream.config import load; from icestream.plan import build; "
        f"build(load({str(file)!r})); "
        "print([m for m in ('pyspark', 'pyiceberg', 'sqlalchemy', 'confluent_kafka', 'pandas') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_schema_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("id bigint")
    options = "{brokers: [a:1], topics: [t], schema: orders.ddl}"
    text = f"sources: {{k: {{connector: kafka, config: {options}}}}}"
    schema = plan_of(text, tmp_path).sources["k"].options.schema_
    assert schema == str(tmp_path / "orders.ddl")


def test_missing_schema_file_is_reported_with_its_location(tmp_path: Path) -> None:
    text = (
        "sources:\n  k:\n    connector: kafka\n"
        "    config: {brokers: [a:1], topics: [t], schema: no.ddl}\n"
    )
    with pytest.raises(ConfigError) as caught:
        plan_of(text, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/a.yaml:4:51 sources.k.config.schema: file '{tmp_path}/no.ddl' can't be "
        "read: no such file or directory"
    )


def test_sinks_without_a_pipeline_are_shown(tmp_path: Path) -> None:
    text = "sinks: {a: {connector: iceberg, config: {namespace: n, table: t}}}"
    assert describe(plan_of(text, tmp_path))["unused"]["sinks"] == {"a": "lake.n.t"}


def test_token_of_the_metrics_endpoint_reaches_the_plan_and_is_not_shown(tmp_path: Path) -> None:
    text = FILE + "metrics: {host: 0.0.0.0, token: '${SCRAPER}'}\n"
    plan = plan_of(text, tmp_path, SCRAPER="hush")

    assert plan.metrics_token is not None
    assert plan.metrics_token.get_secret_value() == "hush"
    assert "hush" not in repr(plan)
    assert "hush" not in str(describe(plan, ask=False))


@pytest.mark.parametrize(
    ("key", "todo"),
    [
        (
            "spark.jars.repositories",
            "Describe the repositories in an Ivy settings file, and name that file in "
            "`spark.jars.ivySettings`.",
        ),
        (
            "spark.jars.excludes",
            "Name the jars that you need in `spark.jars`, in place of packages.",
        ),
    ],
)
def test_resolver_setting_of_spark_is_refused(tmp_path: Path, key: str, todo: str) -> None:
    config = parse(f"{FILE}spark:\n  conf:\n    {key}: x\n", tmp_path / "orders.yaml")
    with pytest.raises(ConfigError) as caught:
        build(config)
    line = FILE.count("\n") + 3
    assert str(caught.value) == (
        f"{tmp_path}/orders.yaml:{line}:{len(key) + 7} spark.conf.{key}: {key!r} is not supported\n"
        f"  {todo}"
    )
    settings = api_settings.Settings(state=tmp_path / "state", conf={key: "x"})
    catalog = api_settings.build_catalog(IcebergOptions(namespace="a", table="b"), settings)
    with pytest.raises(PlanError, match=r"^Settings\.conf: 'spark\.jars\."):
        api_settings.build_plan(settings, catalog)
