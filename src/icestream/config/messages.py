"""Messages for problems of a file: unknown or misplaced keys and wrong values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from icestream.config import connectors
from icestream.config.model import FileBlock
from icestream.config.yaml import dotted, open_parentheses
from icestream.contracts.option_errors import (
    MISSING,
    expected_value,
    literal_choices,
    model_in,
    value_at,
)
from icestream.contracts.options import yaml_key
from icestream.contracts.registry import alternative, did_you_mean
from icestream.contracts.secrets import is_secret
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails, ValidationError

    from icestream.config.yaml import KeyPath, Tree


CONNECTOR_SECTIONS = ("sources", "sinks")
SECTIONS = (*CONNECTOR_SECTIONS, "catalogs", "pipelines", "views")
COMPONENT_KEYS = {"connector", "type", "source", "sink", "target"}


def unknown_key_problem(path: KeyPath, tree: Tree) -> IcestreamError:
    """Return the problem of a key that its block does not have."""
    key = str(path[-1])
    split = split_value_problem(path[:-1], tree, key)
    if split is not None:
        return split
    here = _fields_at(path[:-1], tree)
    todo = did_you_mean(key, here).rstrip()
    exact = _suggest_location(path, tree)
    # A key that is known by this very name one level away was moved, not misspelt.
    if exact:
        todo = exact
    elif not todo and here:
        todo = f"Valid keys: {', '.join(sorted(here))}."
    return IcestreamError(f"unknown key {key!r}", where=tree.where(path, key=True), todo=todo)


def split_value_problem(
    path: KeyPath, tree: Tree, part: str | None = None
) -> IcestreamError | None:
    """Return the problem of an unquoted value in `{...}`, which YAML splits at its comma.

    `{route_by: concat(a, b)}` is read as `{route_by: "concat(a", "b)": null}`. The value counts as
    unresolved.

    Args:
        path: the block.
        tree: the file.
        part: the key that must be part of the value; any if absent.
    """
    block = value_at(tree.data, path)
    items = list(block.items()) if isinstance(block, dict) else []
    for index, (key, value) in enumerate(items):
        depth, parts = open_parentheses(value) if isinstance(value, str) else 0, []
        for other, empty in items[index + 1 :]:
            if depth <= 0 or empty is not None:
                break
            depth += open_parentheses(other)
            parts.append(other)
        if parts and depth == 0 and (part is None or part in parts):
            tree.unresolved.add((*path, key))  # half a value is not to be checked
            text = "..." if is_secret(key) else ", ".join([value, *parts])
            return IcestreamError(
                f"YAML ends the value of {key!r} at its comma",
                where=tree.where((*path, key)),
                todo=f"Put it in quotes: `{key}: {json.dumps(text, ensure_ascii=False)}`.",
            )
    return None


def misplaced_section(path: KeyPath, tree: Tree) -> KeyPath | None:
    """Return the path of a section such as `pipelines` that is inside another one."""
    if len(path) < 2 or path[0] not in SECTIONS or path[1] not in FileBlock.model_fields:
        return None
    block = value_at(tree.data, path[:2])
    is_part = isinstance(block, dict) and not COMPONENT_KEYS.isdisjoint(block)
    return None if is_part else path[:2]


def misplaced_section_problem(path: KeyPath, tree: Tree) -> IcestreamError:
    """Return the problem of a section that is inside another one."""
    return IcestreamError(
        f"{path[1]!r} is a top-level key, but is inside `{path[0]}`",
        where=tree.where(path, key=True),
        todo=f"Move it further left: `{path[1]}`.",
    )


def _suggest_location(path: KeyPath, tree: Tree) -> str:
    key, block = str(path[-1]), path[:-1]
    if block and key in _fields_at(block[:-1], tree):
        return f"It belongs one level further left: `{dotted((*block[:-1], key))}`."
    # In a named component (`sinks.lake`), the key may belong to the top level of the file.
    if len(block) >= 2 and key in _fields_at(block[:-2], tree):
        return f"It belongs further left: `{dotted((*block[:-2], key))}`."
    for inner in _fields_at(block, tree):
        if key in _fields_at((*block, inner), tree):
            return f"It belongs one level further right: `{dotted((*block, inner, key))}`."
    return _suggest_section(path, tree) if not block else ""


def _suggest_section(path: KeyPath, tree: Tree) -> str:
    """Suggest the section of a component that is at the top level."""
    value = value_at(tree.data, path)
    section = ""
    if isinstance(value, dict):
        if {"source", "sink"} <= set(value):
            section = "pipelines"
        elif "connector" in value:
            is_sink = value["connector"] in connectors.connector_names("sinks")
            section = "sinks" if is_sink else "sources"
        elif value.get("type") in connectors.connector_names("catalogs"):
            section = "catalogs"
    return f"It belongs one level further right: `{section}.{path[-1]}`." if section else ""


def _fields_at(path: KeyPath, tree: Tree) -> list[str]:
    model = model_at(path, tree)
    return [yaml_key(name, field) for name, field in model.model_fields.items()] if model else []


def model_at(path: KeyPath, tree: Tree) -> type[BaseModel] | None:
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
            model = None if _is_map(annotation) else model_in(annotation)
        else:
            model = model_in(annotation)
            annotation = None
    return model


def _is_map(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in (dict, tuple)


def _connector_model(path: KeyPath, tree: Tree) -> type[BaseModel] | None:
    """Return the options of the connector whose block is at this very path."""
    role, name = "", MISSING
    if len(path) == 3 and path[0] in CONNECTOR_SECTIONS and path[2] == "config":
        role, name = str(path[0]), value_at(tree.data, (*path[:2], "connector"))
    elif (path[0] in CONNECTOR_SECTIONS and path[2:] == ("config", "catalog")) or (
        path[0] == "catalogs" and len(path) == 2
    ):
        role, name = "catalogs", value_at(tree.data, (*path, "type"))
    elif len(path) == 5 and path[0] == "pipelines" and path[2] == "transforms":
        role, name = "transforms", path[4]
    elif (
        len(path) == 7
        and path[0] == "pipelines"
        and path[2::2] == ("tables", "transforms", path[6])
    ):
        role, name = "transforms", path[6]
    if not isinstance(name, str) or name not in connectors.connector_names(role):
        return None
    try:
        return connectors.options_type(role, name)
    except IcestreamError:
        return None  # reported where the connector is named


EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "datetime": "a date and time",
}
BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


class ValidationFault(NamedTuple):
    """One of pydantic's errors, with its path in the file."""

    path: KeyPath
    error: ErrorDetails

    @property
    def kind(self) -> str:
        return self.error["type"]

    @property
    def expected(self) -> str | None:
        """What the value should have been, if the fault is about that."""
        return expected_value(self.error, EXPECTED)


