from __future__ import annotations

import pytest

from icestream.config import parse
from icestream.errors import ConfigError
from icestream.plan import build
from icestream.sinks.iceberg.options import IcebergOptions

HEAD = """\
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
"""


def message(*lines: str, head: str = HEAD) -> str:
    text = head + "".join(f"      {line}\n" for line in lines)
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "orders.yaml"))
    return str(caught.value)


def accepts(*lines: str) -> None:
    text = HEAD + "".join(f"      {line}\n" for line in lines)
    build(parse(text, "orders.yaml"))


def test_upsert_needs_key_fields() -> None:
    assert message("", "commit_mode: upsert") == (
        "orders.yaml:8:7 sinks.lake.config.key_fields: commit_mode 'upsert' needs at least one "
        "key field, and none is given\n"
        "  Add e.g. `key_fields: [order_id]`, or use `commit_mode: append`."
    )


def test_upsert_from_a_change_source_brings_its_own_keys() -> None:
    text = (
        "sources: {pg: {connector: postgres-cdc, config: {host: h, database: d, user: u}}}\n"
        "sinks: {lake: {connector: iceberg, config: {commit_mode: upsert}}}\n"
        "pipelines: {p: {source: pg, sink: lake}}\n"
    )
    assert build(parse(text, "orders.yaml")).pipelines[0].name == "p"


def test_missing_fields_are_for_upserts() -> None:
    assert message("missing_fields: keep") == (
        "orders.yaml:7:23 sinks.lake.config.missing_fields: commit_mode 'append' ignores "
        "'missing_fields'\n"
        "  Use `commit_mode: upsert`, or remove it."
    )
    accepts("commit_mode: upsert", "key_fields: [id]", "missing_fields: null")
    assert IcebergOptions(namespace="a", missing_fields=None).missing_fields == "null"


@pytest.mark.parametrize(
    ("source", "transforms", "what"),
    [
        (
            "kafka, config: {brokers: [b:1], topics: [t]}",
            "[{select: [id]}]",
            "'keep' cannot be combined with the transform 'select': its columns are not those of "
            "the record, so missing fields can't be detected\n"
            "  Use `rename`, `cast` and `drop` instead.",
        ),
        (
            "datagen, config: {schema: id int}",
            "[]",
            "'keep' needs a source whose records name their fields, and this one gives rows that "
            "all have the same columns\n"
            "  Take `missing_fields` out, or read JSON or Avro records.",
        ),
        ("kafka, config: {brokers: [b:1], topics: [t]}", "[{rename: {a: b}}, {drop: [c]}]", ""),
    ],
)
def test_keep_needs_known_missing_fields(source: str, transforms: str, what: str) -> None:
    text = (
        f"sources: {{s: {{connector: {source}}}}}\n"
        "sinks: {lake: {connector: iceberg, config: {namespace: n, table: t, commit_mode: upsert, "
        "key_fields: [id],\n  missing_fields: keep}}}\n"
        f"pipelines: {{p: {{source: s, sink: lake, transforms: {transforms}}}}}\n"
    )
    if not what:
        build(parse(text, "orders.yaml"))
        return
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "orders.yaml"))
    assert str(caught.value) == f"orders.yaml:3:19 sinks.lake.config.missing_fields: {what}"


RESERVED = """\
sources:
  orders:
    connector: kafka
    config:
      brokers: [localhost:9092]
      topics: [orders]
      schema: id bigint, _pos bigint
sinks: {lake: {connector: iceberg, config: {namespace: sales, table: orders}}}
pipelines:
  p: {source: orders, sink: lake%s}
"""


def test_declared_column_with_a_reserved_name_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build(parse(RESERVED % "", "orders.yaml"))

    assert str(caught.value) == (
        "orders.yaml:7:15 sources.orders.config.schema: column '_pos' has the name of an Iceberg "
        "metadata column\n"
        "  Rename the column with a `rename` transform, or leave it out with `drop`. In a mirror, "
        "rename it in the source."
    )


