"""The conformance table of catalogs and stores, from the results of the test suite.

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
# Features of the real sink, by the name of their test; every other test is a catalog call.
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
    "catalog_branches": "catalog-wide branches",
    "vends_credentials": "vended credentials",
}
HEAD = """# What each catalog and store does

One test suite covers every catalog and every store, with a real server if one is available. The
real sink writes rows, and both Spark and PyIceberg read them back. The results of the last run:

"""
BETWEEN = """
- ✓: passed. ✗: failed. "not run": neither. -: the catalog does not support the feature, and
  icestream refuses it by name.
- "Catalog calls" counts the calls on namespaces and tables (create, find, list, load, drop, names
  that need quoting, faults) that passed, out of those that ran.
- The server behind `glue` is an emulator that accepts a commit based on an old version of a table,
  so two writers take turns there. Amazon's server refuses such a commit.

What each catalog type supports, whatever its server:

"""
UNUSED = """
Every catalog type except `glue` also supports views, and a `rest` catalog can commit to several
tables at once. icestream does not use either yet.
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