def validation_faults(exc: ValidationError, tree: Tree, base: KeyPath) -> list[ValidationFault]:
    """Return pydantic's errors by their path in the file.

    Tags of unions and names of shorthand fields are in pydantic's paths and not in the file: a
    part that the file does not have is left out, unless it is the very thing that is missing.
    """
    faults: list[ValidationFault] = []
    for error in exc.errors(include_url=False):
        path = base
        for part in error["loc"]:
            if value_at(tree.data, (*path, part)) is not MISSING:
                path = (*path, part)
        if error["type"] == "missing":
            path = (*path, error["loc"][-1])
        faults.append(ValidationFault(path, error))
    # Each branch of a union complains; the one that got furthest is the one that was meant.
    deepest = {fault.path for fault in faults}
    return [
        fault
        for fault in faults
        if fault.expected is None
        or not any(len(path) > len(fault.path) and _is_prefix(path, fault.path) for path in deepest)
    ]


def is_misspelt(missing: ValidationFault, faults: Sequence[ValidationFault]) -> bool:
    """Tell whether a missing key is in its block after all, as an unknown key much like it."""
    return missing.kind == "missing" and any(
        fault.kind == "extra_forbidden"
        and fault.path[:-1] == missing.path[:-1]
        and did_you_mean(str(fault.path[-1]), [str(missing.path[-1])])
        for fault in faults
    )


def _is_prefix(path: KeyPath, start: KeyPath) -> bool:
    return path[: len(start)] == start


def problem_for(
    faults: Sequence[ValidationFault], tree: Tree, descriptions: dict[str, str]
) -> IcestreamError:
    """Return the problem of one path; several faults are the branches of a union."""
    fault = faults[0]
    path = fault.path
    if fault.kind == "missing":
        return _missing(path, tree, descriptions.get(str(path[-1]), ""))
    expected = [item.expected for item in faults]
    if all(expected):
        return _wrong_type(faults, tree)
    fault = next(item for item in faults if not item.expected)
    what, _, todo = _message(fault, tree, descriptions).partition("\n")
    return IcestreamError(what, where=tree.where(path), todo=todo)


