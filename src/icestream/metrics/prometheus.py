"""The text format that Prometheus reads, for the counters of one sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HELP = {
    "records_written": "Total records written",
    "records_failed": "Total records failed",
    "bytes_written": "Total bytes written",
    "commits_success": "Total successful commits",
    "commits_failed": "Total failed commits",
    "commit_retries": "Total commit retries",
    "files_created": "Total files created",
    "batches_flushed": "Total batches flushed",
    "commit_latency_us": "Total commit latency in microseconds",
    "write_latency_us": "Total write latency in microseconds",
    "batch_size_min": "Records in the smallest batch",
    "batch_size_max": "Records in the largest batch",
    "batch_size_sum": "Total records in all batches",
    "commit_latency_avg_ms": "Average commit latency in milliseconds",
    "write_latency_avg_ms": "Average write latency in milliseconds",
    "batch_size_avg": "Average records in a batch",
    "success_rate": "Share of commits that succeeded",
    "retry_rate": "Retries for each commit",
}


def as_text(
    prefix: str,
    counters: Mapping[str, int],
    thousandths: Mapping[str, float],
    rates: Mapping[str, float],
) -> str:
    """Return counters and gauges as lines of `name value`, each with its HELP and TYPE.

    Args:
        prefix: what every name begins with, before `_iceberg_`.
        counters: counters by name; `_total` is added to each.
        thousandths: gauges shown with 3 decimals.
        rates: gauges shown with 4 decimals.
    """
    lines: list[str] = []
    for name, count in counters.items():
        lines += _series(f"{prefix}_iceberg_{name}_total", "counter", _HELP[name], str(count))
    for name, value in thousandths.items():
        lines += _series(f"{prefix}_iceberg_{name}", "gauge", _HELP[name], f"{value:.3f}")
    for name, value in rates.items():
        lines += _series(f"{prefix}_iceberg_{name}", "gauge", _HELP[name], f"{value:.4f}")
    return "\n".join(lines) + "\n"


def _series(name: str, kind: str, meaning: str, value: str) -> tuple[str, str, str]:
    return (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value}")
