"""`icestream metrics`: the metrics of a running `icestream run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icestream.cli.output import Printer, with_config_option
from icestream.errors import PlanError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_SECS = 5
OK = 200


@click.command("metrics", short_help="Show the metrics of a running `icestream run`.")
@with_config_option
def command(printer: Printer, path: Path) -> int:
    """Show the metrics of a running `icestream run`, in Prometheus text format or as JSON."""
    from icestream.config import read
    from icestream.plan.planner import build

    plan = build(read(path))
    if plan.metrics_port == 0:
        raise PlanError(
            "the metrics endpoint is disabled",
            where=f"{path} metrics.port",
            todo="Set `metrics: {port: 9108}`.",
        )
    token = plan.metrics_token.get_secret_value() if plan.metrics_token else None
    page = _fetch(plan.metrics_host, plan.metrics_port, token)
    printer.print_result({"metrics": _samples(page)} if printer.is_json else {}, page.rstrip())
    return 0


def _fetch(host: str, port: int, token: str | None) -> str:
    from http.client import HTTPConnection, HTTPException

    address = f"http://{host}:{port}/metrics"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = HTTPConnection(host, port, timeout=TIMEOUT_SECS)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        page = answer.read().decode("utf-8")
    except (OSError, HTTPException) as exc:
        raise UnreachableError(
            f"no metrics at {address} ({exc})",
            todo="Check that `icestream run` is running with this file, and could bind its port.",
        ) from exc
    finally:
        connection.close()
    if answer.status != OK:
        raise RefusedError(
            f"{address} answered {answer.status} {answer.reason}",
            todo="Check that `icestream run` listens there, with the same `metrics.token`.",
        )
    return page


def _samples(page: str) -> list[dict[str, Any]]:
    from prometheus_client.parser import text_string_to_metric_families

    return [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
