"""Lists the fixtures, which are plugins of their own."""

from __future__ import annotations

pytest_plugins = [
    "tests.fixtures.command_line",
    "tests.fixtures.fault_proxy",
    "tests.fixtures.kafka",
    "tests.fixtures.postgres",
    "tests.fixtures.schema_registry",
    "tests.fixtures.service_run",
    "tests.fixtures.spark",
    "tests.fixtures.spark_cluster",
]
