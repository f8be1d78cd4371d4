"""A catalog whose tables lie in a store that speaks Google's API."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import configure_spark

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import ConnectorError
from icestream.testing.catalog_suite import CatalogSuite
from icestream.testing.storage_suite import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.gcs_store import GcsStore

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.storage import Storage


def in_gcs(store: GcsStore, folder: Path, **changed: Any) -> JdbcCatalog:
    gcs = {"endpoint": store.endpoint, "project_id": store.project, **changed}
    gcs.setdefault("bucket", store.new_bucket())
    block = {"jdbc": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}"}, "gcs": gcs}
    return JdbcCatalog(f"lake_{uuid.uuid4().hex[:8]}", JdbcCatalogOptions.model_validate(block))


@pytest.fixture
def gcs_catalog(gcs_store: GcsStore, tmp_path: Path) -> Iterator[JdbcCatalog]:
    catalog = in_gcs(gcs_store, tmp_path)
    yield catalog
    catalog.close()


class TestCatalogInGcs(CatalogSuite):
    target = "jdbc, SQLite, on GCS"

    @pytest.fixture
    def catalog(self, gcs_catalog: JdbcCatalog) -> Catalog[Any]:
        return gcs_catalog


class TestGcsStorage(StorageSuite):
    @pytest.fixture
    def storage(self, gcs_catalog: JdbcCatalog) -> Storage:
        return gcs_catalog.files

    @pytest.fixture
    def warehouse(self, gcs_catalog: JdbcCatalog) -> str:
        return f"{gcs_catalog.warehouse}/lake"


def test_catalog_in_gcs_is_shared_with_spark(gcs_catalog: JdbcCatalog, spark: SparkSession) -> None:
    shared_both_ways(gcs_catalog, spark)


def test_missing_bucket_of_google_is_reported(gcs_store: GcsStore, tmp_path: Path) -> None:
    catalog = in_gcs(gcs_store, tmp_path, bucket="no-such-bucket")
    steps = {step.name: step for step in catalog.check()}
    assert list(steps) == [
        "reach catalog",
        "reach store",
        "list store",
        "write an object",
        "read it back",
        "remove it",
    ]
    assert steps["reach store"].run() == f"127.0.0.1:{gcs_store.port}"

    with pytest.raises(ConnectorError) as caught:
        steps["list store"].run()

    assert str(caught.value) == (
        f"storage gcs {gcs_store.endpoint}, project icestream-tests: there is no such bucket\n"
        "  Create it, or check the spelling of `gcs.bucket` or of the catalog's `warehouse`."
    )


def test_missing_bucket_in_spark_is_explained(
    gcs_store: GcsStore, spark: SparkSession, tmp_path: Path
) -> None:
    catalog = in_gcs(gcs_store, tmp_path, bucket="no-such-bucket")
    configure_spark(spark, catalog)
    spark.sql(f"CREATE NAMESPACE {catalog.name}.db")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - as the runner meets it
        spark.range(1).writeTo(f"{catalog.name}.db.t").create()

    error = catalog.explain(exception_text(caught.value), "table db.t")
    assert error is not None, exception_text(caught.value)
    assert error.what == "there is no such bucket"
