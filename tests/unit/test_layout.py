"""The tree is the architecture: sizes, names, and what is loaded when."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from icestream.contracts import registry

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
DUMPING_GROUNDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
HEAVY = {"pyspark", "pyarrow", "pyiceberg", "pandas", "duckdb", "confluent_kafka", "sqlalchemy"}


def longer_than(limit: int, files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {length}"
        for path in files
        if (length := len(path.read_text(encoding="utf-8").splitlines())) > limit
    ]


def test_no_module_is_longer_than_500_lines() -> None:
    assert longer_than(500, SOURCES) == []


def test_no_test_module_is_longer_than_600_lines() -> None:
    assert longer_than(600, TESTS) == []


def test_no_two_test_modules_have_the_same_name() -> None:
    # pytest imports them by their names alone, and refuses the second one.
    names = [path.name for path in TESTS if path.name.startswith("test_")]

    assert {name for name in names if names.count(name) > 1} == set()


def test_no_name_is_a_dumping_ground() -> None:
    parts = {
        part: path.relative_to(ROOT)
        for path in (*SOURCES, *TESTS)
        for part in (path.parent.name, path.stem)
    }

    assert {part: path for part, path in parts.items() if part in DUMPING_GROUNDS} == {}


def test_class_names_are_unique() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))

    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_names_are_quoted_for_sql_in_one_module_only() -> None:
    doubling = re.compile(r"""replace\(\s*["']`["']|replace\(\s*'"',\s*'\\?"\\?"'\)""")
    found = {path.name for path in SOURCES if doubling.search(path.read_text(encoding="utf-8"))}

    # CSV's own quotes, which are no SQL.
    assert found <= {"csv.py"}


def test_reading_a_file_loads_no_heavy_package() -> None:
    script = (
        "import sys\n"
        "import icestream.config.loader, icestream.plan.plan\n"
        f"print(*sorted({HEAVY!r} & sys.modules.keys()))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []


def test_catalogs_do_not_import_each_other() -> None:
    rules = ConfigParser()
    rules.read(ROOT / ".importlinter", encoding="utf-8")
    places = registry.modules("catalogs")
    ours = {places[name].partition(":")[0] for name in places if registry.is_ours("catalogs", name)}

    assert set(rules["importlinter:contract:catalogs"]["modules"].split()) == ours