@pytest.mark.parametrize("step", ["drop: [_pos]", "rename: {_pos: place}", "select: [id]"])
def test_declared_column_with_a_reserved_name_may_be_renamed_or_dropped(step: str) -> None:
    build(parse(RESERVED % f", transforms: [{{{step}}}]", "orders.yaml"))


def test_table_and_namespace_are_required() -> None:
    head = "sinks:\n  lake:\n    connector: iceberg\n    config:\n"
    assert message("create: true", head=head) == (
        "orders.yaml:4:5 sinks.lake.config.namespace: 'namespace' is missing\n"
        "  Add e.g. `namespace: analytics`.\n"
        "orders.yaml:4:5 sinks.lake.config.table: 'table' is missing\n"
        "  Add e.g. `table: events`."
    )


@pytest.mark.parametrize("mode", ["identity", "bucket", "time"])
def test_partitioning_needs_fields(mode: str) -> None:
    assert message(f"partitioning: {mode}") == (
        f"orders.yaml:7:7 sinks.lake.config.partition_fields: partitioning {mode!r} needs at "
        "least one field, and none is given\n"
        "  Add e.g. `partition_fields: [country]`, or use `partitioning: none`."
    )


def test_partition_fields_that_nothing_uses_are_refused() -> None:
    assert message("partition_fields: [a]") == (
        "orders.yaml:7:25 sinks.lake.config.partition_fields: partitioning 'none' ignores "
        "'partition_fields'\n"
        "  Add e.g. `partitioning: identity`, or remove `partition_fields`."
    )


def test_partition_terms_are_read() -> None:
    assert message('partitioning: ["days(ts)", "bucket(id)", "weeks(ts)"]') == (
        "orders.yaml:7:34 sinks.lake.config.partitioning[1]: 'bucket(id)' needs a whole number "
        "above 0 before the column\n"
        "  Write e.g. `bucket(16, id)`.\n"
        "orders.yaml:7:48 sinks.lake.config.partitioning[2]: no partition transform is called "
        "'weeks'\n"
        "  Available: bucket, days, hours, identity, months, truncate, years."
    )


def test_sort_terms_are_read() -> None:
    assert message("sort_order: [id, ts downwards]") == (
        "orders.yaml:7:24 sinks.lake.config.sort_order[1]: 'ts downwards' is not a sort term\n"
        "  Write a column, then `asc` or `desc`, then `nulls first` or `nulls last`."
    )


def test_brotli_is_refused_with_the_reason() -> None:
    assert message("compression: brotli") == (
        "orders.yaml:7:20 sinks.lake.config.compression: 'brotli' cannot be used: Spark's Parquet "
        "reader has no class for this codec, so the table could be neither compacted nor read by "
        "Spark\n"
        "  Use `compression: zstd`, which is as small."
    )


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4", "zstd"])
def test_every_other_codec_is_accepted(codec: str) -> None:
    accepts(f"compression: {codec}")


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 22)])
def test_level_outside_its_range_is_refused(codec: str, low: int, high: int) -> None:
    accepts(f"compression: {codec}", f"compression_level: {high}")
    assert message(f"compression: {codec}", f"compression_level: {high + 1}") == (
        f"orders.yaml:8:26 sinks.lake.config.compression_level: must be from {low} to {high} for "
        f"{codec!r}, found {high + 1}"
    )


def test_level_of_a_codec_without_levels_is_refused() -> None:
    assert message("compression_level: 3") == (
        "orders.yaml:7:26 sinks.lake.config.compression_level: compression 'snappy' has no "
        "levels, found level 3\n"
        "  Remove `compression_level`, or use `compression: zstd`."
    )


def test_dead_letter_mode_needs_a_table() -> None:
    assert message("on_error: dead_letter") == (
        "orders.yaml:7:7 sinks.lake.config.dead_letter: on_error 'dead_letter' needs a table for "
        "the bad rows, and none is named\n"
        "  Add e.g. `dead_letter: sales.bad_rows`."
    )


def test_dead_letter_table_that_nothing_uses_is_refused() -> None:
    assert message("dead_letter: sales.bad") == (
        "orders.yaml:7:20 sinks.lake.config.dead_letter: on_error 'fail' ignores "
        "'dead_letter'\n"
        "  Use `on_error: dead_letter`, or remove it."
    )


