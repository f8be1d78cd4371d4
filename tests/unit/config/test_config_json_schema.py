from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from icestream.config import connectors, load, parse, yaml
from icestream.config.json_schema import json_schema
from icestream.plan import build

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYTHING = Path(__file__).with_name("everything.yaml")


@pytest.fixture(scope="module")
def schema() -> Any:
    return json_schema()


@pytest.fixture(scope="module")
def strict(schema: Any) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def lenient() -> jsonschema.Draft7Validator:
    schema = json_schema(lenient=True)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def data_of(text: str) -> Any:
    return yaml.read(text, "a.yaml").data


def faults(validator: Any, text: str) -> list[str]:
    return [error.json_path for error in validator.iter_errors(data_of(text))]


def test_file_with_every_option_is_read_and_planned() -> None:
    assert build(load(EVERYTHING)).pipelines[0].name == "all"


def test_file_with_every_option_fits_both_schemas(
    strict: jsonschema.Draft202012Validator, lenient: jsonschema.Draft7Validator
) -> None:
    text = EVERYTHING.read_text()
    assert faults(strict, text) == []
    assert faults(lenient, text) == []


def test_file_with_every_option_is_complete() -> None:
    """An option that is added without being tried here is found by this."""
    text = EVERYTHING.read_text()
    config = parse(text, EVERYTHING)
    options = [sink.options for sink in config.sinks.values()]
    given = {name for each in options for name in each.model_fields_set}
    assert given == set(type(options[0]).model_fields)


@pytest.mark.parametrize(
    "text",
    [
        "sourcs: {}",
        "sinks: {a: {connector: iceberg, config: {batchsize: 5}}}",
        "sinks: {a: {connector: iceberg, config: {batch_size: x}}}",
        "sinks: {a: {connector: nothing}}",
        "sinks: {a b: {connector: iceberg}}",
        "catalogs: {a: {type: rest}}",
        "catalogs: {a: {type: nothing}}",
        "pipelines: {a: {source: s}}",
        "pipelines: {a: {source: s, sink: t, transforms: [{filtr: x}]}}",
        "metrics: {port: -1}",
        'version: "2.0"',
    ],
)
def test_wrong_files_are_refused_by_both_schemas(
    text: str, strict: jsonschema.Draft202012Validator, lenient: jsonschema.Draft7Validator
) -> None:
    assert faults(strict, text)
    assert faults(lenient, text)


def test_reference_may_replace_a_number_only_in_an_editor(
    strict: jsonschema.Draft202012Validator, lenient: jsonschema.Draft7Validator
) -> None:
    text = "metrics: {port: '${PORT:-9108}'}"
    assert faults(strict, text)
    assert not faults(lenient, text)


@pytest.mark.parametrize(
    "option", ["partitioning: [bucket(4, id), f(a, 1, b)]", "sort_order: [f(a, 1.5, b) desc]"]
)
def test_expressions_without_quotes_fit_both_schemas(
    strict: jsonschema.Draft202012Validator, lenient: jsonschema.Draft7Validator, option: str
) -> None:
    text = f"sinks: {{a: {{connector: iceberg, config: {{namespace: a, table: t, {option}}}}}}}"
    assert faults(strict, text) == []
    assert faults(lenient, text) == []


def test_selected_expressions_without_quotes_fit_both_schemas(
    strict: jsonschema.Draft202012Validator, lenient: jsonschema.Draft7Validator
) -> None:
    for step in ("[f(a, true, null, b)]", "{columns: [f(a, 1, b)]}"):
        text = f"pipelines: {{p: {{source: a, sink: b, transforms: [{{select: {step}}}]}}}}"
        assert faults(strict, text) == []
        assert faults(lenient, text) == []


def test_every_connector_is_in_the_schema(schema: Any) -> None:
    found = schema["$defs"]["SourceBlock"]["properties"]["connector"]["enum"]
    assert found == connectors.connector_names("sources")
    assert set(schema["$defs"]["Transform"]["properties"]) == set(
        connectors.connector_names("transforms")
    )


def properties_in(node: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.get("properties", {}).items():
            # Conditions repeat a property only to compare it.
            if isinstance(value, dict) and not path.endswith((".if", ".then", ".properties")):
                yield f"{path}.{name}", value
        for key, value in node.items():
            yield from properties_in(value, f"{path}.{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from properties_in(value, f"{path}[{number}]")


def test_everything_is_described(schema: Any) -> None:
    blocks = {f"#/$defs/{name}": block for name, block in schema["$defs"].items()}
    undescribed = [
        path
        for path, value in properties_in(schema)
        if not value.get("description")
        and not blocks.get(value.get("$ref"), {}).get("description")
        and not path.startswith("$.$defs.Transform.")
    ]
    assert undescribed == []


def test_planned_options_are_marked(schema: Any) -> None:
    options = schema["$defs"]["IcebergOptions"]["properties"]
    assert options["readers"]["description"].endswith("Not available in this version.")
    assert "Not available" not in options["route_by"]["description"]
