"""A Spark session as a user would configure it for an Iceberg catalog in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


def open_session(job: Mapping[str, Any]) -> SparkSession:
    """Start Spark on two cores; `memory` is the driver's, 4g if the job does not say."""
    from pyspark.sql import SparkSession

    catalog = f"spark.sql.catalog.{job['catalog']}"
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("by-hand")
        .config("spark.driver.memory", job.get("memory", "4g"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", ",".join(job["jars"]))
        .config("spark.sql.session.timeZone", "UTC")
        # 200, the default, is for a cluster.
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.sql.extensions", extensions)
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{job['database']}")
        .config(f"{catalog}.jdbc.schema-version", "V1")
        .config(f"{catalog}.warehouse", f"file://{job['warehouse']}")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    return spark
