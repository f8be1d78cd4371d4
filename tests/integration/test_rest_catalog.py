"""The rest catalog against Iceberg's own server, and through a gateway that asks for tokens."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.oauth_gateway import StorageKeys
from tests.fixtures.spark import Lake, configure_spark
from tests.fixtures.waiting import wait_until

from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.errors import RefusedError
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.sink import IcebergTableSink
from icestream.testing.catalog_suite import CatalogSuite
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.oauth_gateway import OAuthGateway
    from tests.fixtures.rest_catalog import RestCatalog as RestServer
    from tests.fixtures.s3_store import S3Store

    from icestream.contracts.catalog import Catalog

TOKEN_SECS = 3
COLUMNS = pa.schema([("id", pa.int64())])
KEYS = {"access_key_id": "mine", "secret_access_key": "my-secret"}


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


def at(uri: str, *, s3: dict[str, Any] | None = None, **rest: Any) -> RestCatalog:
    block = {"rest": {"uri": uri, **rest}, **({} if s3 is None else {"s3": s3})}
    return RestCatalog(unique("lake"), RestCatalogOptions.model_validate(block))


def signed_in(gateway: OAuthGateway, **options: Any) -> RestCatalog:
    return at(gateway.uri, credential=gateway.credential, **options)


@pytest.fixture
def rest(rest_catalog: RestServer) -> Iterator[RestCatalog]:
    catalog = at(rest_catalog.uri)
    yield catalog
    catalog.close()


class TestRestCatalog(CatalogSuite):
    target = "rest"

    @pytest.fixture
    def catalog(self, rest: RestCatalog) -> Catalog[Any]:
        return rest


class TestRestCatalogOnS3(CatalogSuite):
    target = "rest, on S3"

    @pytest.fixture
    def catalog(self, rest_catalog_on_s3: RestServer, s3_store: S3Store) -> Catalog[Any]:
        s3 = {
            "endpoint": s3_store.endpoint,
            "path_style_access": True,
            "access_key_id": s3_store.access_key_id,
            "secret_access_key": s3_store.secret_access_key,
        }
        return at(rest_catalog_on_s3.uri, s3=s3)


class TestRestCatalogWithTokens(CatalogSuite):
    target = "rest, OAuth2"

    @pytest.fixture
    def catalog(self, oauth_gateway: OAuthGateway) -> Catalog[Any]:
        oauth_gateway.warehouse, oauth_gateway.prefix = "prod", "p1"
        return signed_in(oauth_gateway, warehouse="prod")


def test_rest_catalog_is_shared_with_spark(
    oauth_gateway: OAuthGateway, spark: SparkSession
) -> None:
    catalog = signed_in(oauth_gateway)
    client, theirs, ours = catalog.client(), unique("from spark"), unique("py")
    configure_spark(spark, catalog)

    spark.sql(f"CREATE NAMESPACE {catalog.name}.`{theirs}`")
    spark.range(1, 2).writeTo(f"{catalog.name}.`{theirs}`.`order items`").create()
    client.load_table((theirs, "order items")).append(pa.table({"id": [2]}))

    client.create_namespace(ours)
    client.create_namespace((ours, "eu"))
    table = client.create_table((ours, "eu", "t"), schema=COLUMNS)
    table.append(pa.table({"id": [3]}))
    spark.range(4, 5).writeTo(f"{catalog.name}.{ours}.eu.t").append()

    rows = spark.table(f"{catalog.name}.`{theirs}`.`order items`").collect()
    assert sorted(row.id for row in rows) == [1, 2]
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [3, 4]
    assert oauth_gateway.answers[401] == 0


@pytest.fixture
def gated_lake(oauth_gateway: OAuthGateway, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """A lake behind tokens that are renewed every few seconds."""
    oauth_gateway.token_secs = TOKEN_SECS
    catalog = signed_in(oauth_gateway)
    configure_spark(spark, catalog)
    yield Lake(spark, tmp_path, catalog, namespace=(unique("n"),))
    catalog.close()


def test_token_that_expires_during_a_run_is_renewed(
    gated_lake: Lake, oauth_gateway: OAuthGateway
) -> None:
    source = ScriptedSource(schema=COLUMNS)
    source.append_rows({"id": number} for number in range(10))
    plan = gated_lake.plan(source)
    gated_lake.run(plan)
    first = oauth_gateway.tokens()

    # Java asks for the next one shortly before the one that it has is said to run out.
    wait_until(lambda: len(oauth_gateway.tokens()) > len(first), "a further token")
    oauth_gateway.expire_tokens(first)
    source.append_rows({"id": number} for number in range(10, 20))
    gated_lake.run(plan)

    assert sorted(row["id"] for row in gated_lake.rows()) == list(range(20))
    assert oauth_gateway.requests["commit-table"] >= 2


def test_pipeline_continues_once_tokens_are_issued_again(
    gated_lake: Lake, oauth_gateway: OAuthGateway
) -> None:
    source = ScriptedSource(schema=COLUMNS)
    source.append_rows([{"id": 1}])
    plan = gated_lake.plan(source)
    gated_lake.run(plan)

    oauth_gateway.token_refusal = 401
    refused = oauth_gateway.answers[401]
    # Java tries a few times, and then never again by itself.
    wait_until(lambda: oauth_gateway.answers[401] >= refused + 6, "Java to give up")
    oauth_gateway.expire_tokens()
    source.append_rows([{"id": 2}])
    with pytest.raises(RefusedError, match=r"`rest\.credential`"):
        gated_lake.run(plan)

    oauth_gateway.token_refusal, oauth_gateway.token_secs = None, 3600
    gated_lake.run(plan)

    assert sorted(row["id"] for row in gated_lake.rows()) == [1, 2]


def test_expired_bearer_token_stops_the_pipeline_and_loses_nothing(
    oauth_gateway: OAuthGateway, spark: SparkSession, tmp_path: Path
) -> None:
    catalog = at(oauth_gateway.uri, token=oauth_gateway.new_token())
    configure_spark(spark, catalog)
    lake = Lake(spark, tmp_path, catalog, namespace=(unique("n"),))
    source = ScriptedSource(schema=COLUMNS)
    source.append_rows([{"id": 1}])
    lake.run(lake.plan(source))

    oauth_gateway.expire_tokens()
    source.append_rows([{"id": 2}])
    with pytest.raises(RefusedError, match="the bearer token is refused"):
        lake.run(lake.plan(source))

    renewed = at(oauth_gateway.uri, token=oauth_gateway.new_token())
    configure_spark(spark, renewed)
    lake = Lake(spark, tmp_path, renewed, namespace=lake.namespace)
    lake.run(lake.plan(source))
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]


def new_table(catalog: RestCatalog) -> tuple[str, str]:
    name = (unique("n"), "events")
    catalog.client().create_namespace(name[0])
    catalog.client().create_table(name, schema=COLUMNS)
    return name


def lent_keys(catalog: RestCatalog, spark: SparkSession, name: tuple[str, str]) -> list[str | None]:
    """Return the access keys that PyIceberg's table and Java's come with."""
    from icestream.sinks.iceberg.java import JavaCatalog

    configure_spark(spark, catalog)
    java = JavaCatalog(spark, catalog.name).load(name[:1], name[1])
    python = catalog.client().load_table(name).io.properties
    key = "s3.access-key-id"
    return [python.get(key), java.vended_properties().get(key)]


def test_both_clients_request_vended_credentials(
    oauth_gateway: OAuthGateway, spark: SparkSession
) -> None:
    catalog = signed_in(oauth_gateway)
    name = new_table(catalog)
    oauth_gateway.vend = lambda: StorageKeys("lent", "secret", "session", secs=60)

    assert lent_keys(catalog, spark, name) == ["lent", "lent"]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"s3": KEYS}, ["mine", "mine"]),
        ({"properties": {"header.X-Iceberg-Access-Delegation": "other"}}, [None, None]),
    ],
)
def test_vended_credentials_are_not_requested_if_keys_are_configured(
    oauth_gateway: OAuthGateway,
    spark: SparkSession,
    options: dict[str, Any],
    keys: list[str | None],
) -> None:
    catalog = signed_in(oauth_gateway, **options)
    name = new_table(signed_in(oauth_gateway))
    oauth_gateway.vend = lambda: StorageKeys("lent", "secret")

    assert lent_keys(catalog, spark, name) == keys


def test_client_without_credentials_sends_no_token(rest: RestCatalog) -> None:
    session = rest.client()._session  # type: ignore[attr-defined]

    answer = session.get(f"{rest.uri}/v1/config")

    assert "Authorization" not in answer.request.headers
    assert answer.request.headers["X-Iceberg-Access-Delegation"] == "vended-credentials"


def test_check_tries_the_store_of_a_table(
    rest_catalog_on_s3: RestServer, s3_store: S3Store
) -> None:
    keys = {
        "endpoint": s3_store.endpoint,
        "path_style_access": True,
        "access_key_id": s3_store.access_key_id,
        "secret_access_key": s3_store.secret_access_key,
    }
    namespace, table = new_table(at(rest_catalog_on_s3.uri, s3=keys))

    def run(name: str, catalog: RestCatalog) -> str:
        options = IcebergOptions(namespace=(namespace,), table=table)
        steps = IcebergTableSink(options, catalog, "lake").check()
        return next(step for step in steps if step.name == name).run()

    # Without a block, a run asks the catalog for the store.
    assert run("find table", at(rest_catalog_on_s3.uri)).endswith(", 1 columns")
    keyed = at(rest_catalog_on_s3.uri, s3=keys)
    assert run("find table", keyed).endswith(", 1 columns")
    # The file names no place, so the table's own is tried.
    assert run("try store", keyed).startswith("s3://")
    wrong = at(rest_catalog_on_s3.uri, s3={**keys, "secret_access_key": "wrong"})
    with pytest.raises(RefusedError, match="the store denies access"):
        run("try store", wrong)
