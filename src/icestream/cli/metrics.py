"""`icestream metrics`: the metrics of a running `icestream run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icestream.cli.screen import Screen, with_config
from icestream.errors import PlanError, UnreachableError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_SECS = 5


@click.command("metrics", short_help="Show the metrics of a running `icestream run`.")
@with_config
def command(screen: Screen, path: Path) -> int:
    """Show the metrics of a running `icestream run`, in Prometheus' text form or as JSON."""
    from icestream.config import load
    from icestream.plan.planner import build

    plan = build(load(path))
    if plan.metrics_port == 0:
        raise PlanError(
            "the metrics endpoint is turned off",
            where=f"{path} metrics.port",
            todo="Set `metrics: {port: 9108}`.",
        )
    page = _fetch(plan.metrics_host, plan.metrics_port)
    screen.show({"metrics": _samples(page)} if screen.is_json else {}, page.rstrip())
    return 0


def _fetch(host: str, port: int) -> str:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=PATIENCE_SECS)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode("utf-8")
    except (OSError, HTTPException) as exc:
        raise UnreachableError(
            f"no metrics at http://{host}:{port}/metrics ({exc})",
            todo="Is `icestream run` running, and with this file? Had it another port to take?",
        ) from exc
    finally:
        connection.close()


def _samples(page: str) -> list[dict[str, Any]]:
    from prometheus_client.parser import text_string_to_metric_families

    return [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
