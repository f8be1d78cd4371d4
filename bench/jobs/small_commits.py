"""Runs the pipelines of a file once and notes how long each commit took.

A script: small_commits.py CONFIG OUTPUT_JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from icestream.config import load
from icestream.engine.run import Run, RunChoices
from icestream.metrics.events import BatchWritten
from icestream.plan.planner import build


def main() -> None:
    config, output = map(Path, sys.argv[1:])
    seconds: list[float] = []

    def note(event: object) -> None:
        if isinstance(event, BatchWritten):
            seconds.append(event.commit_secs)

    run = Run(build(load(config)), RunChoices(once=True), note)
    run.start()
    run.wait()
    for runner in run.runners:
        if runner.error is not None:
            raise runner.error
    output.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
