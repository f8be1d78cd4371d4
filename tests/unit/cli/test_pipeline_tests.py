"""`icestream test`, where no JVM is needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Ended, Icestream

CONFIG = """\
sources:
  orders:
    connector: kafka
    config:
      brokers: "${BROKERS}"
      topics: [orders]
      format: json
      include: [key, partition]
      options: {sasl.password: "${KAFKA_PASSWORD}"}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      on_error: dead_letter
      dead_letter: sales.orders_dead
      catalog: {type: rest, rest: {uri: "${CATALOG_URI}", credential: "${file:/run/secrets/none}"}}
pipelines:
  orders: {source: orders, sink: lake}
metrics: {port: "${METRICS_PORT}"}
"""


@pytest.fixture
def run(icestream: Icestream, tmp_path: Path) -> Run:
    return Run(icestream, tmp_path)


class Run:
    """Runs one test file beside one configuration."""

    def __init__(self, icestream: Icestream, folder: Path) -> None:
        self.icestream = icestream
        self.folder = folder

    def __call__(self, tests: str, *arguments: str, config: str = CONFIG) -> Ended:
        (self.folder / "icestream.yaml").write_text(config, encoding="utf-8")
        (self.folder / "orders.test.yaml").write_text(tests, encoding="utf-8")
        return self.icestream("test", *arguments)


def without_times(text: str) -> list[str]:
    return [re.sub(r" \([0-9.]+ s\)$| in [0-9.]+ s$", "", line) for line in text.splitlines()]


def test_given_records_become_expected_rows_and_dead_letters(run: Run) -> None:
    ended = run(
        """\
tests:
  - name: an order that is cut off is a dead letter
    given:
      - {order_id: 1, amount: 10.5, at: "2026-03-01T09:00:00Z", kafka_key: k1, kafka_partition: 3}
      - '{"order_id": 2, "amount": '
      - null
      - {order_id: 4, tags: [a, b], kafka_key: {id: 4}}
    expect:
      - {order_id: 4, amount: null, tags: [a, b], kafka_key: '{"id": 4}', kafka_partition: null}
      - {order_id: 1, amount: 10.5, at: "2026-03-01T10:00:00+01:00", kafka_key: k1}
    dead_letters:
      - {reason: not JSON, record: '{"order_id": 2, "amount": '}
      - {reason: no value}
"""
    )
    assert (ended.code, ended.err) == (0, "")
    assert without_times(ended.out) == [
        "✓ orders.test.yaml:2:5 an order that is cut off is a dead letter",
        "1 passed",
    ]


def test_differences_are_shown_by_column(run: Run) -> None:
    ended = run(
        """\
tests:
  - name: first
    given: [{id: 1, amount: 10}, {id: 2, amount: 20}, {id: 3, amount: 30}]
    expect:
      - {id: 3, amount: 31}
      - {id: 1}
      - {id: 7, amount: 70}
  - name: second
    given: [{id: 1}, "{"]
    expect: [{id: 1}]
  - name: third
    given: [{id: 1}]
    expect: [{id: 1}]
    dead_letters: [{reason: too late}]
"""
    )
    assert ended.code == 4
    assert without_times(ended.out) == [
        "✗ orders.test.yaml:2:5 first",
        '    ~ expect[0] differs: {"id": 3, "amount": 31}',
        "        amount: expected 31, found 30",
        '    - not found: {"id": 7, "amount": 70}',
        '    + not expected: {"id": 2, "amount": 20, "kafka_key": null, "kafka_partition": null}',
        "✗ orders.test.yaml:8:5 second",
        "    unexpected dead letter: given[1]: not JSON: expecting property name enclosed "
        "in double quotes at character 1; the object does not end here, write one object per "
        "record, in files one per line",
        "✗ orders.test.yaml:11:5 third",
        "    expected a dead letter with the reason 'too late', found none",
        "0 passed, 3 failed",
    ]


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        (
            "{amout: 1}",
            "there is no column 'amout'. Did you mean 'amount'? Columns: id, amount, kafka_key, "
            "kafka_partition",
        ),
        ("{id: one}", "column 'id' is a bigint, and never has the value 'one'"),
    ],
)
def test_expected_row_that_no_table_has_fails_the_test(run: Run, expect: str, problem: str) -> None:
    ended = run(f"tests:\n  - {{name: t, given: [{{id: 1, amount: 1}}], expect: [{expect}]}}\n")
    assert (ended.code, ended.out.splitlines()[1]) == (4, f"    {problem}")


def test_order_counts_only_if_the_test_says_so(run: Run) -> None:
    test = "  - {name: t, given: [{id: 1}, {id: 2}], expect: [{id: 2}, {id: 1}]"
    ended = run(f"tests:\n{test}}}\n{test}, in_order: true}}\n")
    assert ended.code == 4
    assert without_times(ended.out)[:4] == [
        "✓ orders.test.yaml:2:5 t",
        "✗ orders.test.yaml:3:5 t",
        '    ~ expect[0] differs: {"id": 2}',
        "        id: expected 2, found 1",
    ]


def test_partial_rows_are_matched_as_well_as_possible(run: Run) -> None:
    ended = run(
        """\
