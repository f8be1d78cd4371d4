"""Lists the fixtures, which are plugins of their own."""

from __future__ import annotations

pytest_plugins = [
    "tests.fixtures.azure_store",
    "tests.fixtures.changing_database",
    "tests.fixtures.class_archive",
    "tests.fixtures.command_line",
    "tests.fixtures.conformance_results",
    "tests.fixtures.debezium",
    "tests.fixtures.fault_proxy",
    "tests.fixtures.gcs_store",
    "tests.fixtures.glue",
    "tests.fixtures.hdfs",
    "tests.fixtures.hive_metastore",
    "tests.fixtures.kafka",
    "tests.fixtures.mariadb",
    "tests.fixtures.nessie",
    "tests.fixtures.oauth_gateway",
    "tests.fixtures.postgres",
    "tests.fixtures.random_draws",
    "tests.fixtures.rest_catalog",
    "tests.fixtures.s3_store",
    "tests.fixtures.schema_registry",
    "tests.fixtures.service_run",
    "tests.fixtures.spark",
    "tests.fixtures.spark_cluster",
]
