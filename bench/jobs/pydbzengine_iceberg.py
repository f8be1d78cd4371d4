"""PostgreSQL into an Iceberg table by pydbzengine and its own handler, until all rows are there.

Run as a module, by a Python that has pydbzengine:
bench.jobs.pydbzengine_iceberg SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydbzengine import DebeziumJsonEngine  # type: ignore[import-not-found]
from pydbzengine.engine.jvm import ensure_jvm_started  # type: ignore[import-not-found]

ENDING_SECS = 60


def counting_handler(job: dict[str, Any], has_all: threading.Event) -> Any:
    """Return pydbzengine's handler, which also reports when it has appended enough."""
    from pydbzengine.handlers.iceberg import (  # type: ignore[import-not-found]
        IcebergChangeHandlerV2,
    )
    from pyiceberg.catalog.sql import SqlCatalog

    class CountingHandler(IcebergChangeHandlerV2):  # type: ignore[misc]
        events = 0

        def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802 - pydbzengine's name
            super().handleJsonBatch(records)
            self.events += len(records)
            if self.events >= job["events"]:
                has_all.set()

    catalog = SqlCatalog(job["catalog"], uri=job["uri"], warehouse=job["warehouse"])
    catalog.create_namespace_if_not_exists(job["namespace"])
    return CountingHandler(catalog, (job["namespace"],), event_flattening_enabled=True)


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    # The clock starts as icestream's does: with a JVM, and nothing else, at hand.
    ensure_jvm_started()
    started = time.time()
    has_all = threading.Event()
    handler = counting_handler(job, has_all)
    engine = DebeziumJsonEngine(job["properties"], handler)
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    while not has_all.wait(0.05):
        if not thread.is_alive():
            sys.exit(f"the engine ended with {handler.events} of {job['events']} events")
    engine.close()
    thread.join(ENDING_SECS)
    Path(sys.argv[2]).write_text(json.dumps({"started": started, "events": handler.events}))


if __name__ == "__main__":
    main()
