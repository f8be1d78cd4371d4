from __future__ import annotations

import pytest

from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.catalogs.rest_faults import RestEndpoints, explain
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
    UnreachableError,
)

URI = "https://catalog.example/api/catalog"
SIGNED_IN = RestEndpoints(URI, token_uri="https://auth.example/token", has_token_server=True)  # noqa: S106
BEARER = RestEndpoints(URI, bearer_key="rest.credential", prefix="p")


@pytest.mark.parametrize(
    ("message", "parties", "kind", "what"),
    [
        (
            f"NoSuchNamespaceError: NotFoundException: no such path\nHTTPError: 404 Client Error: "
            f"Not Found for url: {URI}/v1/p/namespaces",
            BEARER,
            ConnectorError,
            f"the catalog finds no such namespace below '{URI}/v1/p': no such path",
        ),
        (
            f"RESTError: NotFoundException: no such path\nHTTPError: 404 Client Error: Not Found "
            f"for url: {URI}/v1/config",
            RestEndpoints(URI),
            ConnectorError,
            f"the server at '{URI}' has no such path: no such path",
        ),
        (
            f"BadRequestError: IllegalArgumentException: give a warehouse\nHTTPError: 400 Client "
            f"Error: Bad Request for url: {URI}/v1/config",
            RestEndpoints(URI),
            ConnectorError,
            "the catalog requires a warehouse name, and none is set: give a warehouse",
        ),
        (
            f"RESTError: NotFoundException: no such warehouse\nHTTPError: 404 Client Error: Not "
            f"Found for url: {URI}/v1/config?warehouse=w",
            RestEndpoints(URI, warehouse="w"),
            ConnectorError,
            "the catalog has no warehouse 'w': no such warehouse",
        ),
        (
            "UnauthorizedError: NotAuthorizedException: expired\nHTTPError: 401 Client Error: "
            f"Unauthorized for url: {URI}/v1/config",
            SIGNED_IN,
            RefusedError,
            "the catalog rejects the token that was issued for the client credential: expired",
        ),
        (
            "TooManyRequestsError: SlowDownException: later\nHTTPError: 429 Client Error: Too Many "
            f"Requests for url: {URI}/v1/config",
            BEARER,
            TransientError,
            "the catalog has an internal error or is overloaded: later",
        ),
        (
            "org.apache.iceberg.exceptions.ServiceFailureException: Server error: Internal: oops",
            BEARER,
            TransientError,
            "the catalog has an internal error or is overloaded: Internal: oops",
        ),
        (
            "ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed'))",
            BEARER,
            UnreachableError,
            "no answer from catalog.example:443",
        ),
        (
            "ConnectTimeout: HTTPSConnectionPool(host='auth.example', port=443): Max retries "
            "exceeded with url: /token (Caused by ConnectTimeoutError)",
            SIGNED_IN,
            UnreachableError,
            "no answer from auth.example:443",
        ),
        (
            "ReadTimeout: HTTPSConnectionPool(host='catalog.example', port=443): Read timed out.",
            SIGNED_IN,
            UnreachableError,
            "no answer from catalog.example:443",
        ),
        (
            "org.apache.iceberg.exceptions.RESTException: Error occurred while processing GET "
            "request\njava.net.SocketTimeoutException: 60000 MILLISECONDS",
            SIGNED_IN,
            UnreachableError,
            "no answer from catalog.example:443",
        ),
    ],
)
def test_fault_is_explained(
    message: str, parties: RestEndpoints, kind: type[IcestreamError], what: str
) -> None:
    error = explain(message, "here", parties)

    assert error is not None
    assert (type(error), error.what) == (kind, what)


@pytest.mark.parametrize(
    ("message", "parties"),
    [
        (
            f"NoSuchTableError: NoSuchTableException: no table\nHTTPError: 404 Client Error: Not "
            f"Found for url: {URI}/v1/namespaces/db/tables/t",
            RestEndpoints(URI),
        ),
        (
            "BadRequestError: BadRequestException: /warehouse/t is no place for a table",
            RestEndpoints(URI, warehouse="w"),
        ),
        (
            f"RESTError: odd\nHTTPError: 418 Client Error: Odd for url: "
            f"{URI}/v1/config?warehouse=w",
            RestEndpoints(URI, warehouse="w"),
        ),
    ],
    ids=["dropped table", "warehouse in a path", "another status"],
)
def test_fault_of_another_system_is_not_blamed_on_the_address(
    message: str, parties: RestEndpoints
) -> None:
    assert explain(message, "here", parties) is None


def test_token_set_as_credential_is_reported_by_its_key() -> None:
    message = "org.apache.iceberg.exceptions.NotAuthorizedException: Not authorized: expired"

    assert str(explain(message, "here", BEARER)) == (
        "here: the bearer token is refused: expired\n"
        "  Has it expired? Renew `rest.credential`, or use a client credential, which is renewed "
        "automatically: `rest.credential: CLIENT_ID:CLIENT_SECRET`."
    )


def test_timeout_of_the_token_server_is_blamed_on_its_key() -> None:
    message = (
        "ConnectTimeout: HTTPSConnectionPool(host='auth.example', port=443): Max retries exceeded"
    )

    error = explain(message, "here", SIGNED_IN)

    assert error is not None
    assert "`rest.properties.oauth2-server-uri`" in error.todo


def test_fault_of_a_store_with_the_same_library_is_left_to_the_store() -> None:
    message = "ConnectionError: HTTPSConnectionPool(host='store.example', port=443): refused"

    assert explain(message, "here", SIGNED_IN) is None


def test_long_response_is_truncated() -> None:
    error = explain(f"ForbiddenError: Denied: {'x' * 5000}", "here", BEARER)

    assert error is not None
    assert len(error.what) < 300


def test_secret_that_the_server_repeats_is_not_shown() -> None:
    block = {"rest": {"uri": URI, "credential": "me:hunter2-secret"}}
    catalog = RestCatalog("lake", RestCatalogOptions.model_validate(block))
    message = "OAuthError: invalid_client: no client me:hunter2-secret (secret hunter2-secret)"

    assert str(catalog.explain(message, "here")) == (
        "here: the client credential is refused: invalid_client: no client *** (secret ***)\n"
        "  Check `rest.credential`, written `CLIENT_ID:CLIENT_SECRET`, and that `rest.uri` is "
        "the server that has this client."
    )
