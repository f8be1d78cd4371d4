"""The nessie catalog against a real server, shared with Spark, and on branches."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import requests
from tests.fixtures.ports import closed_port
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import configure_spark

from icestream.catalogs.nessie import NessieCatalog, NessieCatalogOptions
from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import ConnectorError, UnreachableError
from icestream.sinks.iceberg.java import JavaCatalog, java_errors
from icestream.sinks.iceberg.multi.fan_out import FanOutSink
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.testing.catalog_suite import CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.nessie import Nessie
    from tests.fixtures.s3_store import S3Store

    from icestream.contracts.catalog import Catalog

COLUMNS = pa.schema([("id", pa.int64())])


def at(uri: str, warehouse: str, **nessie: Any) -> NessieCatalog:
    options = {"nessie": {"uri": uri, "warehouse": warehouse, **nessie}}
    return NessieCatalog(unique("lake"), NessieCatalogOptions.model_validate(options))


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


def new_branch(server: Nessie, name: str) -> str:
    """Make a branch where `main` is now."""
    main = requests.get(f"{server.uri}/trees/main", timeout=30).json()["reference"]
    branch = {"name": name, "type": "BRANCH"}
    response = requests.post(f"{server.uri}/trees", params=branch, json=main, timeout=30)
    response.raise_for_status()
    return name


def fault_in_java(catalog: NessieCatalog, spark: SparkSession) -> Exception | None:
    configure_spark(spark, catalog)
    with pytest.raises(java_errors()) as caught:
        JavaCatalog(spark, catalog.name).load(("a",), "b")
    return catalog.explain(exception_text(caught.value), "table a.b")


@pytest.fixture
def on_main(nessie: Nessie) -> Iterator[NessieCatalog]:
    catalog = at(nessie.uri, nessie.warehouse)
    yield catalog
    catalog.close()


class TestNessieCatalog(CatalogSuite):
    target = "nessie"

    @pytest.fixture
    def catalog(self, on_main: NessieCatalog) -> Catalog[Any]:
        return on_main


class TestNessieBranch(CatalogSuite):
    """The same on a branch whose name has a slash."""

    @pytest.fixture
    def catalog(self, nessie: Nessie) -> Iterator[Catalog[Any]]:
        branch = new_branch(nessie, f"team/{unique('b')}")
        catalog = at(nessie.uri, nessie.warehouse, branch=branch)
        yield catalog
        catalog.close()


def test_nessie_catalog_is_shared_with_spark(
    on_main: NessieCatalog, nessie: Nessie, spark: SparkSession
) -> None:
    shared_both_ways(on_main, spark)

    branch = new_branch(nessie, f"team/{unique('b')}")
    shared_both_ways(at(nessie.uri, nessie.warehouse, branch=branch), spark)


def test_branch_does_not_see_commits_of_another(on_main: NessieCatalog, nessie: Nessie) -> None:
    name = (unique("n"), "t")
    on_main.client().create_namespace(name[0])
    table = on_main.client().create_table(name, schema=COLUMNS)
    table.append(pa.table({"id": [1]}))
    branch = at(nessie.uri, nessie.warehouse, branch=new_branch(nessie, unique("b")))

    branch.client().load_table(name).append(pa.table({"id": [2]}))
    table.append(pa.table({"id": [3]}))

    seen = branch.client().load_table(name).scan().to_arrow()["id"].to_pylist()
    assert sorted(seen) == [1, 2]
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 3]


def test_table_is_renamed_with_its_history(on_main: NessieCatalog) -> None:
    client, space = on_main.client(), unique("n")
    client.create_namespace(space)
    client.create_table((space, "old"), schema=COLUMNS).append(pa.table({"id": [1]}))

    renamed = client.rename_table((space, "old"), (space, "new"))
    renamed.append(pa.table({"id": [2]}))

    assert client.list_tables(space) == [(space, "new")]
    assert len(renamed.refresh().history()) == 2


def test_namespace_with_a_table_in_it_is_not_dropped(on_main: NessieCatalog) -> None:
    from pyiceberg.exceptions import NamespaceNotEmptyError

    client, space = on_main.client(), unique("n")
    client.create_namespace(space, {"owner": "me"})
    client.create_table((space, "t"), schema=COLUMNS)

    with pytest.raises(NamespaceNotEmptyError, match=space):
        client.drop_namespace(space)

    client.update_namespace_properties(space, {"owner"}, {"team": "us"})
    assert client.load_namespace_properties(space) == {"team": "us"}


def test_only_one_of_many_concurrent_creates_succeeds(on_main: NessieCatalog) -> None:
    from pyiceberg.exceptions import TableAlreadyExistsError

    client, space = on_main.client(), unique("n")
    client.create_namespace(space)

    def make(_: int) -> bool:
        try:
            client.create_table((space, "t"), schema=COLUMNS)
        except TableAlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 1


def test_concurrent_commits_are_kept_or_refused(on_main: NessieCatalog) -> None:
    from pyiceberg.exceptions import CommitFailedException

    client, space = on_main.client(), unique("n")
    client.create_namespace(space)
    client.create_table((space, "t"), schema=COLUMNS)

    def add(number: int) -> list[int]:
        try:
            client.load_table((space, "t")).append(pa.table({"id": [number]}))
        except CommitFailedException:
            return []
        return [number]

    with ThreadPoolExecutor(8) as pool:
        kept = [number for added in pool.map(add, range(16)) for number in added]

    seen = client.load_table((space, "t")).scan().to_arrow()["id"].to_pylist()
    assert sorted(seen) == kept
    assert kept


def test_staged_rows_of_a_killed_run_are_found_by_the_next(
    on_main: NessieCatalog, spark: SparkSession, tmp_path: Path
) -> None:
    configure_spark(spark, on_main)
    options = IcebergOptions(namespace=(unique("n"),), route_by="kind")
    folders = set()

    for _ in range(2):
        sink = FanOutSink(options, on_main, "lake")
        sink.open(spark, "p", tmp_path / "cache")
        folders.add(sink._folder)

    assert len(folders) == 1


def test_more_tables_than_a_page_are_all_listed(
    on_main: NessieCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.catalogs.nessie_api.PAGE_SIZE", 2)
    client, space = on_main.client(), unique("n")
    client.create_namespace(space)
    first = client.create_table((space, "t0"), schema=COLUMNS)
    for number in range(1, 5):
        client.register_table((space, f"t{number}"), first.metadata_location)

    assert client.list_tables(space) == [(space, f"t{number}") for number in range(5)]


def test_server_that_is_down_is_unreachable(tmp_path: Path, spark: SparkSession) -> None:
    port = closed_port()
    catalog = at(f"http://127.0.0.1:{port}", str(tmp_path))

    with pytest.raises(UnreachableError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (nessie http://127.0.0.1:{port}, branch main): "
        "connection to Nessie refused\n"
        "  Is the server running? Check `nessie.uri`."
    )
    assert type(fault_in_java(catalog, spark)) is UnreachableError


def test_missing_branch_is_reported(nessie: Nessie, spark: SparkSession) -> None:
    catalog = at(nessie.uri, nessie.warehouse, branch="mian")

    with pytest.raises(ConnectorError) as caught:
        catalog.client()

    what = (
        "Nessie has no branch 'mian'\n"
        "  Check the spelling of `nessie.branch`, or create the branch."
    )
    assert str(caught.value) == f"catalog '{catalog.name}' ({catalog.identity()}): {what}"
    assert str(fault_in_java(catalog, spark)) == f"table a.b: {what}"


def test_address_of_another_server_is_reported(nessie: Nessie, spark: SparkSession) -> None:
    catalog = at(f"{nessie.uri.removesuffix('/api/v2')}/elsewhere", nessie.warehouse)

    with pytest.raises(ConnectorError) as caught:
        catalog.client()

    what = (
        "the server at that path is not Nessie's API\n"
        "  Check `nessie.uri`; it is usually `http://HOST:19120/api/v2`."
    )
    assert str(caught.value) == f"catalog '{catalog.name}' ({catalog.identity()}): {what}"
    assert str(fault_in_java(catalog, spark)) == f"table a.b: {what}"


def test_server_that_comes_back_is_used_again(nessie_own: Nessie) -> None:
    catalog = at(nessie_own.uri, nessie_own.warehouse)
    client = catalog.client()
    client.create_namespace("a")
    client.create_table("a.b", schema=COLUMNS)

    nessie_own.kill()
    with pytest.raises(UnreachableError):
        catalog.find_table(("a", "b"))
    nessie_own.start()

    assert catalog.find_table(("a", "b")) is not None
    assert catalog.find_table(("a", "c")) is None
    assert catalog.client() is client


def s3_block(store: S3Store) -> dict[str, Any]:
    return {
        "endpoint": store.endpoint,
        "region": store.region,
        "path_style_access": True,
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key,
    }


def test_tables_of_nessie_may_be_in_s3(
    nessie: Nessie, s3_store: S3Store, spark: SparkSession
) -> None:
    s3 = {**s3_block(s3_store), "bucket": s3_store.new_bucket("nessie")}
    options = {"nessie": {"uri": nessie.uri}, "s3": s3}
    catalog = NessieCatalog(unique("lake"), NessieCatalogOptions.model_validate(options))

    assert all(step.run() for step in catalog.check())
    shared_both_ways(catalog, spark)

    catalog.close()


def test_rest_endpoint_of_nessie_is_a_rest_catalog(nessie_on_s3: Nessie, s3_store: S3Store) -> None:
    block = {"rest": {"uri": f"{nessie_on_s3.rest_uri}/main"}, "s3": s3_block(s3_store)}
    catalog = RestCatalog(unique("lake"), RestCatalogOptions.model_validate(block))
    client, space = catalog.client(), unique("n")

    client.create_namespace(space)
    client.create_table((space, "t"), schema=COLUMNS).append(pa.table({"id": [1, 2]}))

    found = catalog.find_table((space, "t"))
    assert found is not None
    assert found.scan().to_arrow()["id"].to_pylist() == [1, 2]
    assert client.list_tables(space) == [(space, "t")]
    catalog.close()
