"""Where a catalog's files are, if the file does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icestream.catalogs.rest import RestCatalog
from icestream.config import parse
from icestream.contracts.jars import AWS_BUNDLE
from icestream.errors import ConfigError, UnreachableError
from icestream.plan import build, describe, render_text
from icestream.plan.stores import resolve_stores

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.plan import Plan

FILE = """\
catalogs:
  lake: %s
sources: {shop: {connector: datagen, config: {rows: 10}}}
sinks:
  lake: {connector: iceberg, config: {catalog: lake, namespace: sales, table: orders}}
pipelines:
  orders: {source: shop, sink: lake}
"""
REST = "{type: rest, rest: {uri: 'http://127.0.0.1:1', warehouse: '%s'}%s}"


def plan_of(catalog: str, folder: Path) -> Plan:
    return build(parse(FILE % catalog, folder / "a.yaml"))


def stores(plan: Plan) -> str:
    lines = render_text(describe(plan, ask=False)).splitlines()
    return lines[lines.index("Stores") + 1].strip()


def told(monkeypatch: pytest.MonkeyPatch, location: str | Exception | None) -> list[Any]:
    """Let REST catalogs answer where a table is, and return the questions."""
    questions: list[Any] = []

    def answer(_: Any, namespace: tuple[str, ...], table: str | None, *, create: bool) -> Any:
        questions.append((namespace, table, create))
        if isinstance(location, Exception):
            raise location
        return location

    monkeypatch.setattr(RestCatalog, "find_location", answer)
    return questions


@pytest.mark.parametrize(
    ("catalog", "shown"),
    [
        (REST % ("s3://b/lake", ""), "lake  s3 of Amazon, by the location s3://b/lake"),
        (REST % ("s3://b/lake", ", s3: {region: eu}"), "lake  s3 eu"),
        (
            REST % ("analytics", ""),
            "lake  not known yet: the catalog chooses where it creates tables",
        ),
        (
            "{type: jdbc, jdbc: {uri: 'jdbc:sqlite:l.db'}, warehouse: 'gs://b/lake'}",
            "lake  gcs of Google, by the location gs://b/lake",
        ),
        ("{type: jdbc, jdbc: {uri: 'jdbc:sqlite:l.db'}}", "lake  local files"),
    ],
)
def test_plan_shows_the_store_and_how_it_was_found(
    catalog: str, shown: str, tmp_path: Path
) -> None:
    assert stores(plan_of(catalog, tmp_path)) == shown


def test_catalog_is_asked_for_a_store_that_the_file_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = told(monkeypatch, "s3://told/sales/orders")
    plan = plan_of(REST % ("analytics", ""), tmp_path)
    assert AWS_BUNDLE not in plan.jars

    resolved = resolve_stores(plan)

    assert questions == [(("sales",), "orders", False)]
    assert AWS_BUNDLE in resolved.jars
    prefix = "spark.sql.catalog.lake"
    assert resolved.spark_conf[f"{prefix}.io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert resolved.spark_conf[f"{prefix}.warehouse"] == "analytics"
    assert stores(resolved) == "lake  s3 of Amazon, by the location s3://told/sales/orders"


def test_run_lets_the_catalog_create_the_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = told(monkeypatch, None)
    resolve_stores(plan_of(REST % ("analytics", ""), tmp_path), create=True)

    assert questions[0] == (("sales",), "orders", True)


@pytest.mark.parametrize("answer", [None, "ftp://told/sales", UnreachableError("no answer")])
def test_store_that_the_catalog_does_not_tell_stays_unknown(
    answer: str | Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, answer)
    plan = plan_of(REST % ("analytics", ""), tmp_path)

    assert resolve_stores(plan) == plan
    assert stores(plan) == "lake  not known yet: the catalog chooses where it creates tables"


@pytest.mark.parametrize(
    "catalog", [REST % ("s3://b/lake", ""), REST % ("analytics", ", gcs: {bucket: b}")]
)
def test_catalog_with_a_known_store_is_not_asked(
    catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = told(monkeypatch, "s3://told/sales")
    plan = plan_of(catalog, tmp_path)

    assert resolve_stores(plan) is plan
    assert questions == []


def test_warehouse_in_another_store_than_the_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(REST % ("s3://b/lake", ", gcs: {bucket: b}"), tmp_path)

    assert str(caught.value) == (
        f"{tmp_path}/a.yaml:2:3 catalogs.lake: the storage block is `gcs`, but the warehouse is "
        "'s3://b/lake'\n"
        "  Give `gcs.bucket`, or a `warehouse` that begins with gs://; or remove the block `gcs`."
    )


def test_warehouse_in_no_supported_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(REST % ("ftp://b/lake", ""), tmp_path)

    assert str(caught.value).startswith(
        f"{tmp_path}/a.yaml:2:3 catalogs.lake: the warehouse 'ftp://b/lake' lies at ftp:, which "
        "is not supported\n"
        "  Name a folder, or an address that begins with abfss://, gs://"
    )
