"""Faults of REST catalogs: the same messages for PyIceberg's client and for Java's."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.ports import closed_port
from tests.fixtures.spark import configure_spark

from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from tests.fixtures.fault_proxy import FaultProxy
    from tests.fixtures.oauth_gateway import OAuthGateway
    from tests.fixtures.rest_catalog import RestCatalog as RestServer

CLOSED_PORT = closed_port()


def at(uri: str, *, properties: dict[str, Any] | None = None, **rest: Any) -> RestCatalog:
    block = {"rest": {"uri": uri, "properties": properties or {}, **rest}}
    name = f"lake_{uuid.uuid4().hex[:8]}"
    return RestCatalog(name, RestCatalogOptions.model_validate(block))


def signed_in(gateway: OAuthGateway, **rest: Any) -> RestCatalog:
    return at(gateway.uri, **{"credential": gateway.credential, "warehouse": "prod", **rest})


def java_fault(spark: SparkSession, catalog: RestCatalog) -> IcestreamError:
    """Return what is said of the fault of Java's client when it looks for a table."""
    from icestream.sinks.iceberg.java import JavaCatalog, java_errors

    configure_spark(spark, catalog)
    with pytest.raises(java_errors()) as caught:
        JavaCatalog(spark, catalog.name).load(("db",), "events")
    error = catalog.explain(exception_text(caught.value), "table t")
    assert error is not None, exception_text(caught.value)
    return error


def python_fault(catalog: RestCatalog) -> IcestreamError:
    """Return the fault of `icestream check`, whose steps are asked until one fails."""
    for step in catalog.check():
        try:
            step.run()
        except IcestreamError as exc:  # noqa: PERF203 - a handful of steps
            return exc
    raise AssertionError("every step passes")


FAULTS: dict[str, tuple[Callable[[OAuthGateway], RestCatalog], type[IcestreamError], str, str]] = {
    "no credentials": (
        lambda gateway: at(gateway.uri),
        RefusedError,
        "the catalog requires credentials, and none are set: the bearer token is missing "
        "or has expired",
        "Add `rest.credential: CLIENT_ID:CLIENT_SECRET`, or a bearer token as `rest.token`.",
    ),
    "expired token": (
        lambda gateway: at(gateway.uri, token=gateway.new_token(is_live=False)),
        RefusedError,
        "the bearer token is refused: the bearer token is missing or has expired",
        "Has it expired? Renew `rest.token`, or use a client credential, which is renewed "
        "automatically: `rest.credential: CLIENT_ID:CLIENT_SECRET`.",
    ),
    "wrong secret": (
        lambda gateway: signed_in(gateway, credential="icestream:wrong-secret"),
        RefusedError,
        "the client credential is refused: invalid_client: unknown client or wrong secret",
        "Check `rest.credential`, written `CLIENT_ID:CLIENT_SECRET`, and that `rest.uri` is "
        "the server that has this client.",
    ),
    "wrong scope": (
        lambda gateway: signed_in(gateway, scope="pond"),
        RefusedError,
        "the scope is refused: invalid_scope: scope 'pond'",
        "Check `rest.scope`; Polaris needs e.g. `PRINCIPAL_ROLE:ALL`.",
    ),
    "wrong address for tokens": (
        lambda gateway: signed_in(
            gateway, properties={"oauth2-server-uri": f"{gateway.uri}/v1/nowhere"}
        ),
        RefusedError,
        "no token is issued at '{uri}/v1/nowhere'",
        "Is that the address for tokens? If another server issues them, set its address as "
        "`oauth2-server-uri` in `rest.properties`.",
    ),
    "no server for tokens": (
        lambda gateway: signed_in(
            gateway, properties={"oauth2-server-uri": f"http://127.0.0.1:{CLOSED_PORT}/tokens"}
        ),
        UnreachableError,
        "connection to 127.0.0.1:{closed} refused",
        "Is the server running? Check `rest.properties.oauth2-server-uri`.",
    ),
    "unknown warehouse": (
        lambda gateway: signed_in(gateway, warehouse="pond"),
        ConnectorError,
        "the catalog has no warehouse 'pond': Unable to find warehouse pond",
        "Check the spelling of `rest.warehouse`, and that the warehouse exists on the server "
        "that `rest.uri` names.",
    ),
    "no warehouse": (
        lambda gateway: signed_in(gateway, warehouse=None),
        ConnectorError,
        "the catalog requires a warehouse name, and none is set: Please specify a warehouse",
        "Add `rest.warehouse`; for Polaris, it is the name of the catalog.",
    ),
    "unknown host": (
        lambda _: at("http://no-such-host.invalid/catalog"),
        UnreachableError,
        "cannot resolve the host name of no-such-host.invalid:80",
        "Check the spelling of `rest.uri`, and that this machine's DNS resolves the name.",
    ),
    "nobody there": (
        lambda _: at(f"http://127.0.0.1:{CLOSED_PORT}"),
        UnreachableError,
        "connection to 127.0.0.1:{closed} refused",
        "Is the server running? Check `rest.uri`.",
    ),
    "no TLS": (
        lambda gateway: at(gateway.uri.replace("http:", "https:")),
        ConnectorError,
        "TLS connection to {address} failed",
        "Is it http or https in `rest.uri`? Python (REQUESTS_CA_BUNDLE) and Java "
        "(javax.net.ssl.trustStore) must trust the server's certificate.",
    ),
}


