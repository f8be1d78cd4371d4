"""Docstrings name what is there: the sections `Args` and `Attributes` follow every rename."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "icestream").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented(node: ast.ClassDef | Function) -> set[str]:
    """Return the names under `Args` and `Attributes`."""
    text = ast.get_docstring(node) or ""
    sections = re.findall(r"^(?:Args|Attributes):\n((?: .*\n?|\n)+)", text, re.MULTILINE)
    lines = "".join(sections)
    named = re.findall(r"^ {4}([*\w]+(?:, [*\w]+)*):", lines, re.MULTILINE)
    return {name.lstrip("*") for names in named for name in names.split(", ")}


def parameters(node: Function) -> set[str]:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in every if one is not None}


def members(node: ast.ClassDef) -> set[str]:
    """Return the fields, methods, instance attributes and arguments of a class."""
    found: set[str] = set()
    for part in node.body:
        if isinstance(part, Function):
            found |= {part.name} | (parameters(part) if part.name == "__init__" else set())
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found | {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        if isinstance(part.value, ast.Name) and part.value.id == "self"
    }


def unknown_names(source: str) -> list[str]:
    """Return the names that docstrings describe and the code lacks, with their lines."""
    problems = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            unknown = documented(node) - members(node)
        elif isinstance(node, Function):
            unknown = documented(node) - parameters(node)
        else:
            continue
        problems += [f"{node.lineno} {node.name}: {name}" for name in sorted(unknown)]
    return problems


def test_docstrings_name_only_what_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in SOURCES
        for problem in unknown_names(path.read_text(encoding="utf-8"))
    ]

    assert wrong == []


def test_renamed_argument_and_attribute_are_found() -> None:
    source = '''
class Side:
    """One side.

    Attributes:
        shown: its name.
        rows, count: what it has.
    """

    label: str
    rows: int

    def count(self, *names: str) -> int:
        """Count.

        Args:
            *names: the tables.
            limit: how many.

        Returns:
            more: not an argument.
        """
'''

    assert unknown_names(source) == ["2 Side: shown", "13 count: limit"]
