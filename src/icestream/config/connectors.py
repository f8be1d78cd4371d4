"""Finds the options of a connector by its name, also of those that are not built yet."""

from __future__ import annotations

from importlib import import_module

from icestream.contracts import registry
from icestream.contracts.options import Options
from icestream.errors import PlanError

PLANNED_CONNECTORS: dict[str, dict[str, str]] = {
    "sources": {
        "iceberg": "icestream.sources.iceberg:IcebergSourceOptions",
    },
    "sinks": {},
    "catalogs": {},
    "transforms": {
        "dedupe": "icestream.transforms.dedupe:DedupeOptions",
        "flatten": "icestream.transforms.flatten:FlattenOptions",
        "sql": "icestream.transforms.sql:SqlOptions",
        "unwrap": "icestream.transforms.unwrap:UnwrapOptions",
        "window": "icestream.transforms.window:WindowOptions",
    },
}


def connector_names(role: str) -> list[str]:
    """Return the names of every connector of a role, built or planned, sorted."""
    return sorted({*registry.names(role), *PLANNED_CONNECTORS[role]})


def is_available(role: str, name: str) -> bool:
    """Tell whether a connector can be used in this version."""
    return name in registry.names(role)


def options_type(role: str, name: str) -> type[Options]:
    """Return the option model of a connector, loading that connector only.

    Raises:
        PlanError: no connector of that name is known.
        DependencyError: a package that it imports is not installed.
    """
    if is_available(role, name):
        found = registry.find(role, name).options_type
    elif name in PLANNED_CONNECTORS[role]:
        module, _, attribute = PLANNED_CONNECTORS[role][name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        raise PlanError(
            f"no {role.removesuffix('s')} is called {name!r}",
            todo=registry.suggest(role, name, planned=PLANNED_CONNECTORS[role]),
        )
    if not (isinstance(found, type) and issubclass(found, Options)):
        raise PlanError(f"the options of {role.removesuffix('s')} {name!r} are not `Options`")
    return found
