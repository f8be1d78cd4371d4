"""Options whose text has a form: messages say what is accepted, and show no regular expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from icestream.config import connectors, parse
from icestream.config.json_schema import json_schema
from icestream.config.loader import _ConfigReader
from icestream.config.yaml import read
from icestream.contracts.options import Duration, Options
from icestream.errors import ConfigError, DependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD = "!"


def patterns(node: Any, definitions: dict[str, Any], seen: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield `(value, pattern)`: a bad value in its blocks, for each pattern of a JSON Schema."""
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from patterns(definitions[name], definitions, (*seen, name))
    if "pattern" in node:
        yield BAD, node["pattern"]
    for key, inner in node.get("properties", {}).items():
        for value, pattern in patterns(inner, definitions, seen):
            yield {key: value}, pattern
    for value, pattern in patterns(node.get("items"), definitions, seen):
        yield [value], pattern
    for value, pattern in patterns(node.get("additionalProperties"), definitions, seen):
        yield {"a": value}, pattern
    for choice in (*node.get("anyOf", ()), *node.get("allOf", ()), *node.get("oneOf", ())):
        yield from patterns(choice, definitions, seen)


def options_with_patterns() -> list[Any]:
    found = []
    for role in connectors.PLANNED_CONNECTORS:
        for name in connectors.connector_names(role):
            try:
                kind = connectors.options_type(role, name)
            except DependencyError:
                continue  # a connector whose packages are not installed
            schema = kind.model_json_schema()
            for value, pattern in patterns(schema, schema.get("$defs", {})):
                found.append(pytest.param(kind, value, pattern, id=f"{name} {value}"))
    return found


@pytest.mark.parametrize(("kind", "value", "pattern"), options_with_patterns())
def test_no_message_shows_a_regular_expression(
    kind: type[Options], value: Any, pattern: str
) -> None:
    tree = read("", "a.yaml")
    tree.data = value
    assert _ConfigReader(tree).model(kind, value, ()) is None
    text = "\n".join(map(str, tree.problems))
    assert f"{BAD!r} is not " in text
    assert pattern not in text
    assert repr(pattern) not in text


def test_there_are_options_with_patterns() -> None:
    assert len(options_with_patterns()) >= 5


class PluginOptions(Options):
    code: str = Field(pattern="^[A-Z]{3}$", description="Three capital letters.")


def test_pattern_of_a_plugin_is_answered_with_its_description() -> None:
    tree = read("sources: {a: {connector: datagen, config: {code: x}}}", "a.yaml")
    reader = _ConfigReader(tree)
    reader.model(PluginOptions, {"code": "x"}, ("sources", "a", "config"))
    [problem] = tree.problems
    assert problem.what == "'x' does not have the form that this option needs"


def test_duration_is_answered_with_what_is_accepted() -> None:
    text = (
        "sinks: {lake: {connector: iceberg, config: {namespace: a, table: t,"
        " maintenance: {expire: {older_than: 5 days}}}}}"
    )
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.yaml")
    assert str(caught.value) == (
        "a.yaml:1:104 sinks.lake.config.maintenance.expire.older_than: '5 days' is not a duration\n"
        "  Write a whole number and a unit (s, m, h, d or w), "
        "e.g. `30s`, `15m`, `12h`, `5d`, `2w`."
    )


@pytest.mark.parametrize("text", ["5d\n", "0d", "d", "5 d", "-1s", ""])
def test_duration_must_match_as_a_whole(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(text)


def test_editors_get_the_pattern() -> None:
    expire = json_schema()["$defs"]["ExpireOptions"]
    assert expire["properties"]["older_than"]["pattern"] == "^[1-9][0-9]*[smhdw]$"
