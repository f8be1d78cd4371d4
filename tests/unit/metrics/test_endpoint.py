"""The metrics endpoint serves authorized clients only."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from icestream.errors import ConnectorError, PlanError
from icestream.metrics.endpoint import MetricsEndpoint, serve
from icestream.metrics.events import LagMeasured
from icestream.metrics.registry import PipelineMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
RIGHT, WRONG = "sesame", "open"


@pytest.fixture
def metrics() -> PipelineMetrics:
    metrics = PipelineMetrics()
    metrics.observe(LagMeasured("orders", rows=42, seconds=1.5))
    return metrics


@pytest.fixture
def endpoint(metrics: PipelineMetrics) -> Iterator[MetricsEndpoint]:
    with closing(serve(metrics.registry, LOOPBACK, 0)) as endpoint:
        yield endpoint


def request(
    endpoint: MetricsEndpoint, path: str, method: str = "GET", token: str | None = None
) -> tuple[int, str]:
    with closing(HTTPConnection(LOOPBACK, endpoint.port, timeout=10)) as connection:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_metrics_are_served(endpoint: MetricsEndpoint) -> None:
    status, page = request(endpoint, "/metrics")

    assert status == 200
    assert 'icestream_source_lag_rows{pipeline="orders"} 42.0' in page.splitlines()


def test_front_page_names_the_path_of_the_metrics(endpoint: MetricsEndpoint) -> None:
    assert request(endpoint, "/") == (200, "icestream: metrics for Prometheus are at /metrics\n")


@pytest.mark.parametrize("path", ["/other", "/metrics/", "/favicon.ico"])
def test_other_paths_are_not_found(endpoint: MetricsEndpoint, path: str) -> None:
    assert request(endpoint, path) == (404, "Not Found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(endpoint: MetricsEndpoint, method: str) -> None:
    assert request(endpoint, "/metrics", method) == (405, "Method Not Allowed\n")


def test_token_is_required(metrics: PipelineMetrics) -> None:
    with closing(serve(metrics.registry, LOOPBACK, 0, token=RIGHT)) as endpoint:
        assert request(endpoint, "/metrics") == (401, "Unauthorized\n")
        assert request(endpoint, "/", token=WRONG) == (401, "Unauthorized\n")
        assert request(endpoint, "/metrics", token=RIGHT + "\xe9")[0] == 401
        assert request(endpoint, "/metrics", token=RIGHT)[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])  # noqa: S104
def test_open_address_without_a_token_is_refused(metrics: PipelineMetrics, host: str) -> None:
    with pytest.raises(PlanError) as caught:
        serve(metrics.registry, host, 0)

    assert str(caught.value) == (
        f"metrics.host: the metrics endpoint would be open to the network on {host!r} "
        "without a token\n"
        "  Set `metrics: {token: ${NAME}}`, or listen on 127.0.0.1."
    )


def test_port_in_use_is_reported(metrics: PipelineMetrics, endpoint: MetricsEndpoint) -> None:
    with pytest.raises(ConnectorError) as caught:
        serve(metrics.registry, LOOPBACK, endpoint.port)

    assert str(caught.value) == (
        f"metrics.port: port {endpoint.port} on '127.0.0.1' is in use, "
        "so the metrics endpoint cannot listen there\n"
        "  Set `metrics: {port: N}` to a free port, or to 0 to turn the endpoint off."
    )


def test_address_of_another_machine_is_reported(metrics: PipelineMetrics) -> None:
    with pytest.raises(ConnectorError) as caught:
        serve(metrics.registry, "192.0.2.1", 0, token=RIGHT)

    assert str(caught.value) == (
        "metrics: the metrics endpoint cannot listen on '192.0.2.1', port 0: "
        "Cannot assign requested address\n"
        "  Set `metrics: {host: 127.0.0.1, port: N}`, or `port: 0` to turn the endpoint off."
    )


def test_closed_endpoint_frees_its_port(metrics: PipelineMetrics) -> None:
    first = serve(metrics.registry, LOOPBACK, 0)
    first.close()
    first.close()

    with closing(serve(metrics.registry, LOOPBACK, first.port)) as second:
        assert request(second, "/")[0] == 200
