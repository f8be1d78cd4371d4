"""The hive catalog against a real metastore, shared with Spark, and with one address down."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.fan_outs import mirrored_names_are_folded, routed_names_are_folded
from tests.fixtures.ports import closed_port, free_port
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import Lake, configure_spark

from icestream.catalogs.hive import HiveCatalog, HiveCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import ConnectorError, UnreachableError
from icestream.sinks.iceberg.java import JavaCatalog, java_errors
from icestream.testing.catalog_suite import CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.fault_proxy import FaultProxy
    from tests.fixtures.hive_metastore import HiveMetastore

    from icestream.contracts.catalog import Catalog

COLUMNS = pa.schema([("id", pa.int64())])


def at(uri: str, warehouse: str) -> HiveCatalog:
    options = {"hive": {"uri": uri, "warehouse": warehouse}}
    return HiveCatalog(unique("lake"), HiveCatalogOptions.model_validate(options))


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def hive(hive_metastore: HiveMetastore) -> Iterator[HiveCatalog]:
    catalog = at(hive_metastore.uri, hive_metastore.warehouse)
    yield catalog
    catalog.close()


class TestHiveCatalog(CatalogSuite):
    target = "hive"
    odd_names = ("select", "2024_orders", "__x__")  # letters, digits and underscores alone

    @pytest.fixture
    def catalog(self, hive: HiveCatalog) -> Catalog[Any]:
        return hive


def test_hive_catalog_is_shared_with_spark(hive: HiveCatalog, spark: SparkSession) -> None:
    shared_both_ways(hive, spark, space="_")


def test_names_that_differ_only_in_case_are_one_table(
    hive: HiveCatalog, spark: SparkSession, tmp_path: Path
) -> None:
    configure_spark(spark, hive)
    routed_names_are_folded(Lake(spark, tmp_path, hive))
    mirrored_names_are_folded(Lake(spark, tmp_path, hive))


def test_namespaces_of_both_clients_are_below_the_warehouse(
    hive_metastore: HiveMetastore, tmp_path: Path, spark: SparkSession
) -> None:
    catalog = at(hive_metastore.uri, str(tmp_path))
    configure_spark(spark, catalog)
    ours, theirs = unique("ours"), unique("theirs")

    catalog.client().create_namespace(ours)
    spark.sql(f"CREATE NAMESPACE {catalog.name}.{theirs}")

    places = [
        catalog.client().load_namespace_properties(name)["location"] for name in (ours, theirs)
    ]
    assert [place.removeprefix("file:").replace("//", "") for place in places] == [
        f"{tmp_path}/{ours}.db",
        f"{tmp_path}/{theirs}.db",
    ]


def test_second_address_takes_over_when_the_first_is_down(
    hive_metastore: HiveMetastore, spark: SparkSession
) -> None:
    uri = f"thrift://127.0.0.1:{closed_port()},{hive_metastore.uri}"
    catalog = at(uri, hive_metastore.warehouse)

    shared_both_ways(catalog, spark, space="_")

    assert {step.name: step.run() for step in catalog.check()}["reach catalog"] == (
        f"127.0.0.1:{hive_metastore.port}"
    )


def test_second_address_takes_over_when_the_first_disconnects(
    hive_metastore: HiveMetastore, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    broken = fault_proxy(free_port())  # takes each connection, and ends it
    uri = f"thrift://127.0.0.1:{broken.port},{hive_metastore.uri}"
    catalog = at(uri, hive_metastore.warehouse)

    assert catalog.find_table(("default", "nothing")) is None
    assert ("default",) in catalog.client().list_namespaces()


def test_lost_connection_fails_over_to_the_other_address(
    hive_metastore: HiveMetastore, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    proxy = fault_proxy(hive_metastore.port)
    uri = f"thrift://127.0.0.1:{proxy.port},{hive_metastore.uri}"
    catalog = at(uri, hive_metastore.warehouse)
    client, name = catalog.client(), unique("n")

    client.create_namespace(name)
    proxy.cut()

    assert client.namespace_exists(name)
    assert catalog.client() is client


def test_threads_do_not_close_each_others_connections(hive: HiveCatalog) -> None:
    client = hive.client()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.namespace_exists("default"), range(64)))

    assert all(answers)


def test_metastore_that_is_down_is_unreachable(tmp_path: Path, spark: SparkSession) -> None:
    port = closed_port()
    catalog = at(f"thrift://127.0.0.1:{port}", str(tmp_path))

    with pytest.raises(UnreachableError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (hive thrift://127.0.0.1:{port}): no answer from the "
        "metastore\n"
        "  Is the server running? Check `hive.uri`. Is a firewall, a VPN or a proxy in between?"
    )
    assert type(fault_in_java(catalog, spark)) is UnreachableError


def fault_in_java(catalog: HiveCatalog, spark: SparkSession) -> Exception | None:
    configure_spark(spark, catalog)
    with pytest.raises(java_errors()) as caught:
        JavaCatalog(spark, catalog.name).exists(("a",), "b")
    return catalog.explain(exception_text(caught.value), "table a.b")


def test_metastore_that_comes_back_is_used_again(hive_metastore_own: HiveMetastore) -> None:
    catalog = at(hive_metastore_own.uri, hive_metastore_own.warehouse)
    client = catalog.client()
    client.create_namespace("a")
    client.create_table("a.b", schema=COLUMNS)

    hive_metastore_own.kill()
    with pytest.raises(UnreachableError):
        catalog.find_table(("a", "b"))
    hive_metastore_own.start()

    assert catalog.find_table(("a", "b")) is not None
    assert catalog.find_table(("a", "c")) is None
    assert catalog.client() is client


def test_hive_table_is_not_mistaken_for_a_missing_table(hive: HiveCatalog) -> None:
    from hive_metastore.ttypes import Database, SerDeInfo, StorageDescriptor, Table

    name = unique("n")
    connections: Any = hive.client()._client  # type: ignore[attr-defined]
    with connections as metastore:
        metastore.create_database(Database(name=name, parameters={}))
        columns = StorageDescriptor(cols=[], serdeInfo=SerDeInfo())
        metastore.create_table(
            Table(tableName="t", dbName=name, sd=columns, parameters={}, partitionKeys=[])
        )

    with pytest.raises(ConnectorError) as caught:
        hive.find_table((name, "t"))

    assert str(caught.value) == (
        f"catalog '{hive.name}' ({hive.identity()}): '{name}.t' is not an Iceberg table\n"
        "  Choose another `table`, or convert this one with Spark's procedure `migrate` first."
    )
