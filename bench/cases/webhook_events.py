"""How many events a second the webhook endpoint takes, each durable before it is answered."""

from __future__ import annotations

import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from tests.fixtures.waiting import wait_until

from bench.cases.case import Case, Choices
from bench.contenders.icestream_run import icestream_versions
from bench.harness import running
from bench.jobs import webhook_endpoint
from bench.results import Result, Run
from bench.webhook_load import post

if TYPE_CHECKING:
    from pathlib import Path

# Events of a run by the number of connections: about as long each.
EVENTS = {1: 8_000, 16: 40_000, 128: 38_400}
WARMING = 500


class WebhookEvents(Case):
    """Events of 170 bytes with an id each, one per request, and the same server without syncs.

    The client waits for each answer before it sends the next event on that connection; it runs on
    the same machine, and so shares its cores. Spark does not run. `seconds` are those of the
    client; CPU and memory are those of the server.
    """

    name = "webhook_events"
    rounds: ClassVar[int] = 3

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        versions = icestream_versions()
        versions.update({name: metadata.version(name) for name in ("uvicorn", "httptools")})
        runs: dict[tuple[str, int], list[Run]] = {}
        for number in range(1, (choices.rounds or self.rounds) + 1):
            for durability in ("durable", "fleeting"):
                for connections, events in EVENTS.items():
                    place = folder / f"{durability}-{connections}-{number}"
                    ran = self._run_one(place, durability, connections, choices.rows or events)
                    runs.setdefault((durability, connections), []).append(ran)
        return [
            Result.of_runs(
                self.name,
                f"{'icestream' if durability == 'durable' else 'without syncs'}, "
                f"{connections} connection{'' if connections == 1 else 's'}",
                each,
                versions,
                rows=choices.rows or EVENTS[connections],
            )
            for (durability, connections), each in runs.items()
        ]

    def _run_one(self, place: Path, durability: str, connections: int, events: int) -> Run:
        place.mkdir()
        began = time.monotonic()
        command = [sys.executable, str(webhook_endpoint.__file__), str(place), durability]
        with running(command, place) as measured:
            port_file = place / "port"
            wait_until(port_file.exists, "the endpoint")
            port = int(port_file.read_text())
            post(port, 1, WARMING, "warming")
            seconds = post(port, connections, events, "event")
            return Run(seconds, time.monotonic() - began, measured.watch.finish())
