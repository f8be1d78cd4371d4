from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
)

from icestream.catalogs.glue import GlueCatalog, GlueCatalogOptions
from icestream.catalogs.hive import HiveCatalog, HiveCatalogOptions
from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.errors import ConnectorError, DependencyError, RefusedError
from icestream.storage.azure import AzureOptions, AzureStorage

if TYPE_CHECKING:
    from icestream.catalogs.base import ClientCatalog

AZURE = {"storage_account": "acct", "container": "lake"}


def glue() -> GlueCatalog:
    return GlueCatalog("lake", GlueCatalogOptions.model_validate({}))


def hive() -> HiveCatalog:
    block = {"uri": "thrift://127.0.0.1:9083", "warehouse": "/lake"}
    return HiveCatalog("lake", HiveCatalogOptions.model_validate({"hive": block}))


def rest() -> RestCatalog:
    options = RestCatalogOptions.model_validate({"rest": {"uri": "http://127.0.0.1:8181"}})
    return RestCatalog("lake", options, AzureStorage(AzureOptions.model_validate(AZURE)))


class OneAnswer(InMemoryCatalog):
    """A client that has the same answer to every question after a table."""

    def __init__(self, answer: Exception) -> None:
        super().__init__("lake", warehouse="memory://lake")
        self.answer = answer

    def load_table(self, identifier: Any) -> Any:
        raise self.answer


def that_answers(catalog: ClientCatalog[Any], answer: Exception) -> ClientCatalog[Any]:
    catalog._client = OneAnswer(answer)
    return catalog


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As if the packages were not installed."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in request.param or name == "pyiceberg.catalog.glue":
            monkeypatch.delitem(sys.modules, name)
    for name in request.param:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("without_package", [("boto3", "botocore")], indirect=True)
def test_missing_package_of_glue_is_reported_with_the_extra(without_package: None) -> None:
    with pytest.raises(DependencyError) as caught:
        glue().client()

    assert str(caught.value) == (
        "catalog 'lake' (glue of Amazon): needs the package boto3, which is not installed\n"
        "  pip install 'icestream[glue]'"
    )


@pytest.mark.parametrize("without_package", [("thrift",)], indirect=True)
def test_faults_work_without_the_hive_package(without_package: None) -> None:
    assert OSError in hive().faults()


@pytest.mark.parametrize("without_package", [("azure",)], indirect=True)
def test_faults_work_without_the_store_package(without_package: None) -> None:
    assert OSError in rest().faults()


def test_fault_of_the_store_is_explained_by_the_store() -> None:
    from azure.core.exceptions import ClientAuthenticationError

    fault = ClientAuthenticationError("Server failed to authenticate the request.")

    with pytest.raises(RefusedError) as caught:
        that_answers(rest(), fault).find_table(("db", "t"))

    assert caught.value.what == "the store does not accept the credentials"


@pytest.mark.parametrize("build", [glue, hive])
@pytest.mark.parametrize("answer", [NoSuchIcebergTableError("x"), NoSuchPropertyException("x")])
def test_table_of_another_kind_is_refused(build: Any, answer: Exception) -> None:
    catalog = that_answers(build(), answer)

    with pytest.raises(ConnectorError) as caught:
        catalog.find_table(("db", "t"))

    assert str(caught.value) == (
        f"{catalog.where}: 'db.t' is not an Iceberg table\n"
        "  Choose another `table`, or convert this one with Spark's procedure `migrate` first."
    )


@pytest.mark.parametrize("build", [glue, hive, rest])
@pytest.mark.parametrize("answer", [NoSuchTableError("x"), NoSuchNamespaceError("x")])
def test_missing_table_is_not_found(build: Any, answer: Exception) -> None:
    assert that_answers(build(), answer).find_table(("db", "t")) is None