@pytest.fixture
def asking_gateway(oauth_gateway: OAuthGateway) -> OAuthGateway:
    """A gateway that wants a warehouse named, as hosted catalogs do."""
    oauth_gateway.warehouse = "prod"
    return oauth_gateway


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_has_the_same_message_in_both_clients(
    asking_gateway: OAuthGateway, spark: SparkSession, fault: str
) -> None:
    build, kind, what, todo = FAULTS[fault]
    catalog = build(asking_gateway)
    exception_text = {
        "uri": asking_gateway.uri,
        "address": f"127.0.0.1:{asking_gateway.port}",
        "closed": CLOSED_PORT,
    }

    for error in (python_fault(catalog), java_fault(spark, catalog)):
        assert type(error) is kind
        assert (error.what, error.todo) == (what.format_map(exception_text), todo)
        assert error.__cause__ is None


def test_unknown_path_is_blamed_on_prefix_and_address(
    asking_gateway: OAuthGateway, spark: SparkSession
) -> None:
    catalog = signed_in(asking_gateway, prefix="p2")

    python, java = python_fault(catalog), java_fault(spark, catalog)

    assert python.what == (
        f"the server at '{catalog.uri}' has no such path: No route for request: "
        "GET v1/p2/namespaces"
    )
    assert java.what == (
        f"the server at '{catalog.uri}' has no such path: No route for request: "
        "GET v1/p2/namespaces/db/tables/events"
    )
    for error in (python, java):
        assert error.todo == (
            "Is `rest.uri` the catalog's address, without `/v1` at its end? Is `rest.prefix` "
            "right? Most servers supply it themselves."
        )


def test_catalog_down_behind_its_gateway_is_transient(
    rest_catalog_own: RestServer, spark: SparkSession
) -> None:
    from tests.fixtures.oauth_gateway import OAuthGateway

    rest_catalog_own.kill()
    with OAuthGateway(rest_catalog_own.uri) as gateway:
        quick = {"rest.client.max-retries": 1}
        catalog = at(gateway.uri, credential=gateway.credential, properties=quick)

        for error in (python_fault(catalog), java_fault(spark, catalog)):
            assert type(error) is TransientError
            assert error.what.startswith(
                "the catalog has an internal error or is overloaded: no catalog: "
            )
            assert error.todo == "Check the server's log."


def test_token_server_that_is_down_is_transient(
    asking_gateway: OAuthGateway, spark: SparkSession
) -> None:
    asking_gateway.token_refusal = 503
    catalog = signed_in(asking_gateway, properties={"rest.client.max-retries": 1})

    for error in (python_fault(catalog), java_fault(spark, catalog)):
        assert type(error) is TransientError
        assert error.what.startswith("the token server has an internal error")


def test_request_to_a_hanging_server_times_out(
    rest_catalog: RestServer, fault_proxy: Callable[[int], FaultProxy], spark: SparkSession
) -> None:
    proxy = fault_proxy(rest_catalog.port)
    proxy.hang()
    quick = {"rest.client.socket-timeout-ms": 300, "rest.client.max-retries": 1}
    catalog = at(f"http://127.0.0.1:{proxy.port}", properties=quick)

    for error in (python_fault(catalog), java_fault(spark, catalog)):
        assert type(error) is UnreachableError
        assert error.what == f"no answer from 127.0.0.1:{proxy.port}"
        assert error.todo == (
            "Is the server running? Check `rest.uri`. Is a firewall, a VPN or a proxy in between?"
        )


def test_missing_permission_names_where_to_look(
    asking_gateway: OAuthGateway, spark: SparkSession
) -> None:
    from icestream.sinks.iceberg.java import JavaCatalog, java_errors

    asking_gateway.forbids_writes = True
    catalog = signed_in(asking_gateway)
    configure_spark(spark, catalog)

    with pytest.raises(java_errors()) as caught:
        JavaCatalog(spark, catalog.name).create_namespace(("forbidden",))

    error = catalog.explain(exception_text(caught.value), "table lake.db.events")
    assert type(error) is RefusedError
    assert str(error) == (
        "table lake.db.events: the catalog denies access: icestream is not authorized for "
        "create-namespace\n"
        "  Are the credentials those of the right user or client? May its role read and write the "
        "table? For Polaris, does it have the privilege TABLE_WRITE_DATA?"
    )


@contextmanager
def pages(status: int) -> Iterator[str]:
    """Serve one page of HTML at every path, as a wrong address or a proxy does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b"<html>welcome</html>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/shop"
        server.shutdown()


@pytest.mark.parametrize("status", [200, 404])
def test_html_page_is_not_mistaken_for_a_catalog(status: int, spark: SparkSession) -> None:
    with pages(status) as uri:
        catalog = at(uri)
        for error in (python_fault(catalog), java_fault(spark, catalog)):
            assert type(error) is ConnectorError
            assert error.what == f"the server at '{uri}' is not a REST catalog"
            assert error.todo.startswith("Is `rest.uri` the catalog's address, without `/v1`")


def test_proxy_without_a_catalog_behind_it_is_transient(spark: SparkSession) -> None:
    with pages(502) as uri:
        catalog = at(uri, properties={"rest.client.max-retries": 1})
        for error in (python_fault(catalog), java_fault(spark, catalog)):
            assert type(error) is TransientError
            assert error.what == "the catalog has an internal error or is overloaded"


@pytest.mark.parametrize("status", [200, 404])
def test_html_page_is_not_mistaken_for_a_token(
    asking_gateway: OAuthGateway, spark: SparkSession, status: int
) -> None:
    with pages(status) as uri:
        catalog = signed_in(asking_gateway, properties={"oauth2-server-uri": uri})
        for error in (python_fault(catalog), java_fault(spark, catalog)):
            assert type(error) is RefusedError
            assert error.what == f"no token is issued at '{uri}'"
