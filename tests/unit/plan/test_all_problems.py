"""Every problem of a file is reported in one run: none hides another, and none is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import read
from icestream.errors import ConfigError
from icestream.plan.planner import build, build_runnable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

GOOD = """\
sources:
  clicks: {connector: datagen, config: {rows: 5}}
sinks:
  lake: {connector: iceberg, config: {namespace: shop, table: clicks}}
pipelines:
  clicks: {source: clicks, sink: lake}
"""

MIRROR = """\
sources:
  shop: {connector: postgres-cdc, config: {host: db, database: shop, user: me}}
sinks:
  lake: {connector: iceberg}
pipelines:
"""


def problems(folder: Path, text: str) -> list[str]:
    """Return the first line of each problem, without the file's name."""
    file = folder / "shop.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        build_runnable(read(file), once=False)
    return [
        str(problem).splitlines()[0].removeprefix(f"{file}:") for problem in caught.value.problems
    ]


def test_problems_of_options_components_and_spark_are_reported_together(tmp_path: Path) -> None:
    text = """\
sources:
  clicks: {connector: datagen, config: {rows: 5, rwos: 6}}
  orders: {connector: kafak, config: {}}
sinks:
  lake: {connector: iceberg, config: {namespace: shop, table: clicks, compresion: zstd}}
  other: {connector: iceberg, config: {namespace: shop, table: orders, commit_mode: upsert}}
pipelines:
  clicks: {source: clicks, sink: lake, transforms: [{fliter: id > 0}]}
  orders: {source: orders, sink: lake, restart: {max: -1}}
  more: {source: nothing, sink: lake}
spark: {mastr: yarn, conf: {spark.driver.memory: 2 gigs}}
metrcs: {port: 0}
"""
    assert problems(tmp_path, text) == [
        "2:50 sources.clicks.config.rwos: unknown key 'rwos'",
        "3:23 sources.orders.connector: no source is called 'kafak'",
        "5:71 sinks.lake.config.compresion: unknown key 'compresion'",
        "6:72 sinks.other.config.key_fields: commit_mode 'upsert' needs at least one key field, "
        "and none is given",
        "8:54 pipelines.clicks.transforms[0].fliter: no transform is called 'fliter'",
        "9:55 pipelines.orders.restart.max: must be at least 0, found -1",
        "10:18 pipelines.more.source: no source is named 'nothing'",
        "11:9 spark.mastr: unknown key 'mastr'",
        "11:50 spark.conf.spark.driver.memory: '2 gigs' is not an amount of memory",
        "12:1 metrcs: unknown key 'metrcs'",
    ]


def test_broken_catalog_does_not_turn_its_sink_into_one_of_the_embedded_catalog(
    tmp_path: Path,
) -> None:
    text = """\
catalogs:
  far: {type: jdbc, jdbc: {uir: "sqlite:///x.db"}}
sinks:
  named: {connector: iceberg, config: {catalog: far, namespace: a, table: b}}
  inline: {connector: iceberg, config: {catalog: {type: jbdc}, namespace: a, commit_mode: upsert}}
  good: {connector: iceberg, config: {namespace: a}}
"""
    assert problems(tmp_path, text) == [
        "2:28 catalogs.far.jdbc.uir: unknown key 'uir'",
        "5:32 sinks.inline.config.table: 'table' is missing",
        "5:57 sinks.inline.config.catalog.type: no catalog is called 'jbdc'",
        "5:78 sinks.inline.config.key_fields: commit_mode 'upsert' needs at least one key field, "
        "and none is given",
        "6:30 sinks.good.config.table: 'table' is missing",
    ]


def test_sink_of_a_broken_change_source_is_not_asked_for_a_table(tmp_path: Path) -> None:
    text = """\
sources:
  shop: {connector: postgres-cdc, config: {host: db, databse: shop}}
sinks:
  lake: {connector: iceberg}
pipelines:
  shop: {source: shop, sink: lake}
"""
    assert [line.split(": ", 1)[0] for line in problems(tmp_path, text)] == [
        "2:35 sources.shop.config.user",
        "2:54 sources.shop.config.databse",
    ]


def test_sink_of_a_broken_pipeline_is_not_asked_for_a_table(tmp_path: Path) -> None:
    text = f"{MIRROR}  shop: {{source: shop, sink: lake, transfroms: []}}\n"
    assert problems(tmp_path, text) == ["6:36 pipelines.shop.transfroms: unknown key 'transfroms'"]


def test_unset_variable_hides_no_other_problem_and_causes_none(tmp_path: Path) -> None:
    text = """\
sinks:
  lake: {connector: iceberg, config: {namespace: a, table: "${NO_SUCH_TABLE}"}}
  other: {connector: iceberg, config: {namespace: a, table: b, commit_mode: upsert}}
spark: {master: "${NO_SUCH_MASTER}"}
"""
    assert problems(tmp_path, text) == [
        "2:60 sinks.lake.config.table: the environment variable 'NO_SUCH_TABLE' is not set",
        "3:64 sinks.other.config.key_fields: commit_mode 'upsert' needs at least one key field, "
        "and none is given",
        "4:17 spark.master: the environment variable 'NO_SUCH_MASTER' is not set",
    ]


@pytest.mark.parametrize("catalog", ["[rest]", "5", "true"])
def test_catalog_that_is_neither_a_name_nor_a_block_is_reported(
    tmp_path: Path, catalog: str
) -> None:
    text = GOOD.replace("table: clicks", f"table: clicks, catalog: {catalog}")
    (line,) = problems(tmp_path, text)
    assert line.startswith("4:80 sinks.lake.config.catalog: expected ")