def _missing(path: KeyPath, tree: Tree, description: str) -> IcestreamError:
    key = str(path[-1])
    return IcestreamError(
        f"{key!r} is missing",
        where=tree.where(path, key=True),
        todo=f"Add `{key}: ...`. {description}".rstrip(),
    )


def _wrong_type(faults: Sequence[ValidationFault], tree: Tree) -> IcestreamError:
    path = faults[0].path
    found = value_at(tree.data, path)
    kinds = dict.fromkeys(item.expected or "" for item in faults)
    choices = [choice for item in faults for choice in literal_choices(item.error)]
    todo = ""
    if isinstance(found, str):
        todo = (_other_format(path, found, choices) or did_you_mean(found, choices)).rstrip()
    if not todo and isinstance(found, str):
        todo = _unit_hint(str(path[-1]))
    if not todo:
        todo = _type_hint(found, kinds, secret=_is_secret_value(path, tree))
    return IcestreamError(
        f"expected {' or '.join(kinds)}, found {describe_value(path, tree)}",
        where=tree.where(path),
        todo=todo,
    )


def _other_format(path: KeyPath, found: str, choices: Sequence[str]) -> str:
    """Return which format to write instead of a well-known one, if it is among the choices."""
    hint = alternative("formats", found) if path[-1] == "format" else ""
    return hint if any(f"`format: {choice}`" in hint for choice in choices) else ""


UNITS = {"_secs": "seconds", "_mb": "MiB", "_days": "days"}


def _unit_hint(key: str) -> str:
    """Say how to write a number whose unit is part of the key, for a text such as `10s`."""
    unit = next((unit for suffix, unit in UNITS.items() if key.endswith(suffix)), "")
    return f"Write the number of {unit} without a unit, e.g. `{key}: 10`." if unit else ""


def _type_hint(found: Any, kinds: dict[str, None], *, secret: bool) -> str:
    if "a text" in kinds and isinstance(found, bool | int | float):
        text = "true" if found is True else "false" if found is False else str(found)
        return "Put it in quotes." if secret else f'Put it in quotes: "{text}".'
    if "a list" in kinds and isinstance(found, str) and not secret:
        return f"Write `[{found}]`."
    if found is None:
        return "Set a value, or remove the key."
    return ""


def describe_value(path: KeyPath, tree: Tree) -> str:
    """Name the value at a path, or its reference; never a secret."""
    value = value_at(tree.data, path)
    if path in tree.references:
        return f"the value of {tree.references[path]!r}"
    if value is None or value is MISSING:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    kind = "text" if isinstance(value, str) else "number"
    return f"a {kind} (hidden)" if _is_secret_value(path, tree) else f"the {kind} {value!r}"


def _is_secret_value(path: KeyPath, tree: Tree) -> bool:
    return path in tree.references or is_secret(
        str(path[-1]) if path else "", str(value_at(tree.data, path))
    )


def _message(fault: ValidationFault, tree: Tree, descriptions: dict[str, str]) -> str:
    """Return what is wrong and, after a line end, what to do."""
    error, kind = fault.error, fault.kind
    context = error.get("ctx", {})
    found = describe_value(fault.path, tree).removeprefix("the number ").removeprefix("the text ")
    if kind in BOUNDS:
        words, key = BOUNDS[kind]
        return f"must be {words} {context[key]:g}, found {found}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("string_too_short", "too_short"):
        return "must not be empty"
    if kind in ("string_pattern_mismatch", "text_form"):
        return _form_message(fault, found, descriptions)
    return error["msg"][:1].lower() + error["msg"][1:]


def _form_message(fault: ValidationFault, found: str, descriptions: dict[str, str]) -> str:
    """Return the message for a text that does not have its form, without a regular expression."""
    if fault.kind == "text_form":
        context = fault.error["ctx"]
        return f"{found} is not {context['kind']}\n{context['todo']}"
    if fault.error["loc"][-1] == "[key]":
        return "a name must begin with a letter and contain only letters, digits, '_' and '-'"
    # A plugin's option.
    description = descriptions.get(str(fault.path[-1]), "")
    return f"{found} does not have the form that this option needs\n{description}"
