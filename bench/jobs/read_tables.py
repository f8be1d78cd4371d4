"""Reads tables back by Spark: how long that takes, and what they hold.

Run as a module: bench.jobs.read_tables SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.jobs.plain_spark import open_session


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    spark = open_session(job)
    found: dict[str, dict[str, Any]] = {table: {"seconds": []} for table in job["tables"]}
    for table, totals in found.items():
        name = f"{job['prefix']}{table}"
        # Also what makes the later reads find everything warm.
        row = spark.sql(f"SELECT count(*), sum(value) FROM {name}").collect()[0]  # noqa: S608
        totals["count"], totals["total"] = row
        for _ in range(job["reads"]):
            began = time.monotonic()
            spark.sql(f"SELECT sum(value) FROM {name}").collect()  # noqa: S608
            totals["seconds"].append(time.monotonic() - began)
    Path(sys.argv[2]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
