from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import load, parse
from icestream.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SINK = """\
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
"""


def message(text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "orders.yaml", environment=environment)
    return str(caught.value)


def test_misspelt_key_is_reported_with_a_suggestion() -> None:
    assert message(SINK + "      batchsize: 5\n") == (
        "orders.yaml:7:7 sinks.lake.config.batchsize: unknown key 'batchsize'\n"
        "  Did you mean 'batch_size'?"
    )


def test_unknown_key_without_a_close_match_lists_the_known_keys() -> None:
    assert message("metrics: {colour: red}\n") == (
        "orders.yaml:1:11 metrics.colour: unknown key 'colour'\n  Valid keys: host, port, token."
    )


def test_misspelt_section_is_reported_with_a_suggestion() -> None:
    assert message("source: {}\n") == (
        "orders.yaml:1:1 source: unknown key 'source'\n  Did you mean 'sources'?"
    )


def test_wrong_type_reports_found_and_expected() -> None:
    assert message(SINK + "      batch_size: many\n") == (
        "orders.yaml:7:19 sinks.lake.config.batch_size: "
        "expected a whole number, found the text 'many'"
    )


def test_boolean_is_not_a_number() -> None:
    assert message(SINK + "      batch_size: true\n") == (
        "orders.yaml:7:19 sinks.lake.config.batch_size: expected a number, found true"
    )


def test_number_is_not_a_boolean() -> None:
    assert message(SINK + "      create: 1\n") == (
        "orders.yaml:7:15 sinks.lake.config.create: expected true or false, found the number 1"
    )


def test_number_in_place_of_a_string_asks_for_quotes() -> None:
    assert message(SINK + "      sequence_field: 5\n") == (
        "orders.yaml:7:23 sinks.lake.config.sequence_field: expected a text, found the number 5\n"
        '  Put it in quotes: "5".'
    )


def test_string_in_place_of_a_list_shows_the_list() -> None:
    assert message(SINK + "      key_fields: id\n") == (
        "orders.yaml:7:19 sinks.lake.config.key_fields: expected a list, found the text 'id'\n"
        "  Write `[id]`."
    )


def test_value_of_a_union_names_every_form() -> None:
    assert message(SINK + "      partitioning: 5\n") == (
        "orders.yaml:7:21 sinks.lake.config.partitioning: expected one of 'none', "
        "'table_default', 'identity', 'bucket', 'time' or a list, found the number 5"
    )


def test_unknown_enum_value_suggests_the_nearest() -> None:
    assert message(SINK + "      compression: snapy\n") == (
        "orders.yaml:7:20 sinks.lake.config.compression: expected one of 'none', 'snappy', "
        "'gzip', 'lz4', 'zstd', 'brotli', found the text 'snapy'\n"
        "  Did you mean 'snappy'?"
    )


def test_negative_number_names_the_bound() -> None:
    assert message(SINK + "      flush_interval_secs: -1\n") == (
        "orders.yaml:7:28 sinks.lake.config.flush_interval_secs: must be above 0, found -1"
    )


def test_unset_variable_is_reported_with_its_line() -> None:
    assert message("state:\n  path: /data/${STATE_DIR}\n") == (
        "orders.yaml:2:9 state.path: the environment variable 'STATE_DIR' is not set\n"
        "  Set it, or give a default: `${STATE_DIR:-default}`."
    )


@pytest.mark.parametrize(
    ("key", "variable"), [("user", "DB_PASSWORD"), ("password", "DB_LOGIN"), ("user", "API_TOKEN")]
)
def test_unset_secret_is_not_given_a_default(key: str, variable: str) -> None:
    block = f"{{uri: 'sqlite:a', {key}: '${{{variable}}}'}}"
    text = f"catalogs:\n  lake:\n    type: jdbc\n    jdbc: {block}\n"
    assert message(text) == (
        f"orders.yaml:4:{31 + len(key)} catalogs.lake.jdbc.{key}: "
        f"the environment variable '{variable}' is not set\n"
        "  Set it, or read the secret from a file: `${file:PATH}`."
    )


