"""The gateway that hosted REST catalogs are stood in for by: what clients meet there."""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
from tests.fixtures.oauth_gateway import ACCESS_TOKEN, EXCHANGE, OAuthGateway, StorageKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from tests.fixtures.rest_catalog import RestCatalog


def _send(
    url: str, headers: Mapping[str, str] | None = None, form: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(url, data, dict(headers or {}))  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


def _load(gateway: OAuthGateway, **properties: str) -> Catalog:
    from pyiceberg.catalog import load_catalog

    auth = {
        "credential": gateway.credential,
        "scope": gateway.scope or "",
        "oauth2-server-uri": gateway.token_uri,
    }
    return load_catalog("gateway", **{"type": "rest", "uri": gateway.uri, **auth, **properties})


def _new_table(catalog: Catalog) -> tuple[str, str]:
    import pyarrow as pa

    name = (f"n_{uuid.uuid4().hex[:12]}", "t")
    catalog.create_namespace(name[0])
    catalog.create_table(name, pa.schema({"id": pa.int64()}))
    return name


def _client(gateway: OAuthGateway, **form: str) -> dict[str, str]:
    return {
        "grant_type": "client_credentials",
        "client_id": gateway.client_id,
        "client_secret": gateway.client_secret,
        "scope": "catalog",
        **form,
    }


def _exchange(gateway: OAuthGateway, token: str, authorization: str) -> int:
    form = {
        "grant_type": EXCHANGE,
        "subject_token": token,
        "subject_token_type": ACCESS_TOKEN,
        "scope": "catalog",
    }
    return _send(gateway.token_uri, {"Authorization": authorization}, form)[0]


def test_request_without_a_token_gets_an_iceberg_error_response(
    oauth_gateway: OAuthGateway,
) -> None:
    assert _send(f"{oauth_gateway.uri}/v1/config") == (
        401,
        {
            "error": {
                "message": "the bearer token is missing or has expired",
                "type": "NotAuthorizedException",
                "code": 401,
                "stack": [],
            }
        },
    )


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"scope": "other"}, 400, "invalid_scope"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
    ],
)
def test_invalid_token_request_is_refused(
    oauth_gateway: OAuthGateway, form: dict[str, str], status: int, error: str
) -> None:
    found, body = _send(oauth_gateway.token_uri, form=_client(oauth_gateway, **form))

    assert (found, body["error"]) == (status, error)


def test_token_is_valid_until_it_is_revoked(oauth_gateway: OAuthGateway) -> None:
    oauth_gateway.token_secs = 2
    status, body = _send(oauth_gateway.token_uri, form=_client(oauth_gateway))
    assert (status, body["expires_in"]) == (200, 2)
    held = {"Authorization": f"Bearer {body['access_token']}"}
    assert _send(f"{oauth_gateway.uri}/v1/config", held)[0] == 200

    oauth_gateway.expire_tokens()

    assert _send(f"{oauth_gateway.uri}/v1/config", held)[0] == 401


def test_valid_token_is_exchanged_and_a_revoked_one_only_by_its_client(
    oauth_gateway: OAuthGateway,
) -> None:
    token = oauth_gateway.new_token()
    basic = base64.b64encode(oauth_gateway.credential.encode()).decode()

    assert _exchange(oauth_gateway, token, f"Bearer {token}") == 200
    oauth_gateway.expire_tokens()
    assert _exchange(oauth_gateway, token, f"Bearer {token}") == 401
    assert _exchange(oauth_gateway, token, f"Basic {basic}") == 200
    assert _exchange(oauth_gateway, "unknown", f"Basic {basic}") == 401


def test_pyiceberg_continues_with_a_new_token_after_revocation(
    oauth_gateway: OAuthGateway,
) -> None:
    catalog = _load(oauth_gateway)
    name = _new_table(catalog)
    tokens = oauth_gateway.requests["token"]

    oauth_gateway.expire_tokens()

    assert catalog.load_table(name).name() == name
    assert oauth_gateway.requests["token"] == tokens + 1
    assert oauth_gateway.requests["create-table"] == 1
    assert oauth_gateway.answers[401] == 1


@pytest.mark.parametrize(("status", "error"), [(401, "invalid_client"), (503, "server_error")])
def test_tokens_are_refused_on_request(
    oauth_gateway: OAuthGateway, status: int, error: str
) -> None:
    oauth_gateway.token_refusal = status
    found, body = _send(oauth_gateway.token_uri, form=_client(oauth_gateway))
    assert (found, body["error"]) == (status, error)

    oauth_gateway.token_refusal = None

    assert _send(oauth_gateway.token_uri, form=_client(oauth_gateway))[0] == 200


