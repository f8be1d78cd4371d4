"""A file can be planned without the packages that a run needs; `run` and `check` name them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from icestream import IcebergOptions, IcebergSink, KafkaOptions, KafkaSource, Pipeline
from icestream.config import parse
from icestream.errors import DependencyError
from icestream.plan import build, describe, render_text
from icestream.plan.packages import find_missing_packages, refuse_missing_packages

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

CLIENTS = (
    *("adlfs", "boto3", "confluent_kafka", "fastavro", "httptools", "psycopg", "pymysql"),
    *("thrift", "uvicorn", "uvloop"),
)
FILE = """\
catalogs:
  lake: {catalog}
sources:
  events: {source}
sinks:
  lake: {{connector: iceberg, config: {{catalog: lake, namespace: shop, table: events}}}}
pipelines:
  events: {{source: events, sink: lake}}
"""
MEMORY = "{type: memory}"
DATAGEN = "{connector: datagen, config: {rows: 10}}"
KAFKA = "{connector: kafka, config: {brokers: 'b:9092', topics: [t], format: %s}}"
POSTGRES = "{connector: postgres-cdc, config: {host: h, database: d, user: u, password: p}}"
SOURCES = [
    (KAFKA % "json", "source 'kafka'", "confluent_kafka", "kafka"),
    (
        KAFKA % "debezium-avro, schema_registry: {url: 'http://r'}",
        "source 'kafka'",
        "confluent_kafka",
        "kafka",
    ),
    (POSTGRES, "source 'postgres-cdc'", "psycopg", "postgres"),
    (
        "{connector: webhook, config: {port: 8099, auth: {type: none}}}",
        "source 'webhook'",
        "uvicorn",
        "webhook",
    ),
    ("{connector: files, config: {path: in, format: avro}}", "source 'files'", "fastavro", "avro"),
]
CATALOGS = [
    ("{type: glue, warehouse: 's3://b/l'}", "catalog 'glue'", "boto3", "glue"),
    ("{type: hive, hive: {uri: 'thrift://h', warehouse: /w}}", "catalog 'hive'", "thrift", "hive"),
    (
        "{type: jdbc, jdbc: {uri: 'jdbc:postgresql://h/d'}, warehouse: /w}",
        "catalog 'jdbc'",
        "psycopg",
        "postgres",
    ),
    (
        "{type: jdbc, jdbc: {uri: 'jdbc:mysql://h/d'}, warehouse: /w}",
        "catalog 'jdbc'",
        "pymysql",
        "mysql",
    ),
    (
        "{type: memory, warehouse: 'abfss://c@a.dfs.core.windows.net/l'}",
        "catalog 'memory'",
        "adlfs",
        "azure",
    ),
    (
        "{type: rest, rest: {uri: 'http://r', properties: {rest.sigv4-enabled: true}}}",
        "catalog 'rest'",
        "boto3",
        "s3",
    ),
]
CASES = [
    *((MEMORY, source, "4:23 sources.events.connector", *rest) for source, *rest in SOURCES),
    *((catalog, DATAGEN, "2:16 catalogs.lake.type", *rest) for catalog, *rest in CATALOGS),
]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no extra were installed."""
    for name in CLIENTS:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(("catalog", "source", "where", "component", "package", "extra"), CASES)
def test_plan_says_what_a_run_needs_and_a_run_refuses(
    bare: None,
    tmp_path: Path,
    catalog: str,
    source: str,
    where: str,
    component: str,
    package: str,
    extra: str,
) -> None:
    config = parse(FILE.format(catalog=catalog, source=source), tmp_path / "a.yaml")
    plan = build(config)

    text = render_text(describe(plan, ask=False, missing=find_missing_packages(plan, config)))
    with pytest.raises(DependencyError) as caught:
        refuse_missing_packages(plan, config)

    place = f"{tmp_path}/a.yaml:{where}"
    assert (
        "Needed by a run, but not installed\n"
        f"  ! {place}: {component} needs {package}: pip install 'icestream[{extra}]'\n"
    ) in text
    assert str(caught.value) == (
        f"{place}: {component} needs the package {package}, which is not installed\n"
        f"  pip install 'icestream[{extra}]'"
    )