def test_dead_letters_cannot_go_to_the_table_itself() -> None:
    assert message("on_error: dead_letter", "dead_letter: sales.orders") == (
        "orders.yaml:8:20 sinks.lake.config.dead_letter: 'sales.orders' is not a valid dead-letter "
        "table: it must differ from the sink's table\n"
        "  Set `dead_letter` to another `namespace.table`."
    )


def test_max_rows_cannot_be_fewer_than_a_batch() -> None:
    assert message("max_batch_rows: 5") == (
        "orders.yaml:7:23 sinks.lake.config.max_batch_rows: max_batch_rows 5 is less than "
        "batch_size 10000\n"
        "  Raise `max_batch_rows`, or lower `batch_size`."
    )


def test_overwrite_partitions_names_them() -> None:
    assert message("commit_mode: overwrite_partitions") == (
        "orders.yaml:7:7 sinks.lake.config.overwrite_partitions: commit_mode "
        "'overwrite_partitions' needs at least one partition, and none is given\n"
        '  Add e.g. `overwrite_partitions: ["year=2024/month=10"]`.'
    )


@pytest.mark.parametrize("name", ["2024", "=2024", "year=2024/10"])
def test_invalid_partition_name_is_reported_without_a_table(name: str) -> None:
    assert message("commit_mode: overwrite_partitions", f'overwrite_partitions: ["{name}"]') == (
        f"orders.yaml:8:30 sinks.lake.config.overwrite_partitions[0]: {name!r} is not a "
        "partition name\n"
        "  Write e.g. `year=2024/month=10`, with `%2F` for a slash in a value."
    )


CHECKS = "publish: {checks: [{name: ids, sql: SELECT * FROM rows WHERE id IS NULL}]}"


def test_publishing_needs_a_branch_of_its_own() -> None:
    assert message(CHECKS) == (
        "orders.yaml:7:7 sinks.lake.config.branch: rows are written to 'main' itself, so `publish` "
        "has nothing to hold back\n"
        "  Add e.g. `branch: audit`; once the checks pass, 'main' is fast-forwarded to it."
    )
    accepts("branch: audit", CHECKS)


def test_partitions_to_overwrite_need_their_commit_mode() -> None:
    assert message('overwrite_partitions: ["day=2026-11-18"]') == (
        "orders.yaml:7:29 sinks.lake.config.overwrite_partitions: commit_mode 'append' ignores "
        "'overwrite_partitions'\n"
        "  Use `commit_mode: overwrite_partitions`, or remove it."
    )


def test_renames_need_a_table_that_follows_everything() -> None:
    assert message("renames: {old: new}") == (
        "orders.yaml:7:16 sinks.lake.config.renames: schema_evolution 'add_columns' ignores "
        "'renames'\n"
        "  Use `schema_evolution: full`, or remove it."
    )
    accepts("renames: {old: new}", "schema_evolution: full")


def test_view_needs_a_query_or_aggregates() -> None:
    assert message(head="views:\n  v: {source: a.b, target: a.c}\n") == (
        "orders.yaml:2:3 views.v: a view needs either `sql` or `aggregates`\n"
        "  Add e.g. `aggregates: {orders: count(*)}`."
    )


@pytest.mark.parametrize(
    ("head", "field", "name"),
    [
        ("namespace: sales, table: '../../x'", "table", "../../x"),
        ("namespace: ['a/b'], table: x", "namespace", "a/b"),
        ("namespace: a, table: x, on_error: dead_letter, dead_letter: a.x/y", "dead_letter", "x/y"),
    ],
)
def test_name_that_is_a_path_is_refused(head: str, field: str, name: str) -> None:
    text = f"sinks: {{lake: {{connector: iceberg, config: {{{head}}}}}}}\n"
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "orders.yaml"))

    (problem,) = caught.value.problems
    assert f"sinks.lake.config.{field}" in problem.where
    assert problem.what == f"{name!r} is not a valid name: it contains a path separator"
    assert problem.todo == "Choose another name."
