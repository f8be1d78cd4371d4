"""Finds plugins by name, through entry points: ours and third parties' alike."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from icestream.errors import DependencyError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROLES = ("sources", "transforms", "sinks", "catalogs", "formats", "storage")
OURS = "icestream"


@cache
def _installed(role: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"icestream.{role}")}


def names(role: str) -> list[str]:
    """Return the names of every installed plugin of a role, sorted."""
    return sorted(_installed(role))


def modules(role: str) -> dict[str, str]:
    """Return where each plugin of a role is defined, `module:attribute` by name, loading none."""
    return {name: _installed(role)[name].value for name in names(role)}


def is_ours(role: str, name: str) -> bool:
    """Tell whether an installed plugin belongs to icestream itself."""
    return _installed(role)[name].module.partition(".")[0] == OURS


def find(role: str, name: str) -> Any:
    """Load the class of one plugin, and no other.

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
        raise DependencyError(
            f"{role.removesuffix('s')} {name!r} needs the package {exc.name}, "
            "which is not installed",
            todo=_how_to_install(role, name, point),
        ) from exc


def _how_to_install(role: str, name: str, point: EntryPoint) -> str:
    if not is_ours(role, name):
        package = point.module if point.dist is None else point.dist.name
        return f"Install {package!r} again, together with the packages that it depends on."
    parts = name.split("-")
    offered = (point.dist.metadata.get_all("Provides-Extra") if point.dist else None) or ()
    # The extra of `postgres-cdc` is `postgres`, that of `debezium-avro` is `avro`.
    extra = next((part for part in parts if part in offered), parts[0])
    return f"pip install 'icestream[{extra}]'"


def suggest(role: str, name: str, planned: Iterable[str] = ()) -> str:
    """Return a hint for a name that is not installed; it may be a misspelt `planned` one."""
    installed = names(role)
    hint = did_you_mean(name, [*installed, *planned])
    return f"{hint}Installed: {', '.join(installed) or 'none'}."


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return the closest of some names as a question with a space after it; empty if none is."""
    close = get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}? " if close else ""