def test_values_that_no_path_or_address_has_are_reported(tmp_path: Path) -> None:
    hive = 'type: hive, hive: {uri: "thrift://host:9083", warehouse: "http://[::1"}'
    text = f"""\
catalogs: {{far: {{{hive}}}}}
sources:
  in: {{connector: files, config: {{path: ~nobody-is-called-this/x, schema: id int}}}}
  pg: {{connector: datagen, config: {{rows: "${{file:~nobody-is-called-this/x}}"}}}}
"""
    assert problems(tmp_path, text) == [
        "1:12 catalogs.far: 'http://[::1' is not a valid address: Invalid IPv6 URL",
        "4:43 sources.pg.config.rows: '~nobody-is-called-this/x' is not a valid path",
    ]


def test_mirror_whose_sink_is_misspelt_is_not_asked_for_a_table(tmp_path: Path) -> None:
    pipeline = '{source: shop, sink: lak, transforms: [{filter: "id >"}]}'
    text = f"{MIRROR}  shop: {pipeline}\n"
    assert problems(tmp_path, text) == [
        "6:30 pipelines.shop.sink: no sink is named 'lak'",
        "6:57 pipelines.shop.transforms[0].filter: not a SQL condition, near '>' in column 4: "
        "'id >'",
    ]


def test_planned_features_and_endless_overwrites_are_reported_with_the_rest(
    tmp_path: Path,
) -> None:
    text = """\
sources:
  clicks: {connector: datagen, config: {rows_per_second: 5}}
sinks:
  lake: {connector: iceberg, config: {namespace: a, table: b, commit_mode: overwrite_table}}
pipelines:
  clicks: {source: clicks, sink: lake}
views:
  daily: {source: a.b, target: a.c, sql: SELECT 1}
spark: {master: "local[two]"}
"""
    assert problems(tmp_path, text) == [
        "4:76 sinks.lake.config.commit_mode: commit_mode 'overwrite_table' in pipeline 'clicks': "
        "the source 'clicks' never ends, so that every batch would wipe what the last wrote",
        "7:1 views: 'views' is not available in this version",
        "9:17 spark.master: 'local[two]' is not a Spark master",
    ]


def test_named_pipeline_that_is_broken_is_not_called_unknown(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(GOOD.replace("sink: lake}", "sink: lake, enabled: maybe}"))
    with pytest.raises(ConfigError) as caught:
        build(read(file), only=["clicks"])
    assert [problem.where.split(" ")[1] for problem in caught.value.problems] == [
        "pipelines.clicks.enabled"
    ]


def test_two_pipelines_may_not_upsert_one_table(tmp_path: Path) -> None:
    text = GOOD.replace(
        "table: clicks", "table: clicks, commit_mode: upsert, key_fields: [event_id]"
    )
    assert problems(tmp_path, f"{text}  again: {{source: clicks, sink: lake}}\n") == [
        "7:3 pipelines.again: 'again' upserts lake.shop.clicks, and so does 'clicks': the order of "
        "their changes to one key would be left to chance, and their commits would conflict"
    ]
    file = tmp_path / "shop.yaml"
    file.write_text(f"{text}  again: {{source: clicks, sink: lake, enabled: false}}\n")
    build(read(file))
    file.write_text(f"{GOOD}  again: {{source: clicks, sink: lake}}\n")
    build(read(file))


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[4]",
        "local[*, 3]",
        "local-cluster[2, 1, 1024]",
        "yarn",
        "spark://host:7077,other:7077",
        "k8s://https://host:443",
    ],
)
def test_masters_of_spark_are_accepted(tmp_path: Path, master: str) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(f"{GOOD}spark: {{master: '{master}'}}\n")
    assert build(read(file)).master == master


@pytest.mark.parametrize("master", ["local[two]", "locl", "spark:/host", "local[", "host:7077"])
def test_other_masters_are_refused(tmp_path: Path, master: str) -> None:
    assert problems(tmp_path, f"{GOOD}spark:\n  master: '{master}'\n") == [
        f"8:11 spark.master: {master!r} is not a Spark master"
    ]
    assert problems(tmp_path, f"{GOOD}spark:\n  conf: {{spark.master: '{master}'}}\n") == [
        f"8:24 spark.conf.spark.master: {master!r} is not a Spark master"
    ]


@pytest.mark.parametrize(
    ("key", "value", "is_accepted"),
    [
        ("spark.driver.memory", "2g", True),
        ("spark.driver.memory", "512M", True),
        ("spark.driver.memory", "2gb", False),
        ("spark.driver.memory", "2048", False),
        ("spark.driver.memory", "2 gigs", False),
        ("spark.executor.memory", "2gb", True),
        ("spark.executor.memory", "two", False),
    ],
)
def test_memory_is_a_number_with_a_unit(
    tmp_path: Path, key: str, value: str, is_accepted: bool
) -> None:
    text = f"{GOOD}spark:\n  conf:\n    {key}: {value}\n"
    if is_accepted:
        file = tmp_path / "shop.yaml"
        file.write_text(text)
        build(read(file))
    else:
        (line,) = problems(tmp_path, text)
        assert line.endswith(f"spark.conf.{key}: {value!r} is not an amount of memory")


def test_check_prints_all_problems_and_their_number(icestream: Icestream, tmp_path: Path) -> None:
    (tmp_path / "icestream.yaml").write_text(f"{GOOD}spark: {{master: here}}\nmetrcs: {{}}\n")
    ended = icestream("check", "--offline")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: icestream.yaml:7:17 spark.master: 'here' is not a Spark master\n"
        "  Write e.g. `local[*]`, `local[4]`, `spark://host:7077`, `yarn` or "
        "`k8s://https://host:443`.\n"
        "icestream.yaml:8:1 metrcs: unknown key 'metrcs'\n"
        "  Did you mean 'metrics'?\n"
        "2 problems.\n"
    )
