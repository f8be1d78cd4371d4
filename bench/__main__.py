"""Runs benchmark cases: python -m bench [CASE ...]."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench import results
from bench.cases import CASES
from bench.cases.case import Choices

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def working_folder(keep: Path | None) -> Iterator[Path]:
    """Yield an empty folder, removed afterwards unless it is to be kept below `keep`."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(dir=keep.absolute()))
        return
    with tempfile.TemporaryDirectory(
        prefix="icestream-bench-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("case", nargs="*", help=f"one of {', '.join(CASES)}; all if none is given")
    parser.add_argument("--only", action="append", default=[], metavar="CONTENDER")
    parser.add_argument("--rounds", type=int, help="runs of each contender")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep logs and tables there")
    parser.add_argument(
        "--baseline", type=Path, metavar="ICESTREAM", help="another installation's command"
    )
    given = parser.parse_args()
    unknown = [each for each in given.case if each not in CASES]
    if unknown:
        parser.error(f"no case is called {unknown[0]!r}; there are {', '.join(CASES)}")

    # So that processes we started end with us, even if another process kills us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = os.environ.get("ICESTREAM_BENCH_ROWS")
    choices = Choices(
        rows=int(rows) if rows else None,
        rounds=given.rounds,
        only=tuple(given.only),
        keeps_tables=given.keep is not None,
        baseline=given.baseline and given.baseline.absolute(),
    )
    # As an installation does, and never of an older one.
    for command in (Path(sys.executable).with_name("icestream"), choices.baseline):
        if command is not None:
            subprocess.run([command, "prepare"], check=True)
    done: list[results.Result] = []
    for name in given.case or CASES:
        with working_folder(given.keep) as folder:
            ran = CASES[name]().run(choices, folder)
        done += ran
        if not choices.is_trial:
            results.keep(ran)
    results.show(done)
    if choices.is_trial:
        print("a trial: nothing was written to the results", file=sys.stderr)


if __name__ == "__main__":
    main()
