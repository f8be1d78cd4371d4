"""Makes tables out of data files that are there already.

Run as a module: bench.jobs.make_tables SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import keyed_rows
from bench.table_files import NAMESPACE
from icestream.catalogs.jdbc import embedded
from icestream.contracts.sink import WrittenFile
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.sink import IcebergTableSink
from icestream.spark import jars
from icestream.spark.session import open_session


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    catalog = embedded(Path(job["warehouse"]))
    prefix = f"spark.sql.catalog.{catalog.name}"
    conf = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    conf |= {f"{prefix}.{key}": value for key, value in catalog.spark_settings().items()}
    found = jars.resolve([jars.iceberg_runtime(), *catalog.jars()])
    spark = open_session("local[2]", conf, found, light=True)
    for table, files in job["tables"].items():
        # What a table gets by default: format v3, merge-on-read, snapshot isolation.
        sink = IcebergTableSink(
            IcebergOptions(namespace=(NAMESPACE,), table=table), catalog, "lake"
        )
        sink.open(spark, "bench")
        sink.prepare(keyed_rows.schema(job["kind"]))
        sink.commit_unmarked([WrittenFile(**file) for file in files])
    spark.stop()


if __name__ == "__main__":
    main()
