"""Finds connectors by name, through entry points: ours and third parties' alike."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from icestream.errors import DependencyError, PlanError

ROLES = ("sources", "transforms", "sinks", "catalogs")


@cache
def _installed(role: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"icestream.{role}")}


def names(role: str) -> list[str]:
    """Return the names of every installed connector of a role, sorted."""
    return sorted(_installed(role))


def find(role: str, name: str) -> Any:
    """Load the class of one connector, and no other.

    Raises:
        PlanError: nothing of that name is installed.
        DependencyError: it is, but a package that it imports is not.
    """
    point = _installed(role).get(name)
    if point is None:
        raise PlanError(f"no {role.removesuffix('s')} is called {name!r}", todo=suggest(role, name))
    try:
        return point.load()
    except ModuleNotFoundError as exc:
        extra = name.split("-", maxsplit=1)[0]
        raise DependencyError(
            f"{role[:-1]} {name!r} needs the package {exc.name}, which is not installed",
            todo=f"pip install 'icestream[{extra}]'",
        ) from exc


def suggest(role: str, name: str) -> str:
    """Return a hint for a name that is not installed."""
    installed = names(role)
    close = get_close_matches(name, installed, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Installed: {', '.join(installed) or 'none'}."