tests:
  - name: the first expected row fits both, the second only one
    given: [{id: 1, kind: a}, {id: 2, kind: a}]
    expect: [{kind: a}, {id: 1}]
"""
    )
    assert ended.code == 0, ended.out


def test_failing_batch_is_expected_by_its_message(run: Run) -> None:
    config = CONFIG.replace("on_error: dead_letter", "on_error: fail").replace(
        "      dead_letter: sales.orders_dead\n", ""
    )
    tests = """\
tests:
  - {name: as expected, given: [{id: 1}, "{"], error: "record given[1] can't be decoded: not JSON"}
  - {name: another, given: [{id: 1}, "{"], error: too large}
  - {name: none, given: [{id: 1}], error: not JSON}
  - {name: not expected, given: [{id: 1}, "{"], expect: []}
"""
    ended = run(tests, "--output", "json", config=config)
    assert ended.code == 4
    first, other, none, unexpected = ended.document["tests"]
    assert first["passed"]
    assert other["problems"][0].startswith(
        "expected an error with 'too large', the batch fails: pipeline 'orders', batch 0: record "
    )
    assert none["problems"] == ["expected an error with 'not JSON', and the batch is good"]
    assert unexpected["problems"][0].startswith("the batch fails: pipeline 'orders', batch 0: ")


def test_row_without_a_key_is_refused_as_in_a_run(run: Run) -> None:
    upsert = "table: orders\n      commit_mode: upsert\n      key_fields: [id]"
    config = CONFIG.replace("table: orders", upsert)
    reason = "column 'id' is part of the key, and the row has no value for it"
    ended = run(
        f"""\
tests:
  - name: t
    given: [{{id: 1, n: 1}}, {{id: null, n: 2}}]
    expect: [{{id: 1}}]
    dead_letters: [{{reason: "{reason}", record: {{id: null, n: 2}}}}]
""",
        config=config,
    )
    assert ended.code == 0, ended.out
    config = config.replace("on_error: dead_letter", "on_error: fail").replace(
        "      dead_letter: sales.orders_dead\n", ""
    )
    ended = run(
        f'tests:\n  - {{name: t, given: [{{id: 1}}, {{id: null}}], error: "{reason}"}}\n',
        config=config,
    )
    assert ended.code == 0, ended.out


ROUTED = CONFIG.replace("table: orders", "route_by: kind")


def test_rows_of_many_tables_are_expected_by_table(run: Run) -> None:
    given = "[{kind: a, id: 1}, {kind: b, id: 2}, {kind: c, id: 3}]"
    ended = run(
        f"""\
tests:
  - {{name: good, given: {given}, expect: {{sales.a: [{{id: 1}}], b: [{{id: 2}}], c: [{{}}]}}}}
  - {{name: bad, given: {given}, expect: {{sales.a: [{{id: 1}}], d: [{{id: 2}}]}}}}