def test_every_missing_package_is_named(bare: None, tmp_path: Path) -> None:
    text = FILE.format(catalog=CATALOGS[0][0], source=SOURCES[2][0])
    config = parse(text, tmp_path / "a.yaml")

    with pytest.raises(DependencyError) as caught:
        refuse_missing_packages(build(config), config)

    lines = str(caught.value).splitlines()
    assert [line.strip() for line in lines[1::2]] == [
        "pip install 'icestream[postgres]'",
        "pip install 'icestream[glue]'",
    ]


def test_nothing_is_missing_where_everything_is_installed(tmp_path: Path) -> None:
    for catalog, source, *_ in CASES:
        config = parse(FILE.format(catalog=catalog, source=source), tmp_path / "a.yaml")
        assert find_missing_packages(build(config), config) == []


def test_commands_without_an_extra(bare: None, tmp_path: Path, icestream: Icestream) -> None:
    text = FILE.format(catalog=MEMORY, source=SOURCES[0][0])
    (tmp_path / "icestream.yaml").write_text(text)
    needs = (
        "  ! icestream.yaml:4:23 sources.events.connector: source 'kafka' needs confluent_kafka: "
        "pip install 'icestream[kafka]'\n"
    )

    planned, checked = icestream("plan"), icestream("check", "--offline")
    refused = [icestream("check"), icestream("run")]

    assert (planned.code, checked.code) == (0, 0)
    assert needs in planned.out
    assert needs in checked.out
    for each in refused:
        assert each.code == 2
        assert each.err == (
            "error: icestream.yaml:4:23 sources.events.connector: source 'kafka' needs the package "
            "confluent_kafka, which is not installed\n  pip install 'icestream[kafka]'\n"
        )


def test_planning_imports_no_client(tmp_path: Path) -> None:
    """In a process of its own: here, they are all loaded."""
    sources = "".join(f"  s{n}: {source[0]}\n" for n, source in enumerate(SOURCES))
    sinks = "".join(
        f"  k{n}: {{connector: iceberg, config: {{catalog: c{n}, namespace: a, table: t{n}}}}}\n"
        for n in range(len(CATALOGS))
    )
    catalogs = "".join(f"  c{n}: {catalog[0]}\n" for n, catalog in enumerate(CATALOGS))
    (tmp_path / "icestream.yaml").write_text(
        f"catalogs:\n{catalogs}sources:\n{sources}sinks:\n{sinks}"
    )
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({CLIENTS!r}))\n"
        "from icestream.cli.main import main\n"
        "sys.argv = ['icestream', 'check', '--offline']\n"
        "main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install") == len(SOURCES) - 1 + len(CATALOGS)


def test_pipeline_in_python_names_the_extra_at_once(bare: None) -> None:
    source = KafkaSource(KafkaOptions(brokers=("b:9092",), topics=("t",)))

    with pytest.raises(DependencyError) as caught:
        Pipeline.from_source(source)

    assert str(caught.value) == (
        "KafkaSource: needs the package confluent_kafka, which is not installed\n"
        "  pip install 'icestream[kafka]'"
    )


def test_sink_in_python_names_the_extra_at_once(bare: None) -> None:
    catalog: dict[str, Any] = {"type": "hive", "hive": {"uri": "thrift://h", "warehouse": "/w"}}

    with pytest.raises(DependencyError) as caught:
        IcebergSink(IcebergOptions(namespace=("a",), table="b", catalog=catalog))

    assert str(caught.value) == (
        "catalog hive thrift://h:9083: needs the package thrift, which is not installed\n"
        "  pip install 'icestream[hive]'"
    )
