"""Use icestream from Python: run a pipeline, and write rows to a sink directly.

python examples/python_api.py [FOLDER]

Tables, catalog and state are kept in FOLDER, by default the current folder.
"""

# ruff: noqa: T201 - a program for people
from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from icestream import (
    DatagenOptions,
    DatagenSource,
    IcebergOptions,
    IcebergSink,
    Pipeline,
    Settings,
)


def main(folder: Path) -> None:
    """Fill two tables, one with a pipeline and one directly."""
    settings = Settings(state=folder / ".icestream", master="local[2]")

    purchases = IcebergSink(IcebergOptions(namespace=("shop",), table="purchases"), settings)
    done = (
        Pipeline.from_source(DatagenSource(DatagenOptions(rows=20_000)))
        .filter("event_type = 'purchase'")
        .select("event_id", "product", "quantity * price AS total")
        .to_sink(purchases)
        .run("purchases")
    )
    print(f"pipeline: {done.status()['rows']} rows, {done.metrics().commits_success} commit")

    # Rows that are written directly carry no mark: the program keeps track of them.
    prices = IcebergSink(IcebergOptions(namespace=("shop",), table="prices"), settings)
    prices.write(pa.table({"product": ["mug", "lamp"], "price": [9.5, 39.0]}))
    prices.write(pa.table({"product": ["chair"], "price": [129.0]}))
    snapshot_id = prices.flush()
    print(f"direct: {prices.metrics().records_written} rows, snapshot {snapshot_id}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
