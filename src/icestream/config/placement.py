"""Says where a key belongs that stands where no such key is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from icestream.config import connectors
from icestream.config.model import FileBlock
from icestream.config.problems import MISSING, value_at
from icestream.config.yaml_tree import dotted
from icestream.contracts.options import yaml_key
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from icestream.config.yaml_tree import Path, Tree

CONNECTED = ("sources", "sinks")
SECTIONS = (*CONNECTED, "catalogs", "pipelines", "views")
PART_KEYS = {"connector", "type", "source", "sink", "target"}


def unknown_key(path: Path, tree: Tree) -> IcestreamError:
    """Write the problem of a key that is not known where it stands."""
    key = str(path[-1])
    here = _fields_at(path[:-1], tree)
    todo = connectors.did_you_mean(key, here).rstrip()
    exact = _elsewhere(path, tree)
    # A key that is known by this very name one level away was moved, not misspelt.
    if exact:
        todo = exact
    elif not todo and here:
        todo = f"Known here: {', '.join(sorted(here))}."
    return IcestreamError(
        f"no key is called {key!r} here", where=tree.where(path, key=True), todo=todo
    )


def misplaced_section(path: Path, tree: Tree) -> Path | None:
    """Return the path of a section such as `pipelines` that stands inside another one."""
    if len(path) < 2 or path[0] not in SECTIONS or path[1] not in FileBlock.model_fields:
        return None
    block = value_at(tree.data, path[:2])
    is_part = isinstance(block, dict) and not PART_KEYS.isdisjoint(block)
    return None if is_part else path[:2]


def too_far_right(path: Path, tree: Tree) -> IcestreamError:
    """Write the problem of a section that stands inside another one."""
    return IcestreamError(
        f"{path[1]!r} is a key of the file itself, and stands inside `{path[0]}`",
        where=tree.where(path, key=True),
        todo=f"Move it further left: `{path[1]}`.",
    )


def _elsewhere(path: Path, tree: Tree) -> str:
    key, block = str(path[-1]), path[:-1]
    if block and key in _fields_at(block[:-1], tree):
        return f"It belongs one level further left: `{dotted((*block[:-1], key))}`."
    # Beside a named part (`sinks.lake`), one level left of it is the file itself.
    if len(block) >= 2 and key in _fields_at(block[:-2], tree):
        return f"It belongs further left: `{dotted((*block[:-2], key))}`."
    for inner in _fields_at(block, tree):
        if key in _fields_at((*block, inner), tree):
            return f"It belongs one level further right: `{dotted((*block, inner, key))}`."
    return _section_for(path, tree) if not block else ""


def _section_for(path: Path, tree: Tree) -> str:
    """Find the section of a part that stands at the left edge."""
    value = value_at(tree.data, path)
    section = ""
    if isinstance(value, dict):
        if {"source", "sink"} <= set(value):
            section = "pipelines"
        elif "connector" in value:
            is_sink = value["connector"] in connectors.known("sinks")
            section = "sinks" if is_sink else "sources"
        elif value.get("type") in connectors.known("catalogs"):
            section = "catalogs"
    return f"It belongs one level further right: `{section}.{path[-1]}`." if section else ""


def _fields_at(path: Path, tree: Tree) -> list[str]:
    model = model_at(path, tree)
    return [yaml_key(name, field) for name, field in model.model_fields.items()] if model else []


def model_at(path: Path, tree: Tree) -> type[BaseModel] | None:
    """Return the model of the block at a path, or None if it has none."""
    model: type[BaseModel] | None = FileBlock
    annotation: Any = None
    for depth, part in enumerate(path):
        special = _connector_model(path[: depth + 1], tree)
        if special is not None:
            model, annotation = special, None
        elif model is not None:
            fields = {yaml_key(name, field): field for name, field in model.model_fields.items()}
            if part not in fields:
                return None
            annotation = fields[str(part)].annotation
            model = None if _is_map(annotation) else _model_in(annotation)
        else:
            model = _model_in(annotation)
            annotation = None
    return model


def _is_map(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in (dict, tuple)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _connector_model(path: Path, tree: Tree) -> type[BaseModel] | None:
    """Return the options of the connector whose block is at this very path."""
    role, name = "", MISSING
    if len(path) == 3 and path[0] in CONNECTED and path[2] == "config":
        role, name = str(path[0]), value_at(tree.data, (*path[:2], "connector"))
    elif (path[0] in CONNECTED and path[2:] == ("config", "catalog")) or (
        path[0] == "catalogs" and len(path) == 2
    ):
        role, name = "catalogs", value_at(tree.data, (*path, "type"))
    elif len(path) == 5 and path[0] == "pipelines" and path[2] == "transforms":
        role, name = "transforms", path[4]
    if not isinstance(name, str) or name not in connectors.known(role):
        return None
    try:
        return connectors.options_type(role, name)
    except IcestreamError:
        return None  # reported where the connector is named