""",
        config=ROUTED,
    )
    assert ended.code == 4
    found = without_times(ended.out)
    assert found[0] == "✓ orders.test.yaml:2:5 good"
    assert found[2] == "    table d: there is no column 'id'. Columns: none"
    assert found[3].startswith('    + lake.sales.b: not expected: {"kind": "b", "id": 2')
    assert found[4].startswith('    + lake.sales.c: not expected: {"kind": "c", "id": 3')


def test_rows_of_many_tables_without_a_name_are_refused(run: Run) -> None:
    ended = run("tests:\n  - {name: t, given: [], expect: [{id: 1}]}\n", config=ROUTED)
    assert (ended.code, ended.err) == (
        2,
        "error: orders.test.yaml:2:34 tests[0].expect: pipeline 'orders' writes to many tables, "
        "and the rows name none\n"
        "  Give the rows of each table by its name: `expect: {sales.orders: [...]}`.\n",
    )


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("", "orders.test.yaml:1:1: expected a mapping of keys, found nothing\n  Start with "),
        (
            "tests: []\n",
            "orders.test.yaml:1:8 tests: must not be empty\n",
        ),
        (
            "tests:\n  - {name: t, givn: [], expect: []}\n",
            "orders.test.yaml:2:5 tests[0].given: 'given' is missing\n"
            "  Add `given: ...`. The records: a mapping is encoded in the source's format, a text "
            "is the record itself, and null a record without a value.\n"
            "orders.test.yaml:2:15 tests[0].givn: unknown key 'givn'\n  Did you mean 'given'?\n",
        ),
        (
            "tests:\n  - {name: t, given: []}\n",
            "orders.test.yaml:2:5 tests[0]: needs `expect`, `dead_letters` or `error`\n",
        ),
        (
            "tests:\n  - {name: t, given: [], expect: [1]}\n",
            "orders.test.yaml:2:35 tests[0].expect[0]: expected a mapping, found the number 1\n",
        ),
        (
            "tests:\n  - {name: t, given: [], dead_letters: [{reson: x}]}\n",
            "orders.test.yaml:2:41 tests[0].dead_letters[0].reason: 'reason' is missing\n"
            "  Add `reason: ...`. The reason, or a part of it.\n"
            "orders.test.yaml:2:42 tests[0].dead_letters[0].reson: unknown key 'reson'\n"
            "  Did you mean 'reason'?\n",
        ),
        (
            "tests:\n  - {name: t, given: [], expect: [{a: 1}], error: x}\n",
            "orders.test.yaml:2:5 tests[0]: a batch that fails writes nothing; remove `expect`, "
            "or `error`\n",
        ),
        (
            "tests:\n  - {name: t, pipeline: oders, given: [], expect: []}\n",
            "orders.test.yaml:2:25 tests[0].pipeline: icestream.yaml has no pipeline named "
            "'oders'\n  Did you mean 'orders'? Available: orders.\n",
        ),
        (
            "tests:\n  - {name: t, given: [{id: 1}, 5], expect: []}\n",
            "orders.test.yaml:2:32 tests[0].given[1]: expected a mapping, a text or null, found 5\n"
            "  Put the record in quotes if it is this text.\n",
        ),
        (
            "config: none.yaml\ntests:\n  - {name: t, given: [], expect: []}\n",
            "none.yaml: file not found\n"
            "  Create one with `icestream init`, or pass yours with `--config FILE`.\n",
        ),
        (
            "tests: [\n",
            "orders.test.yaml:2:1: invalid YAML: ",
        ),
    ],
)
def test_wrong_test_file_is_reported_with_line_and_column(
    run: Run, tests: str, message: str
) -> None:
    ended = run(tests)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err[: len(f"error: {message}")] == f"error: {message}"


def test_one_of_several_pipelines_must_be_named(run: Run) -> None:
    again = CONFIG.replace("metrics:", "  again: {source: orders, sink: lake}\nmetrics:")
    ended = run("tests:\n  - {name: t, given: [], expect: []}\n", config=again)
    assert (ended.code, ended.err) == (
        2,
        "error: orders.test.yaml:2:5 tests[0]: 'pipeline' is missing, and icestream.yaml has 2\n"
        "  Name one of them: orders, again.\n",
    )


def test_environment_of_the_test_file_wins_over_placeholders(run: Run) -> None:
    config = CONFIG.replace("topics: [orders]", 'topics: [orders]\n      schema: "${SCHEMA}"')
    tests = "tests:\n  - {name: t, given: [{id: 1}], expect: [{id: '1'}]}\n"
    ended = run(f'environment: {{SCHEMA: "id string"}}\n{tests}', config=config)
    assert ended.code == 0, ended.out + ended.err


def test_placeholder_that_does_not_fit_is_explained(run: Run) -> None:
    config = CONFIG.replace("topics: [orders]", 'topics: [orders]\n      schema: "${SCHEMA}"')
    ended = run("tests:\n  - {name: t, given: [], expect: []}\n", config=config)
    assert ended.code == 2
    assert (
        "icestream.yaml: placeholders stand for what is not set: ${BROKERS}, ${SCHEMA}, "
        "${KAFKA_PASSWORD}, ${CATALOG_URI}, ${file:/run/secrets/none}, ${METRICS_PORT}\n"
        "  Set what the pipeline depends on: in the environment, or under `environment` of the "
        "test file.\n"
    ) in ended.err


def test_default_of_a_variable_is_kept(run: Run) -> None:
    config = CONFIG.replace("topics: [orders]", 'topics: [orders]\n      schema: "${S:-id string}"')
    tests = "tests:\n  - {name: t, given: [{id: 1}], expect: [{id: '1'}]}\n"
    ended = run(tests, config=config)
    assert ended.code == 0, ended.out + ended.err


def test_results_are_written_for_other_tools(run: Run, tmp_path: Path) -> None:
    tests = """\
