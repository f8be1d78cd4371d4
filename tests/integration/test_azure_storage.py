"""A catalog whose tables lie in a store that speaks Azure's API, and what it refuses."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import configure_spark

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import ConnectorError, IcestreamError, RefusedError
from icestream.sinks.iceberg.staging_cleanup import remove_staged_files
from icestream.testing.catalog_suite import CatalogSuite
from icestream.testing.storage_suite import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.azure_store import AzureStore

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.storage import Storage

WRONG_KEY = "bm90LXRoZS1rZXk="


def in_azure(store: AzureStore, folder: Path, **changed: Any) -> JdbcCatalog:
    azure = {"storage_account": store.account, "endpoint": store.endpoint, **changed}
    if "sas_token" not in azure:
        azure.setdefault("access_key", store.access_key)
    if "container" not in azure:
        azure["container"] = store.new_container()
    block = {"jdbc": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}"}, "azure": azure}
    return JdbcCatalog(f"lake_{uuid.uuid4().hex[:8]}", JdbcCatalogOptions.model_validate(block))


@pytest.fixture
def azure_catalog(azure_store: AzureStore, tmp_path: Path) -> Iterator[JdbcCatalog]:
    catalog = in_azure(azure_store, tmp_path)
    yield catalog
    catalog.close()


class TestCatalogInAzure(CatalogSuite):
    target = "jdbc, SQLite, on Azure"

    @pytest.fixture
    def catalog(self, azure_catalog: JdbcCatalog) -> Catalog[Any]:
        return azure_catalog


class TestAzureStorage(StorageSuite):
    @pytest.fixture
    def storage(self, azure_catalog: JdbcCatalog) -> Storage:
        return azure_catalog.files

    @pytest.fixture
    def warehouse(self, azure_catalog: JdbcCatalog) -> str:
        return f"{azure_catalog.warehouse}/lake"


def test_catalog_in_azure_is_shared_with_spark(
    azure_catalog: JdbcCatalog, spark: SparkSession
) -> None:
    shared_both_ways(azure_catalog, spark)


def test_signature_is_enough_for_both_clients(
    azure_store: AzureStore, spark: SparkSession, tmp_path: Path
) -> None:
    container = azure_store.new_container()
    catalog = in_azure(
        azure_store,
        tmp_path,
        container=container,
        sas_token=f"?{azure_store.sas_token(container)}",
    )

    shared_both_ways(catalog, spark)

    assert all(step.run() for step in catalog.check())
    catalog.close()


def test_leftover_staged_rows_in_azure_are_removed(azure_catalog: JdbcCatalog) -> None:
    from pyiceberg.io import load_file_io

    folder = f"{azure_catalog.warehouse}/db/__icestream/orders"
    properties = azure_catalog.pyiceberg_properties()
    io = load_file_io(properties, folder)
    with io.new_output(f"{folder}/rows.arrow").create() as stream:
        stream.write(b"rows")

    remove_staged_files(f"{folder}-of-nobody", properties)
    remove_staged_files(folder, properties, older_than=timedelta(days=1))
    assert io.new_input(f"{folder}/rows.arrow").exists()
    remove_staged_files(folder, properties)
    assert not io.new_input(f"{folder}/rows.arrow").exists()


def first_fault(catalog: JdbcCatalog) -> IcestreamError:
    """Return what the first step of a check that does not pass says."""
    for step in catalog.check():
        try:
            step.run()
        except IcestreamError as exc:  # noqa: PERF203 - a handful of steps
            return exc
    raise AssertionError("every step passed")


def test_wrong_key_of_azure_is_refused_without_showing_it(
    azure_store: AzureStore, tmp_path: Path
) -> None:
    error = first_fault(in_azure(azure_store, tmp_path, access_key=WRONG_KEY))

    assert isinstance(error, RefusedError)
    assert str(error) == (
        f"storage azure {azure_store.endpoint}: the store does not accept the credentials\n"
        "  Check `azure.access_key` or `azure.sas_token`, and that it belongs to "
        "`azure.storage_account`."
    )
    assert error.__cause__ is None


def test_key_that_is_not_base64_is_reported(azure_store: AzureStore, tmp_path: Path) -> None:
    error = first_fault(in_azure(azure_store, tmp_path, access_key="not base64"))

    assert isinstance(error, RefusedError)
    assert str(error) == (
        f"storage azure {azure_store.endpoint}: the access key is not valid base64\n"
        "  Check `azure.access_key`: it is truncated, or contains a space or a line break."
    )


def test_expired_signature_is_refused(azure_store: AzureStore, tmp_path: Path) -> None:
    container = azure_store.new_container()
    token = azure_store.sas_token(container, lasts=timedelta(hours=-1))
    error = first_fault(in_azure(azure_store, tmp_path, container=container, sas_token=token))

    assert isinstance(error, RefusedError)
    (ended,) = parse_qs(token)["se"]
    assert str(error) == (
        f"storage azure {azure_store.endpoint}: the shared access signature expired at {ended}\n"
        "  Create a new one, and set it as `azure.sas_token`."
    )


def test_missing_container_is_reported(azure_store: AzureStore, tmp_path: Path) -> None:
    error = first_fault(in_azure(azure_store, tmp_path, container="no-such-container"))

    assert isinstance(error, ConnectorError)
    assert str(error) == (
        f"storage azure {azure_store.endpoint}: there is no such container\n"
        "  Create it, or check the spelling of `azure.container` or of the catalog's `warehouse`."
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"access_key": WRONG_KEY}, "the store does not accept the credentials"),
        ({"container": "no-such-container"}, "there is no such container"),
    ],
    ids=["wrong key", "no such container"],
)
def test_azure_refusal_in_spark_is_explained(
    azure_store: AzureStore, spark: SparkSession, tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    catalog = in_azure(azure_store, tmp_path, **changed)
    configure_spark(spark, catalog)
    spark.sql(f"CREATE NAMESPACE {catalog.name}.db")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - as the runner meets it
        spark.range(1).writeTo(f"{catalog.name}.db.t").create()

    error = catalog.explain(exception_text(caught.value), "table db.t")
    assert error is not None, exception_text(caught.value)
    assert error.what == what