def test_text_with_a_unit_is_answered_with_the_unit_of_the_option() -> None:
    assert message(SINK + "      flush_interval_secs: 10s\n") == (
        "orders.yaml:7:28 sinks.lake.config.flush_interval_secs: "
        "expected a number, found the text '10s'\n"
        "  Write the number of seconds without a unit, e.g. `flush_interval_secs: 10`."
    )


def test_dangling_sink_name_suggests_the_nearest() -> None:
    text = SINK + (
        "sources:\n  shop: {connector: datagen}\n"
        "pipelines:\n  orders:\n    source: shop\n    sink: lak\n"
    )
    assert message(text) == (
        "orders.yaml:12:11 pipelines.orders.sink: no sink is named 'lak'\n"
        "  Did you mean 'lake'? Named under `sinks`: lake."
    )


def test_dangling_source_name_without_any_source_says_where_to_add_it() -> None:
    assert message(SINK + "pipelines: {a: {source: shop, sink: lake}}\n") == (
        "orders.yaml:7:25 pipelines.a.source: no source is named 'shop'\n  Add it under `sources`."
    )


def test_dangling_catalog_name_is_reported() -> None:
    text = "catalogs: {prod: {type: memory}}\n" + SINK + "      catalog: prd\n"
    assert message(text) == (
        "orders.yaml:8:16 sinks.lake.config.catalog: no catalog is named 'prd'\n"
        "  Did you mean 'prod'? Named under `catalogs`: prod."
    )


def test_unknown_connector_lists_what_is_installed() -> None:
    text = "sources:\n\n\n  orders:\n    connector: kafak\n"
    assert message(text) == (
        "orders.yaml:5:16 sources.orders.connector: no source is called 'kafak'\n"
        "  Did you mean 'kafka'? Installed: datagen, files, kafka, postgres-cdc, webhook."
    )


def test_unknown_catalog_type_and_transform_are_reported() -> None:
    text = (
        "catalogs: {c: {type: jdbk}}\nsources: {s: {connector: datagen}}\n"
        + SINK
        + "pipelines:\n  a: {source: s, sink: lake, transforms: [{filtr: x}]}\n"
    )
    assert message(text) == (
        "orders.yaml:1:22 catalogs.c.type: no catalog is called 'jdbk'\n"
        "  Did you mean 'jdbc'? Installed: glue, hive, jdbc, memory, nessie, rest.\n"
        "orders.yaml:10:44 pipelines.a.transforms[0].filtr: no transform is called 'filtr'\n"
        "  Did you mean 'filter'? Installed: cast, compute, drop, filter, rename, select."
    )


def test_catalog_without_a_type_lists_the_known_types() -> None:
    assert message("catalogs:\n  c: {warehouse: x}\n") == (
        "orders.yaml:2:3 catalogs.c.type: 'type' is missing\n"
        "  Set e.g. `type: jdbc`. Available: glue, hive, jdbc, memory, nessie, rest."
    )
    assert message("catalogs:\n  c: {type: 5}\n") == (
        "orders.yaml:2:13 catalogs.c.type: expected a text, found the number 5\n"
        "  Set e.g. `type: jdbc`. Available: glue, hive, jdbc, memory, nessie, rest."
    )


def test_missing_key_is_described() -> None:
    assert message("sources:\n  s: {config: {}}\n") == (
        "orders.yaml:2:3 sources.s.connector: 'connector' is missing\n"
        "  Add `connector: ...`. Kind of source."
    )


def test_duplicate_key_names_the_first_one() -> None:
    assert message("state: {path: a}\nstate: {path: b}\n") == (
        "orders.yaml:2:1 state: duplicate key 'state'\n  It is also at line 1; keep one of them."
    )


def test_syntax_error_has_a_location() -> None:
    assert message("sources: [a\n") == (
        "orders.yaml:2:1: invalid YAML: expected ',' or ']', but got '<stream end>' "
        "(while parsing a flow sequence)\n"
        "  Check this line and the one before it: indentation, colons, quotes, brackets."
    )


def test_tab_is_reported() -> None:
    assert message("state:\n\tpath: x\n") == (
        "orders.yaml:2:1: tab character where YAML allows only spaces\n"
        "  Indent with spaces, e.g. two per level."
    )