tests:
  - {name: good, given: [{id: 1}], expect: [{id: 1}]}
  - {name: bad, given: [{id: 1}], expect: [{id: 2}]}
"""
    ended = run(tests, "--junit", "results.xml", "--output", "json")
    assert ended.code == 4
    assert {key: ended.document[key] for key in ("passed", "failed")} == {"passed": 1, "failed": 1}
    suite = ElementTree.parse(tmp_path / "results.xml").getroot()  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    [failure] = suite.iter("failure")
    assert failure.get("message") == '- not found: {"id": 2}'


def test_results_that_cannot_be_written_are_an_error(run: Run) -> None:
    tests = "tests:\n  - {name: good, given: [{id: 1}], expect: [{id: 1}]}\n"
    ended = run(tests, "--junit", "none/results.xml")
    assert (ended.code, ended.err) == (
        1,
        "error: none/results.xml: the results cannot be written: no such file or directory\n",
    )


def test_test_files_are_found_at_any_depth(icestream: Icestream, tmp_path: Path) -> None:
    (tmp_path / "icestream.yaml").write_text(CONFIG, encoding="utf-8")
    test = "config: {}icestream.yaml\ntests:\n  - {{name: t, given: [{{id: 1}}], expect: [{{}}]}}\n"
    for folder, config in (("", ""), ("tests/deep", "../../"), (".hidden", "../")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        file = tmp_path / folder / "a.test.yaml"
        file.write_text(test.format(config), encoding="utf-8")
    assert without_times(icestream("test").out) == [
        "✓ a.test.yaml:3:5 t",
        "✓ tests/deep/a.test.yaml:3:5 t",
        "2 passed",
    ]
    assert without_times(icestream("test", "tests").out)[-1] == "1 passed"
    ended = icestream("test", "tests/deep/none.test.yaml")
    assert (ended.code, ended.err) == (
        2,
        "error: tests/deep/none.test.yaml: the file cannot be read: no such file or directory\n",
    )


def test_folder_without_test_files_says_what_they_are_called(icestream: Icestream) -> None:
    ended = icestream("test")
    assert (ended.code, ended.err) == (
        2,
        "error: no test files (*.test.yaml) in the current folder\n"
        "  Write one beside the configuration, e.g. `orders.test.yaml`, or name the files.\n",
    )


def test_test_writes_nothing(run: Run, tmp_path: Path) -> None:
    run("tests:\n  - {name: t, given: [{id: 1}], expect: [{id: 1}]}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"icestream.yaml", "orders.test.yaml"}


DEBEZIUM = """\
sources:
  shop:
    connector: kafka
    config: {brokers: "${BROKERS}", topic_pattern: "shop[.].*", format: debezium-json}
sinks:
  lake: {connector: iceberg, config: {namespace: shop}}
pipelines:
  shop: {source: shop, sink: lake}
"""


def test_debezium_events_are_expected_as_changes_of_tables(run: Run) -> None:
    ended = run(
        """\
tests:
  - name: changes of two tables
    given:
      - {op: c, after: {id: 1, name: ada}, source: {db: shop, table: people}, kafka_key: {id: 1}}
      - {op: u, after: {id: 1, name: eva}, source: {db: shop, table: people}, kafka_key: {id: 1}}
      - {op: d, before: {id: 1}, source: {db: shop, table: people}, kafka_key: {id: 1}}
      - {op: c, after: {sku: mug}, source: {db: shop, table: goods}, kafka_topic: shop.goods}
    expect:
      shop.people:
        - {_op: c, id: 1, name: ada}
        - {_op: u, id: 1, name: eva}
        - {_op: d, id: 1}
      shop.goods:
        - {_op: c, sku: mug}
  - name: an event that cannot be read stops the mirror
    given: ["{"]
    error: "record given[0] can't be decoded"
""",
        config=DEBEZIUM,
    )
    assert ended.code == 0, ended.out


def test_tables_of_a_database_cannot_be_given(run: Run) -> None:
    config = DEBEZIUM.replace("connector: kafka", "connector: postgres-cdc").replace(
        '{brokers: "${BROKERS}", topic_pattern: "shop[.].*", format: debezium-json}',
        '{host: "${HOST}", database: shop, user: me, tables: [public.orders]}',
    )
    ended = run(
        "tests:\n  - {name: t, given: [{id: 1}], dead_letters: [{reason: x}]}\n", config=config
    )
    assert (ended.code, ended.err) == (
        2,
        "error: orders.test.yaml:2:5 tests[0]: the source reads changes from a database, "
        "which a test can't give\n"
        "  Test pipelines of Kafka, files and webhooks, or check this one with `icestream "
        "preview`.\n",
    )


ENCODED = """\
sources:
  orders: {{connector: {connector}, config: {{{options}}}}}
