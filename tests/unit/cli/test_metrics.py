"""`icestream metrics`, against a real endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.cli.shop import FILE, write_file

from icestream.metrics.endpoint import MetricsEndpoint, serve
from icestream.metrics.events import LagMeasured
from icestream.metrics.registry import PipelineMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.command_line import Icestream


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    metrics = PipelineMetrics()
    metrics.observe(LagMeasured("shop", 12, 0.5))
    endpoint = serve(metrics.registry, "127.0.0.1", 0, token="sesame")  # noqa: S106
    yield endpoint
    endpoint.close()


def write_port(folder: Path, text: str) -> None:
    write_file(folder, FILE.replace("{port: 0}", text))


def test_metrics_of_a_run_are_shown(
    icestream: Icestream, tmp_path: Path, endpoint: MetricsEndpoint
) -> None:
    write_port(tmp_path, f"{{port: {endpoint.port}, token: sesame}}")
    assert 'icestream_source_lag_rows{pipeline="shop"} 12.0' in icestream("metrics").out
    samples = icestream("metrics", "--output", "json").document["metrics"]
    lag = {"name": "icestream_source_lag_rows", "labels": {"pipeline": "shop"}, "value": 12.0}
    assert lag in samples


def test_wrong_token_is_reported_and_not_shown(
    icestream: Icestream, tmp_path: Path, endpoint: MetricsEndpoint
) -> None:
    write_port(tmp_path, f"{{port: {endpoint.port}, token: open}}")
    ended = icestream("metrics")
    assert (ended.code, ended.err) == (
        5,
        f"error: http://127.0.0.1:{endpoint.port}/metrics answered 401 Unauthorized\n"
        "  Check that `icestream run` listens there, with the same `metrics.token`.\n",
    )


def test_disabled_endpoint_is_reported(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("metrics")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml metrics.port: the metrics endpoint is disabled\n"
        "  Set `metrics: {port: 9108}`.\n",
    )


def test_endpoint_that_does_not_answer_is_unreachable(
    icestream: Icestream, tmp_path: Path, endpoint: MetricsEndpoint
) -> None:
    endpoint.close()
    write_port(tmp_path, f"{{port: {endpoint.port}}}")
    ended = icestream("metrics")
    assert (ended.code, ended.err) == (
        3,
        f"error: no metrics at http://127.0.0.1:{endpoint.port}/metrics "
        "([Errno 111] Connection refused)\n"
        "  Check that `icestream run` is running with this file, and could bind its port.\n",
    )