def test_only_writes_are_forbidden_on_request(oauth_gateway: OAuthGateway) -> None:
    from pyiceberg.exceptions import ForbiddenError
    from pyiceberg.types import StringType

    catalog = _load(oauth_gateway)
    name = _new_table(catalog)
    oauth_gateway.forbids_writes = True

    with pytest.raises(ForbiddenError, match="icestream is not authorized for commit-table"):
        catalog.load_table(name).update_schema().add_column("b", StringType()).commit()

    assert catalog.table_exists(name)


def test_client_receives_the_prefix_of_its_warehouse(
    oauth_gateway: OAuthGateway, rest_catalog: RestCatalog
) -> None:
    from pyiceberg.catalog import load_catalog

    oauth_gateway.warehouse, oauth_gateway.prefix = "lake", "p1"

    name = _new_table(_load(oauth_gateway, warehouse="lake"))

    assert load_catalog("behind", type="rest", uri=rest_catalog.uri).table_exists(name)
    held = {"Authorization": f"Bearer {oauth_gateway.new_token()}"}
    assert _send(f"{oauth_gateway.uri}/v1/p1/namespaces", held)[0] == 200
    assert _send(f"{oauth_gateway.uri}/v1/namespaces", held)[0] == 404


@pytest.mark.parametrize(
    ("query", "status", "kind", "message"),
    [
        ("", 400, "BadRequestException", "Please specify a warehouse"),
        ("?warehouse=pond", 404, "NotFoundException", "Unable to find warehouse pond"),
    ],
)
def test_unknown_warehouse_is_refused(
    oauth_gateway: OAuthGateway, query: str, status: int, kind: str, message: str
) -> None:
    oauth_gateway.warehouse = "lake"
    held = {"Authorization": f"Bearer {oauth_gateway.new_token()}"}

    found, body = _send(f"{oauth_gateway.uri}/v1/config{query}", held)

    assert (found, body["error"]["type"], body["error"]["message"]) == (status, kind, message)


def test_storage_credentials_are_vended_on_request(oauth_gateway: OAuthGateway) -> None:
    namespace, table = _new_table(_load(oauth_gateway))
    oauth_gateway.vend = lambda: StorageKeys("who", "secret", "session", secs=60)
    url = f"{oauth_gateway.uri}/v1/namespaces/{namespace}/tables/{table}"
    held = {"Authorization": f"Bearer {oauth_gateway.new_token()}"}
    before = time.time()

    _, without = _send(url, held)
    _, lent = _send(url, held | {"X-Iceberg-Access-Delegation": "vended-credentials"})
    _, renewed = _send(f"{url}/credentials", held)

    assert "s3.access-key-id" not in without.get("config", {})
    ends = int(lent["config"].pop("s3.session-token-expires-at-ms"))
    assert abs(ends / 1000 - before - 60) < 300
    assert lent["config"] == {
        "s3.access-key-id": "who",
        "s3.secret-access-key": "secret",
        "s3.session-token": "session",
        "client.refresh-credentials-endpoint": f"v1/namespaces/{namespace}/tables/t/credentials",
    }
    for answer in (lent, renewed):
        (keys,) = answer["storage-credentials"]
        assert keys["prefix"] == lent["metadata"]["location"]
        assert keys["config"]["s3.access-key-id"] == "who"


def test_table_creation_vends_credentials_too(oauth_gateway: OAuthGateway) -> None:
    oauth_gateway.vend = lambda: StorageKeys("who", "secret")
    catalog = _load(oauth_gateway)

    name = _new_table(catalog)

    assert catalog.load_table(name).io.properties["s3.access-key-id"] == "who"


def test_catalog_outage_is_distinguished_from_a_refusal(rest_catalog_own: RestCatalog) -> None:
    with OAuthGateway(rest_catalog_own.uri) as gateway:
        held = {"Authorization": f"Bearer {gateway.new_token()}"}
        rest_catalog_own.kill()
        assert _send(f"{gateway.uri}/v1/namespaces", held)[0] == 503

        rest_catalog_own.start()

        assert _send(f"{gateway.uri}/v1/namespaces", held)[0] == 200


def test_gateway_restarts_on_its_port_with_its_tokens(rest_catalog: RestCatalog) -> None:
    from urllib.error import URLError

    gateway = OAuthGateway(rest_catalog.uri)
    held = {"Authorization": f"Bearer {gateway.new_token()}"}
    with gateway:
        assert _send(f"{gateway.uri}/v1/config", held)[0] == 200
    with pytest.raises(URLError, match="refused"):
        _send(f"{gateway.uri}/v1/config", held)
    with gateway:
        assert _send(f"{gateway.uri}/v1/config", held)[0] == 200