sinks:
  lake: {{connector: iceberg, config: {{namespace: sales, table: orders, on_error: drop}}}}
pipelines:
  orders: {{source: orders, sink: lake}}
"""
AVSC = (
    '{"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}, {"name": "at", '
    '"type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "price", "type": '
    '["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]}]}'
)


@pytest.mark.parametrize(
    ("connector", "options", "given", "expect"),
    [
        (
            "kafka",
            "brokers: x, topics: [t], format: csv, schema: 'id bigint, name string, good boolean'",
            "[{id: 1, name: 'a, b', good: true}, '2,c,false', '3,d']",
            "[{id: 1, name: 'a, b', good: true}, {id: 2, name: c, good: false}]",
        ),
        (
            "kafka",
            f"brokers: x, topics: [t], format: avro, schema: '{AVSC}'",
            "[{id: 1, at: '2026-03-01T09:00:00Z', price: 19.9}, {id: 2, at: '2026-03-02'}]",
            "[{id: 1, at: '2026-03-01T09:00:00Z', price: 19.90}, {id: 2, price: null}]",
        ),
        (
            "kafka",
            "brokers: x, topics: [t], format: string",
            "[abc, null]",
            "[{value: abc}, {value: null}]",
        ),
        (
            "files",
            "path: in, format: csv, options: {header: true}",
            "['id;name', '1;ada', '2;bob']",
            "[{id;name: '1;ada'}, {id;name: '2;bob'}]",
        ),
        (
            "files",
            "path: in, format: csv, options: {header: true}",
            "[{id: 1, name: ada}, {id: 2, age: 7}]",
            "[{id: 1, name: ada}, {id: 2, age: 7}]",
        ),
        ("files", "path: in, format: parquet", "[{id: 1}, {id: 2}]", "[{id: 1}, {id: 2}]"),
        (
            "files",
            "path: in, format: parquet, schema: 'id bigint, at timestamp'",
            "[{id: 1, at: '2026-03-01T09:00:00Z'}]",
            "[{id: 1, at: '2026-03-01T10:00:00+01:00'}]",
        ),
        ("datagen", "schema: 'id bigint, name string'", "[{id: 1}]", "[{id: 1, name: null}]"),
        ("webhook", "port: 8080, path: /hooks", "[{id: 1, webhook_stream: s}]", "[{id: 1}]"),
    ],
)
def test_records_are_given_in_the_format_of_the_source(
    run: Run, connector: str, options: str, given: str, expect: str
) -> None:
    config = ENCODED.format(connector=connector, options=options)
    tests = f"tests:\n  - {{name: t, given: {given}, expect: {expect}}}\n"
    ended = run(tests, config=config)
    assert ended.code == 0, ended.out + ended.err


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (
            "format: csv, schema: 'id bigint, name string'",
            "[{ide: 1}]",
            "23 tests[0].given[0]: the lines have no column 'ide'\n  Their columns: id, name.\n",
        ),
        (
            f"format: avro, schema: '{AVSC}'",
            "[{id: 1, at: x}]",
            "23 tests[0].given[0]: column 'at': 'x' is not a timestamp\n",
        ),
        (
            f"format: avro, schema: '{AVSC}'",
            "[{id: 1, at: '2026-03-01', no: 1}]",
            "23 tests[0].given[0]: the schema has no field 'no'\n",
        ),
        (
            "format: avro, schema_registry: {url: 'http://localhost:1'}",
            "[{id: 1}]",
            "23 tests[0].given[0]: records of a schema registry can't be given in a test\n"
            "  Test the pipeline with `schema: FILE.avsc` in place of `schema_registry`.\n",
        ),
        (
            "format: string",
            "[{value: x}]",
            "23 tests[0].given[0]: records of this format can't be written from their fields\n"
            "  Give the record as text, as the source has it.\n",
        ),
    ],
)
def test_record_that_cannot_be_encoded_is_refused(
    run: Run, options: str, given: str, message: str
) -> None:
    config = ENCODED.format(connector="kafka", options=f"brokers: x, topics: [t], {options}")
    ended = run(f"tests:\n  - {{name: t, given: {given}, expect: []}}\n", config=config)
    assert (ended.code, ended.err) == (2, f"error: orders.test.yaml:2:{message}")
