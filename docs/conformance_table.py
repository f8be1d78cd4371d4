"""The table of what each catalog and store was seen to do, from the suite's own results.

`make conformance` runs the suite on every target and writes `conformance.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.contracts import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.catalog import Abilities

RESULTS = Path(__file__).with_name("conformance.json")
# What the real sink does, by the name of its test; every other test is a call of the catalog.
FEATURES = {
    "test_append": "append",
    "test_upsert": "upsert",
    "test_evolve": "schema changes",
    "test_time_travel": "time travel",
    "test_two_writers": "two writers",
    "test_name_that_needs_quoting": "odd names",
    "test_nested_namespace": "nested namespaces",
    "test_check": "`check`",
}
NOT_RUN = "not run"
# Their server lets one writer's commit undo another's, so the suite lets the writers take turns.
TAKE_TURNS = ("glue",)
ABILITIES = {
    "nested_namespaces": "nested namespaces",
    "catalog_branches": "branches of the whole catalog",
    "vends_credentials": "hands out credentials",
}
HEAD = """# What each catalog and store does

One suite for every catalog and every store, against a real server where one can be had: rows are
written by the real sink, and read back by both Spark and PyIceberg. What was seen when it last ran:

"""
BETWEEN = """
✓ seen to work, ✗ seen to fail, "not run" neither, - the catalog has no such thing, which is refused
by name. "Catalog calls" counts the calls of namespaces and tables (make, find, list, load, drop,
names that need quoting, faults) that went as they should, of those that were run.

The server behind `glue` is an emulator that takes a commit on a table that has moved on: two
writers take turns there. Amazon's own refuses it.

What a kind of catalog can do at all, whatever server is behind it:

"""
UNUSED = """
Every kind but `glue` can also keep views, and a `rest` catalog can commit to several tables at
once. icestream uses neither yet.
"""


def conformance_page(notice: str, results: Path = RESULTS) -> str:
    """Return the page, with the results that were last kept."""
    found: dict[str, dict[str, str]] = json.loads(results.read_text(encoding="utf-8"))
    rows = [[name, *_seen(features, name)] for name, features in found.items()]
    seen = _table(["", "catalog calls", *FEATURES.values()], rows)
    kinds = [
        [f"`{kind}`", *(_sign(able=getattr(_abilities(kind), name)) for name in ABILITIES)]
        for kind in sorted(registry.names("catalogs"))
    ]
    able = _table(["", *ABILITIES.values()], kinds)
    return f"{notice}\n\n{HEAD}{seen}{BETWEEN}{able}{UNUSED}"


def _seen(features: Mapping[str, str], target: str) -> list[str]:
    calls = [
        outcome
        for name, outcome in features.items()
        if name not in FEATURES and outcome != "skipped"
    ]
    good = sum(outcome == "passed" for outcome in calls)
    kind = target.partition(",")[0]
    signs = {name: _outcome(features.get(name)) for name in FEATURES}
    if not _abilities(kind).nested_namespaces and signs["test_nested_namespace"] == "✓":
        signs["test_nested_namespace"] = "-"
    if kind in TAKE_TURNS and signs["test_two_writers"] == "✓":
        signs["test_two_writers"] = "✓ in turns"
    return [f"{good} of {len(calls)}" if calls else NOT_RUN, *signs.values()]


def _outcome(outcome: str | None) -> str:
    return NOT_RUN if outcome in (None, "skipped") else _sign(able=outcome == "passed")


def _abilities(kind: str) -> Abilities:
    abilities: Abilities = registry.find("catalogs", kind).abilities
    return abilities


def _sign(*, able: bool) -> str:
    return "✓" if able else "✗"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