def test_reference_without_quotes_in_brackets_asks_for_quotes() -> None:
    assert message("spark: {packages: [${JAR}]}\n") == (
        "orders.yaml:1:21: invalid YAML: expected ',' or ']', but got '{' "
        "(while parsing a flow sequence)\n"
        "  Inside `[...]` and `{...}`, put `${NAME}` in quotes."
    )


def test_other_version_is_refused() -> None:
    assert message('version: "2.0"\n') == (
        "orders.yaml:1:10 version: '2.0' is not a version of this file format\n"
        '  Write `version: "1.0"`, or leave it out.'
    )


def test_missing_file_points_to_init(tmp_path: Path) -> None:
    file = tmp_path / "icestream.yaml"
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}: file not found\n"
        "  Create one with `icestream init`, or pass yours with `--config FILE`."
    )


def test_key_one_level_too_far_left_gets_its_correct_path() -> None:
    text = "sinks:\n  lake:\n    connector: iceberg\n    batch_size: 5\n"
    assert message(text) == (
        "orders.yaml:4:5 sinks.lake.batch_size: unknown key 'batch_size'\n"
        "  It belongs one level further right: `sinks.lake.config.batch_size`."
    )


def test_key_one_level_too_far_right_gets_its_correct_path() -> None:
    text = "sources:\n  s:\n    connector: datagen\n    config:\n      streams: []\n"
    assert message(text) == (
        "orders.yaml:5:7 sources.s.config.streams: unknown key 'streams'\n"
        "  It belongs one level further left: `sources.s.streams`."
    )


def test_streams_of_a_source_without_tables_are_refused() -> None:
    text = "sources:\n  s:\n    connector: datagen\n    streams: [{name: orders}]\n"
    assert message(text) == (
        "orders.yaml:4:14 sources.s.streams: the connector 'datagen' does not support `streams`\n"
        "  Remove `streams`; `config` defines what is read."
    )


def test_component_at_the_left_edge_gets_its_section() -> None:
    assert message("lake: {connector: iceberg}\nspark: {}\nmaster: x\n") == (
        "orders.yaml:1:1 lake: unknown key 'lake'\n"
        "  It belongs one level further right: `sinks.lake`.\n"
        "orders.yaml:3:1 master: unknown key 'master'\n"
        "  It belongs one level further right: `spark.master`."
    )


def test_section_inside_another_is_moved_left() -> None:
    text = SINK + "  pipelines:\n    a: {source: s, sink: lake}\n"
    assert message(text) == (
        "orders.yaml:7:3 sinks.pipelines: 'pipelines' is a top-level key, but is inside `sinks`\n"
        "  Move it further left: `pipelines`."
    )


def test_catalog_key_outside_its_block_gets_its_correct_path() -> None:
    assert message("catalogs:\n  c: {type: rest, uri: x, rest: {uri: y}}\n") == (
        "orders.yaml:2:19 catalogs.c.uri: unknown key 'uri'\n"
        "  It belongs one level further right: `catalogs.c.rest.uri`."
    )


def test_name_with_a_space_is_refused() -> None:
    assert message("sources:\n  my source: {connector: datagen}\n") == (
        "orders.yaml:2:14 sources.my source: a name must begin with a letter and contain only "
        "letters, digits, '_' and '-'"
    )


def test_every_problem_is_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "state: {path: '${NOPE}'}\n"
        + SINK
        + "      batch_size: -5\nmetrics: {port: x}\npipelines: {a: {source: s, sink: t}}\n"
    )
    lines = [line for line in message(text).splitlines() if not line.startswith("  ")]
    assert [line.split(":")[1] for line in lines] == ["1", "8", "9", "10", "10"]


def test_transform_with_two_kinds_is_refused() -> None:
    text = SINK + (
        "sources: {s: {connector: datagen}}\n"
        "pipelines:\n  a:\n    source: s\n    sink: lake\n    transforms:\n"
        "      - filter: x > 0\n        drop: [y]\n"
    )
    assert message(text) == (
        "orders.yaml:13:9 pipelines.a.transforms[0]: a transform has one key, its kind; found 2\n"
        "  Start each transform with `-`."
    )
