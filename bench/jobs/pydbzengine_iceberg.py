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
from pydbzengine.handlers.iceberg import (  # type: ignore[import-not-found]
    IcebergChangeHandlerV2,
)
from pyiceberg.catalog.sql import SqlCatalog

ENDING_SECS = 60


class CountingHandler(IcebergChangeHandlerV2):  # type: ignore[misc]
    """Tells when so many events were appended."""

    events = 0

    def __init__(self, catalog: SqlCatalog, namespace: str, expected: int) -> None:
        super().__init__(catalog, (namespace,), event_flattening_enabled=True)
        self.expected = expected
        self.has_all = threading.Event()

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802 - pydbzengine's name
        super().handleJsonBatch(records)
        self.events += len(records)
        if self.events >= self.expected:
            self.has_all.set()


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    catalog = SqlCatalog(job["catalog"], uri=job["uri"], warehouse=job["warehouse"])
    catalog.create_namespace_if_not_exists(job["namespace"])
    handler = CountingHandler(catalog, job["namespace"], job["events"])
    engine = DebeziumJsonEngine(job["properties"], handler)
    # Starts the JVM, as icestream has Spark when its clock starts.
    engine._ensure_jvm_started()
    started = time.time()
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    while not handler.has_all.wait(0.05):
        if not thread.is_alive():
            sys.exit(f"the engine ended with {handler.events} of {handler.expected} events")
    engine.close()
    thread.join(ENDING_SECS)
    Path(sys.argv[2]).write_text(json.dumps({"started": started, "events": handler.events}))


if __name__ == "__main__":
    main()
