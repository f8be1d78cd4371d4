"""Maven coordinates of jars that icestream may load; `spark/jars.lock.json` pins their bytes."""

from __future__ import annotations

SQLITE = "org.xerial:sqlite-jdbc:3.53.4.0"
POSTGRESQL = "org.postgresql:postgresql:42.7.14"
# Speaks to MySQL as well.
MARIADB = "org.mariadb.jdbc:mariadb-java-client:3.5.6"
ICEBERG_VERSION = "1.11.0"
SCALA = "2.13"
AWS_BUNDLE = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"
GCP_BUNDLE = f"org.apache.iceberg:iceberg-gcp-bundle:{ICEBERG_VERSION}"
# Works with newer runtimes.
AZURE_BUNDLE = "org.apache.iceberg:iceberg-azure-bundle:1.10.0"


def iceberg_runtime_for(spark_minor: str) -> str:
    """Return the Iceberg runtime for a Spark minor version such as `4.0`."""
    return f"org.apache.iceberg:iceberg-spark-runtime-{spark_minor}_{SCALA}:{ICEBERG_VERSION}"
