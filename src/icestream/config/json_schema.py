"""The JSON Schema of the file, made from the option models: for checks, and for editors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from icestream.config import connectors
from icestream.config.model import NAME_PATTERN, FileBlock
from icestream.errors import DependencyError

if TYPE_CHECKING:
    from icestream.contracts.options import Options

STRICT = "https://json-schema.org/draft/2020-12/schema"
LENIENT = "http://json-schema.org/draft-07/schema#"
TITLE = "icestream configuration"
REFERENCE = {"type": "string", "pattern": r"\$\{[^{}]*\}"}
UNAVAILABLE = "Not available in this version."
Schema = dict[str, Any]


def json_schema(*, lenient: bool = False) -> Schema:
    """Return the JSON Schema of the file.

    Args:
        lenient: draft-07 for editors, which see the file as it is typed: any number or boolean
            may be a reference such as `${PORT}`. Otherwise 2020-12, for the file with its
            references filled in.
    """
    schema = _strict()
    return _lenient(schema) if lenient else schema


def _strict() -> Schema:
    kinds = {role: _options_types(role) for role in connectors.PLANNED_CONNECTORS}
    models: list[type[Options]] = [
        FileBlock,
        *(m for role in kinds.values() for m in role.values()),
    ]
    references, shared = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)],
        ref_template="#/$defs/{model}",
    )
    definitions: Schema = shared["$defs"]
    targets = {model: reference for (model, _), reference in references.items()}
    by_role = {
        role: {name: targets[model] for name, model in named.items()}
        for role, named in kinds.items()
    }
    file = definitions.pop("FileBlock")
    definitions["Catalog"] = _block_by_kind("type", by_role["catalogs"], "Where tables are found.")
    definitions["Transform"] = _transform(by_role["transforms"])
    _connect(definitions["SourceBlock"], "sources", by_role["sources"])
    _connect(definitions["SinkBlock"], "sinks", by_role["sinks"])
    definitions["PipelineBlock"]["properties"]["transforms"]["items"] = _ref("Transform")
    file["properties"]["catalogs"]["patternProperties"] = {NAME_PATTERN: _ref("Catalog")}
    for definition in definitions.values():
        catalog = definition.get("properties", {}).get("catalog")
        if catalog is not None:
            catalog["anyOf"] = [{"type": "string", "minLength": 1}, _ref("Catalog")]
    version = {"enum": ["1.0", 1, 1.0], "description": "Version of this file format."}
    file["properties"]["version"] = version
    whole = {"$schema": STRICT, **file, "title": TITLE, "$defs": definitions}
    described: Schema = _with_descriptions(json.loads(json.dumps(whole, default=str)))
    return described


def _options_types(role: str) -> dict[str, type[Options]]:
    """Return the options of each connector whose packages are installed."""
    found = {name: _options_type(role, name) for name in connectors.connector_names(role)}
    return {name: kind for name, kind in found.items() if kind is not None}


def _options_type(role: str, name: str) -> type[Options] | None:
    try:
        return connectors.options_type(role, name)
    except DependencyError:
        return None


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _block_by_kind(key: str, kinds: Schema, description: str) -> Schema:
    """Return a block whose options depend on the kind that one of its keys names."""
    return {
        "type": "object",
        "description": description,
        "required": [key],
        "properties": {key: {"enum": list(kinds), "description": "Which kind it is."}},
        "allOf": [_when(key, name, target) for name, target in kinds.items()],
    }


def _when(key: str, name: str, target: Schema) -> Schema:
    condition = {"properties": {key: {"const": name}}, "required": [key]}
    return {"if": condition, "then": target}


def _connect(block: Schema, role: str, kinds: Schema) -> None:
    """Let the options under `config` follow the connector that a block names."""
    block["properties"]["connector"] = {
        "enum": connectors.connector_names(role),
        "description": f"Kind of {role.removesuffix('s')}.",
    }
    block["properties"]["config"] = {
        "type": "object",
        "description": f"Options of the {role.removesuffix('s')}.",
    }
    block["allOf"] = [
        _when("connector", name, {"properties": {"config": target}})
        for name, target in kinds.items()
    ]


def _transform(kinds: Schema) -> Schema:
    return {
        "type": "object",
        "description": "One step: its kind, and its options.",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": dict(kinds),
    }


def _with_descriptions(node: Any) -> Any:
    """Turn our own annotations into descriptions, and drop titles, which repeat the names."""
    if isinstance(node, list):
        return [_with_descriptions(item) for item in node]
    if not isinstance(node, dict):
        return node
    planned = node.get("planned")
    patterns = node.get("patternProperties")
    if isinstance(patterns, dict) and node.get("type") == "object" and len(patterns) == 1:
        # This form rejects a name that does not match; `patternProperties` would not check it.
        ((pattern, value),) = patterns.items()
        names = {"propertyNames": {"pattern": pattern}, "additionalProperties": value}
        node = {key: item for key, item in node.items() if key != "patternProperties"} | names
    result = {
        key: _with_descriptions(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str) and value != TITLE)
        and not (key in ("planned", "path", "expressions") and not isinstance(value, dict))
    }
    if node.get("expressions") is True:
        _allow_split_items(result)
    if planned is True:
        result["description"] = f"{result.get('description', '')} {UNAVAILABLE}".strip()
    elif isinstance(planned, list):
        words = f"Not available in this version: {', '.join(planned)}."
        result["description"] = f"{result.get('description', '')} {words}".strip()
    return result


def _allow_split_items(node: Schema) -> None:
    """Allow what YAML makes of an expression without quotes: `[f(a, 1, b)]` has a number."""
    for choice in (node, *node.get("anyOf", ())):
        if choice.get("type") == "array":
            choice["items"]["type"] = ["string", "number", "boolean", "null"]


def _lenient(node: Any) -> Any:
    """Rewrite a schema for draft-07, and allow references in place of numbers and booleans."""
    if isinstance(node, list):
        return [_lenient(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {
        "definitions" if key == "$defs" else key: _lenient(value) for key, value in node.items()
    }
    if isinstance(result.get("$schema"), str):
        result["$schema"] = LENIENT
    if isinstance(result.get("$ref"), str):
        return _wrapped_reference(result)
    if result.get("type") in ("integer", "number", "boolean") or "enum" in result:
        return _or_reference(result)
    return result


def _wrapped_reference(node: Schema) -> Schema:
    """Keep the keys next to `$ref`, which draft-07 ignores."""
    target = {"$ref": node["$ref"].replace("#/$defs/", "#/definitions/")}
    others = {key: value for key, value in node.items() if key != "$ref"}
    return {"allOf": [target], **others} if others else target


def _or_reference(node: Schema) -> Schema:
    words: Schema = {k: v for k, v in node.items() if k in ("description", "default")}
    rest: Schema = {k: v for k, v in node.items() if k not in words}
    return {**words, "anyOf": [rest, dict(REFERENCE)]}
