"""Lists of expressions, which YAML splits at the commas inside parentheses."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.config import parse
from icestream.errors import ConfigError

SINK = "sinks: {lake: {connector: iceberg, config: {namespace: a, table: t, %s}}}\n"


def sink_option(text: str, name: str) -> Any:
    return getattr(parse(SINK % text, "a.yaml").sinks["lake"].options, name)


def selected(expressions: str, **environment: str) -> tuple[str, ...]:
    text = (
        "sources: {shop: {connector: datagen}}\n"
        "sinks: {lake: {connector: iceberg, config: {namespace: a, table: t}}}\n"
        f"pipelines: {{p: {{source: shop, sink: lake, transforms: [{{select: {expressions}}}]}}}}\n"
    )
    [step] = parse(text, "a.yaml", environment=environment).transforms["p"]
    columns: tuple[str, ...] = step.options.columns  # type: ignore[attr-defined]
    return columns


def message(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.yaml")
    return str(caught.value)


def test_partition_transforms_need_no_quotes() -> None:
    given = "partitioning: [days(ts), bucket(4, id), truncate(2,code), country]"
    assert sink_option(given, "partitioning") == (
        "days(ts)",
        "bucket(4, id)",
        "truncate(2, code)",
        "country",
    )


def test_sort_order_needs_no_quotes() -> None:
    given = "sort_order: [bucket(4, id) desc, ts]"
    assert sink_option(given, "sort_order") == ("bucket(4, id) desc", "ts")


@pytest.mark.parametrize("step", ["select: *items", "*step", "<<: *step", "<<: [*step]"])
def test_aliases_need_no_quotes_either(step: str) -> None:
    second = step if step.startswith("*") else f"{{{step}}}"
    text = (
        "sources: {shop: {connector: datagen}}\n"
        "sinks: {lake: {connector: iceberg, config: {namespace: a, table: t}}}\n"
        "pipelines:\n  p:\n    source: shop\n    sink: lake\n    transforms:\n"
        "      - &step {select: &items [coalesce(a, 2, b) AS c, id]}\n"
        f"      - {second}\n"
    )
    steps: Any = parse(text, "a.yaml").transforms["p"]
    assert [one.options.columns for one in steps] == [("coalesce(a, 2, b) AS c", "id")] * 2


def test_block_list_and_quoted_items_are_left_alone() -> None:
    text = (
        "sinks:\n  lake:\n    connector: iceberg\n    config:\n      namespace: a\n"
        '      table: t\n      partitioning:\n        - bucket(4, id)\n        - "days(ts)"\n'
    )
    options: Any = parse(text, "a.yaml").sinks["lake"].options
    assert options.partitioning == ("bucket(4, id)", "days(ts)")


@pytest.mark.parametrize(
    ("expressions", "joined"),
    [
        ("[id, concat(a, b) AS c, d]", ("id", "concat(a, b) AS c", "d")),
        ("[coalesce(a, if(b > 1, 2, 3)) AS c]", ("coalesce(a, if(b > 1, 2, 3)) AS c",)),
        ("[f(a, 1.10, true, null, b) AS c]", ("f(a, 1.10, true, null, b) AS c",)),
        ("[\"concat(a, ')') AS b\", c]", ("concat(a, ')') AS b", "c")),
        ("{columns: [concat(a, b) AS c]}", ("concat(a, b) AS c",)),
        ("[a (, b]", ("a (", "b")),
        ("[a), b(]", ("a)", "b(")),
    ],
)
def test_select_needs_no_quotes(expressions: str, joined: tuple[str, ...]) -> None:
    assert selected(expressions) == joined


def test_joined_expression_keeps_its_references() -> None:
    text = SINK % "partitioning: [days(ts), 'bucket(${N}', id)]"
    config = parse(text, "a.yaml", environment={"N": "4"})
    path = ("sinks", "lake", "config", "partitioning")
    options: Any = config.sinks["lake"].options
    assert options.partitioning == ("days(ts)", "bucket(4, id)")
    assert config.tree.source_value(path) == ["days(ts)", "bucket(${N}, id)"]


def test_problem_after_a_joined_item_has_its_own_location() -> None:
    text = SINK % 'partitioning: [bucket(4, id), ""]'
    assert message(text) == ("a.yaml:1:99 sinks.lake.config.partitioning[1]: must not be empty")


def test_unquoted_value_in_a_mapping_is_reported_with_its_quotes() -> None:
    assert message(SINK % "route_by: concat(a, b, c)") == (
        "a.yaml:1:79 sinks.lake.config.route_by: YAML ends the value of 'route_by' at its comma\n"
        '  Put it in quotes: `route_by: "concat(a, b, c)"`.'
    )


def test_unquoted_transform_in_a_mapping_is_reported_with_its_quotes() -> None:
    text = (
        "sources: {shop: {connector: datagen}}\n"
        "sinks: {lake: {connector: iceberg, config: {namespace: a, table: t}}}\n"
        "pipelines:\n  p:\n    source: shop\n    sink: lake\n"
        "    transforms: [{filter: coalesce(a, 0) > 1}]\n"
    )
    assert message(text) == (
        "a.yaml:7:27 pipelines.p.transforms[0].filter: "
        "YAML ends the value of 'filter' at its comma\n"
        '  Put it in quotes: `filter: "coalesce(a, 0) > 1"`.'
    )


def test_split_secret_is_not_shown() -> None:
    text = "catalogs: {lake: {type: jdbc, jdbc: {uri: x, password: se(cr, et)}}}\n"
    found = message(text)
    assert 'Put it in quotes: `password: "..."`.' in found
    assert "se(cr" not in found


def test_quotes_inside_an_unquoted_expression_are_answered_with_double_quotes() -> None:
    assert message("a: {select: [concat(a, 'x') AS b]}\n").endswith(
        "\n  Inside `[...]` and `{...}`, put an expression that contains quotes in double quotes."
    )
