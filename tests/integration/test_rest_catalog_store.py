"""A REST catalog on S3 and a file without an `s3` block: the server says where files are."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.command_line import run_icestream
from tests.fixtures.oauth_gateway import OAuthGateway, StorageKeys
from tests.fixtures.rest_messages import Answer, Request, catalog_error

from icestream.catalogs.rest import RestCatalog, RestCatalogOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.rest_catalog import RestCatalog as RestServer
    from tests.fixtures.s3_store import S3Store

FILE = """\
version: "1.0"
catalogs:
  lake:
    type: rest
    rest: {{uri: "{uri}", credential: "{credential}"{warehouse}}}
sources:
  shop: {{connector: datagen, config: {{rows: 50}}}}
sinks:
  events:
    connector: iceberg
    config: {{catalog: lake, namespace: {namespace}, table: events}}
pipelines:
  events: {{source: shop, sink: events, restart: {{max: 0}}}}
metrics: {{port: 0}}
"""


@pytest.fixture
def gateway(rest_catalog_on_s3: RestServer, s3_store: S3Store) -> Iterator[OAuthGateway]:
    """A server that sends credentials and the store's address with each table, as hosted ones."""
    settings = {
        "s3.endpoint": s3_store.endpoint,
        "s3.path-style-access": "true",
        "client.region": s3_store.region,
        "s3.region": s3_store.region,
    }
    with OAuthGateway(rest_catalog_on_s3.uri) as gateway:
        gateway.refreshes_keys = False  # the store knows no sessions
        gateway.vend = lambda: StorageKeys(
            s3_store.access_key_id, s3_store.secret_access_key, settings=settings
        )
        yield gateway


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


def write_file(folder: Path, gateway: OAuthGateway, warehouse: str = "") -> str:
    namespace = unique("n")
    text = FILE.format(
        uri=gateway.uri,
        credential=gateway.credential,
        namespace=namespace,
        warehouse=f", warehouse: '{warehouse}'" if warehouse else "",
    )
    (folder / "icestream.yaml").write_text(text)
    return namespace


def client_of(gateway: OAuthGateway) -> RestCatalog:
    block = {"rest": {"uri": gateway.uri, "credential": gateway.credential}}
    return RestCatalog(unique("lake"), RestCatalogOptions.model_validate(block))


def test_run_asks_the_server_for_the_store_of_its_first_table(
    gateway: OAuthGateway, tmp_path: Path
) -> None:
    namespace = write_file(tmp_path, gateway)

    before = run_icestream("plan", "--output", "json", folder=tmp_path).document
    assert before["stores"] == {
        "lake": "not known yet: the catalog chooses where it creates tables"
    }

    done = run_icestream("run", "--once", folder=tmp_path)
    assert done.code == 0, done.err
    table = client_of(gateway).find_table((namespace, "events"))
    assert table is not None
    assert table.scan().to_arrow().num_rows == 50

    after = run_icestream("plan", "--output", "json", folder=tmp_path).document
    location = table.location()
    assert location.startswith("s3://")
    assert after["stores"] == {"lake": f"s3 of Amazon, by the location {location}"}
    assert any("iceberg-aws-bundle" in jar for jar in after["jars"])
    assert run_icestream("check", folder=tmp_path).code == 0
    # And a second run, with the table there from the start.
    assert run_icestream("run", "--once", folder=tmp_path).code == 0


def test_store_is_derived_from_the_address_as_a_warehouse(
    gateway: OAuthGateway, rest_catalog_on_s3: RestServer, tmp_path: Path
) -> None:
    namespace = write_file(tmp_path, gateway, rest_catalog_on_s3.warehouse)

    done = run_icestream("run", "--once", folder=tmp_path)

    assert done.code == 0, done.err
    table = client_of(gateway).find_table((namespace, "events"))
    assert table is not None
    assert table.scan().to_arrow().num_rows == 50


def test_location_is_that_of_the_table_or_of_its_namespace(
    gateway: OAuthGateway, rest_catalog_on_s3: RestServer
) -> None:
    catalog, namespace = client_of(gateway), unique("n")
    assert catalog.find_location((namespace,), "events", create=False) is None

    catalog.client().create_namespace(namespace)

    expected = f"{rest_catalog_on_s3.warehouse}/{namespace}"
    assert catalog.find_location((namespace,), "events", create=False) == expected
    assert catalog.find_location((namespace,), None, create=False) == expected


class SilentGateway(OAuthGateway):
    """A server that chooses a location only when it creates a table."""

    def answer(self, request: Request) -> Answer:
        if request.kind == "create-table" and b'"stage-create":true' in request.body:
            return catalog_error(406, "UnsupportedOperationException", "no staged creation")
        answer = super().answer(request)
        if request.kind == "load-namespace" and answer.status == 200:
            body = json.loads(answer.body)
            body["properties"].pop("location", None)
            return Answer.of_json(200, body)
        return answer


def test_run_that_was_not_told_the_store_says_so_at_once_and_the_next_one_is(
    gateway: OAuthGateway, rest_catalog_on_s3: RestServer, tmp_path: Path
) -> None:
    with SilentGateway(rest_catalog_on_s3.uri) as silent:
        silent.refreshes_keys, silent.vend = False, gateway.vend
        namespace = write_file(tmp_path, silent)

        first = run_icestream("run", "--once", folder=tmp_path)
        second = run_icestream("run", "--once", folder=tmp_path)

    assert first.code == 2, first.err
    assert (
        f"error: table lake.{namespace}.events: its files are in s3://, which the catalog did not "
        "say before the table existed, so Spark runs without that store's jars\n"
        "  Run again: the store is known now. To set it in the file, add `s3: {}` to the block of "
        "catalog 'lake', with the keys that the store needs.\n"
    ) in first.err
    assert second.code == 0, second.err
