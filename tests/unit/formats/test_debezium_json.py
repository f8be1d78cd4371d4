from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from tests.unit.formats.debezium_events import (
    blocks_of,
    decode,
    encoded,
    envelope,
    member,
    with_schema,
)

from icestream.contracts.changes import TOMBSTONE, UNCHANGED_COLUMNS, change_schema_of
from icestream.formats.debezium.json import DebeziumJsonDecoder

ONE, TWO = {"id": 1}, {"id": 2}
ID, NOTE = member("id", "int64"), member("note", "string")
PLACEHOLDER = "__debezium_unavailable_value"


def decoded(*events: Any, topic: str = "shop.public.orders") -> Any:
    changes = decode(DebeziumJsonDecoder(), events, topic)
    assert changes.bad == []
    return blocks_of(changes)


def test_changes_keep_their_order_and_name_their_table_and_key() -> None:
    assert decoded(
        (ONE, envelope("r", after={"id": 1, "note": "a"})),
        (TWO, envelope("c", after={"id": 2, "note": "b"})),
        (ONE, envelope("u", after={"id": 1, "note": "c"})),
        (TWO, envelope("d", before={"id": 2, "note": None})),
        (TWO, None),
    ) == [
        (
            "public.orders",
            ("id",),
            [
                {"id": 1, "note": "a", "__op": "r"},
                {"id": 2, "note": "b", "__op": "c"},
                {"id": 1, "note": "c", "__op": "u"},
                {"id": 2, "__op": "d"},
            ],
        )
    ]


def test_mysql_table_is_named_by_its_database() -> None:
    event = (ONE, envelope("c", after=ONE, connector="mysql", db="shop", schema=None))
    assert decoded(event) == [("shop.orders", ("id",), [{"id": 1, "__op": "c"}])]


@pytest.mark.parametrize("source", [{}, {"table": "x"}, {"schema": "s", "table": ""}])
@pytest.mark.parametrize("typed", [False, True])
def test_record_whose_source_names_no_table_is_bad(source: Any, typed: bool) -> None:
    nameless = {**envelope("c", after=TWO), "source": source}
    events = [envelope("c", after=ONE), nameless]
    values = [with_schema(event, ID) if typed else event for event in events]
    changes = decode(DebeziumJsonDecoder(), list(zip([ONE, TWO], values, strict=True)))

    assert blocks_of(changes) == [("public.orders", ("id",), [{"id": 1, "__op": "c"}])]
    assert [reason for _, reason in changes.bad] == ["its `source` does not name a table"]


def test_truncate_has_no_values_and_the_last_known_key_of_its_table() -> None:
    decoder = DebeziumJsonDecoder()
    decode(decoder, [(ONE, envelope("c", after=ONE))])
    assert blocks_of(decode(decoder, [(None, envelope("t"))])) == [
        ("public.orders", (), [{"__op": "t"}])
    ]
    assert blocks_of(decode(decoder, [(ONE, envelope("c", after=ONE)), (None, envelope("t"))])) == [
        ("public.orders", ("id",), [{"id": 1, "__op": "c"}, {"__op": "t"}])
    ]
    typed = [(ONE, with_schema(envelope("c", after=ONE), ID))]
    decode(decoder, typed)
    assert blocks_of(decode(decoder, [(None, with_schema(envelope("t"), ID))])) == [
        ("public.orders", ("id",), [{"__op": "t"}])
    ]


def test_tombstone_alone_deletes_by_its_key() -> None:
    assert decoded(({"a": 1, "b": "x"}, None)) == [
        ("public.orders", ("a", "b"), [{"a": 1, "b": "x", "__op": TOMBSTONE}])
    ]
    assert decoded(
        (ONE, envelope("u", after={"id": 1, "note": "a"})),
        (ONE, None),
        (TWO, envelope("c", after={"id": 2, "note": "b"})),
    ) == [
        (
            "public.orders",
            ("id",),
            [
                {"id": 1, "note": "a", "__op": "u"},
                {"id": 1, "__op": TOMBSTONE},
                {"id": 2, "note": "b", "__op": "c"},
            ],
        )
    ]


@pytest.mark.parametrize(
    ("topic", "table"),
    [("orders", "orders"), ("all.orders", "orders"), ("shop.public.my_orders", "my orders")],
)
def test_tombstone_is_applied_if_the_topic_carries_only_the_table_it_is_named_after(
    topic: str, table: str
) -> None:
    decoder = DebeziumJsonDecoder()
    events = [(ONE, envelope("c", after=ONE, table=table)), (TWO, None)]
    expected = [{"id": 1, "__op": "c"}, {"id": 2, "__op": TOMBSTONE}]
    changes = decode(decoder, events, topic)
    assert blocks_of(changes) == [(f"public.{table}", ("id",), expected)]
    later = decode(decoder, [(ONE, None)], topic)
    assert blocks_of(later) == [(f"public.{table}", ("id",), [{"id": 1, "__op": TOMBSTONE}])]
    assert (changes.ignored, later.ignored) == ({}, {})


@pytest.mark.parametrize(
    ("topic", "tables"),
    [("shop.public.orders", ["orders", "people"]), ("rerouted", ["orders"])],
)
def test_tombstone_of_an_unknown_table_is_counted(topic: str, tables: list[str]) -> None:
    decoder = DebeziumJsonDecoder()
    events = [(ONE, envelope("c", after=ONE, table=table)) for table in tables]
    deleted = [(ONE, envelope("d", before=ONE, table=tables[0])), (ONE, None)]
    changes = decode(decoder, [*events, (TWO, None), *deleted], topic)
    assert not any(TOMBSTONE in str(rows) for _, _, rows in blocks_of(changes))
    assert changes.ignored == {topic: 1}, "a tombstone right after its delete adds nothing"
    assert decode(decoder, [(ONE, None), (TWO, None)], topic).ignored == {topic: 2}


def test_tombstone_has_the_types_of_the_key_schema() -> None:
    schema = {"type": "struct", "fields": [member("id", "int32", "io.debezium.time.Date")]}
    changes = decode(DebeziumJsonDecoder(), [({"schema": schema, "payload": {"id": 19782}}, None)])
    assert str(changes.blocks[0].schema.field("id").type) == "date32[day]"


def test_delete_without_a_before_row_uses_the_key() -> None:
    assert decoded((ONE, envelope("d")), (TWO, envelope("c", after=TWO))) == [
        ("public.orders", ("id",), [{"id": 1, "__op": "d"}, {"id": 2, "__op": "c"}])
    ]


def test_placeholder_of_every_type_is_an_unchanged_column() -> None:
    numbers = list(PLACEHOLDER.encode())
    base64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    row = {"id": 1, "a": PLACEHOLDER, "b": base64, "c": [PLACEHOLDER], "d": numbers, "e": "x"}
    whole = {"id": 2, "a": "y", "b": "AA==", "c": ["z", None], "d": [95], "e": None}
    [(_, _, rows)] = decoded((ONE, envelope("u", after=row)), (TWO, envelope("u", after=whole)))
    assert rows[0] == {"id": 1, "e": "x", "__op": "u", UNCHANGED_COLUMNS: ["a", "b", "c", "d"]}
    assert rows[1]["c"] == ["z", None]


def test_placeholder_can_be_configured() -> None:
    event = (ONE, envelope("u", after={"id": 1, "a": "(same)", "b": PLACEHOLDER}))
    [(_, _, rows)] = blocks_of(decode(DebeziumJsonDecoder("(same)"), [event]))
    assert rows == [{"id": 1, "b": PLACEHOLDER, "__op": "u", UNCHANGED_COLUMNS: ["a"]}]


def test_new_key_without_an_unchanged_large_value_is_bad() -> None:
    changes = decode(
        DebeziumJsonDecoder(),
        [
            (ONE, envelope("d", before={"id": 1, "a": None})),
            (TWO, envelope("c", after={"id": 2, "a": PLACEHOLDER})),
        ],
    )
    assert blocks_of(changes) == [("public.orders", ("id",), [{"id": 1, "__op": "d"}])]
    assert changes.bad == [
        (
            1,
            "column 'a': the row's key changed and this large value did not, so it was not sent. "
            "Set REPLICA IDENTITY FULL on the table",
        )
    ]


def test_change_of_a_table_without_a_key_is_bad_and_an_insert_is_not() -> None:
    row = {"v": 1}
    changes = decode(
        DebeziumJsonDecoder(),
        [
            (None, envelope("c", after=row)),
            (None, envelope("d", before=row)),
            (None, None),
            (None, envelope("u", before=row, after=row)),
        ],
    )
    reason = (
        "table 'public.orders' has no key to identify the changed row. Set one with the "
        "connector's `message.key.columns`"
    )
    assert blocks_of(changes) == [("public.orders", (), [{"v": 1, "__op": "c"}])]
    assert changes.bad == [(1, reason), (3, reason)]


def test_bad_records_do_not_affect_their_neighbours() -> None:
    changes = decode(
        DebeziumJsonDecoder(),
        [
            (ONE, b"nonsense"),
            (ONE, envelope("c", after=ONE)),
            (ONE, envelope("u")),
            (ONE, envelope("x", after=ONE)),
            (b"\xff", None),
        ],
    )
    assert blocks_of(changes) == [("public.orders", ("id",), [{"id": 1, "__op": "c"}])]
    assert changes.bad == [
        (0, "not JSON: an object starts with '{'"),
        (2, "no `after` row (op 'u')"),
        (3, "unknown op 'x'"),
        (
            4,
            "its key does not identify the row to delete: not JSON: byte 0xff at position 0 is not "
            "UTF-8 text; is it compressed, or Avro?",
        ),
    ]


def test_producer_cannot_forge_a_tombstone() -> None:
    flat = {"id": 1, "__op": TOMBSTONE}
    changes = decode(DebeziumJsonDecoder(), [(ONE, envelope(TOMBSTONE, after=ONE)), (ONE, flat)])
    assert blocks_of(changes) == []
    assert changes.bad == [
        (0, "unknown op '__tombstone'"),
        (1, "unknown op '__tombstone'"),
    ]


def test_events_about_the_connector_are_skipped() -> None:
    begin = {"status": "BEGIN", "id": "7:1", "event_count": None, "data_collections": None}
    ddl = {"source": {"db": "d"}, "databaseName": "d", "ddl": "DROP TABLE t", "tableChanges": []}
    message = {"op": "m", "source": {"db": "d"}, "message": {"prefix": "p", "content": ""}}
    assert decoded(({"id": "7:1"}, {**begin, "ts_ms": 1})) == []
    assert decoded(({"serverName": "shop"}, {"ts_ms": 1})) == []
    assert decoded(({"databaseName": "d"}, ddl)) == []
    assert decoded(({"prefix": "p"}, message)) == []
    for name in ("common.Heartbeat", "common.TransactionMetadataValue", "mysql.SchemaChangeValue"):
        schema = {"type": "struct", "name": f"io.debezium.connector.{name}", "fields": [ID]}
        assert decoded((ONE, {"schema": schema, "payload": ONE})) == []


def test_tables_of_one_topic_are_separated_with_their_own_columns() -> None:
    assert decoded(
        (ONE, envelope("c", after={"id": 1, "a": "x"})),
        (TWO, envelope("c", after={"id": 2, "b": 1.5}, table="items")),
        (TWO, envelope("c", after={"id": 2, "a": "y"})),
        topic="all",
    ) == [
        (
            "public.orders",
            ("id",),
            [{"id": 1, "a": "x", "__op": "c"}, {"id": 2, "a": "y", "__op": "c"}],
        ),
        ("public.items", ("id",), [{"id": 2, "b": 1.5, "__op": "c"}]),
    ]


def test_blocks_are_cut_where_the_schema_changes_and_not_at_every_record() -> None:
    events = [
        (ONE, with_schema(envelope("c", after={"id": 1}), ID)),
        (TWO, with_schema(envelope("c", after={"id": 2}), ID)),
        (ONE, with_schema(envelope("u", after={"id": 1, "note": "a"}), ID, NOTE)),
        (TWO, None),
    ]
    assert decoded(*events) == [
        ("public.orders", ("id",), [{"id": 1, "__op": "c"}, {"id": 2, "__op": "c"}]),
        (
            "public.orders",
            ("id",),
            [{"id": 1, "note": "a", "__op": "u"}, {"id": 2, "__op": TOMBSTONE}],
        ),
    ]


def test_change_of_key_fields_starts_a_new_block() -> None:
    row = {"id": 1, "shop": 7}
    assert [
        (key, len(rows))
        for _, key, rows in decoded(
            ({"id": 1}, envelope("c", after=row)),
            ({"id": 1, "shop": 7}, envelope("u", after=row)),
            ({"id": 1, "shop": 7}, envelope("u", after=row)),
        )
    ] == [(("id",), 1), (("id", "shop"), 2)]


def test_strings_stay_strings_and_numbers_numbers_without_a_schema() -> None:
    row = {"id": 1, "day": "2024-02-29", "at": "2024-02-29T10:34:56Z", "n": 1.0, "many": [1, 2]}
    changes = decode(DebeziumJsonDecoder(), [(ONE, envelope("c", after=row))])
    assert {field.name: str(field.type) for field in changes.blocks[0].schema} == {
        "id": "int64",
        "day": "string",
        "at": "string",
        "n": "double",
        "many": "list<item: int64>",
        "__op": "string",
    }
    [(_, _, rows)] = blocks_of(changes)
    assert rows == [{**row, "__op": "c"}]


@pytest.mark.parametrize("number", ["2e308", "-1e999", "1e-400", "0.12345678901234567890123"])
def test_number_that_no_double_holds_keeps_its_digits_without_a_schema(number: str) -> None:
    value = json.dumps(envelope("c", after={"id": 1, "n": "N"})).replace('"N"', number)

    [(_, _, [row])] = decoded((ONE, value.encode()))

    assert isinstance(row["n"], str)
    assert Decimal(row["n"]) == Decimal(number)


def test_mixed_values_without_a_schema_take_the_slow_path() -> None:
    [(_, _, rows)] = decoded(
        (
            ONE,
            envelope("c", after={"id": 1, "x": 1.5, "y": 1, "any": {"scale": 3, "value": "AeJA"}}),
        ),
        (TWO, envelope("c", after={"id": 2, "x": "Infinity", "y": "words", "any": None})),
    )
    assert rows == [
        {"id": 1, "x": 1.5, "y": "1", "any": "123.456", "__op": "c"},
        {"id": 2, "x": float("inf"), "y": "words", "__op": "c"},
    ]


def test_flattened_records_are_rows_of_the_table_of_their_topic() -> None:
    assert decoded(
        (ONE, {"id": 1, "source": "web", "__op": "c", "__deleted": "false"}),
        (ONE, {"id": 1, "source": "app", "__op": "u", "__deleted": "false"}),
        (TWO, {"id": 2, "source": None, "__deleted": "true"}),
    ) == [
        (
            "public.orders",
            ("id",),
            [
                {"id": 1, "source": "web", "__op": "c"},
                {"id": 1, "source": "app", "__op": "u"},
                {"id": 2, "__op": "d"},
            ],
        )
    ]
    schema = {
        "type": "struct",
        "name": "shop.Value",
        "fields": [ID, NOTE, member("__op", "string")],
    }
    payload = {"id": 1, "note": "a", "__op": "r"}
    assert decoded((ONE, {"schema": schema, "payload": payload})) == [
        ("public.orders", ("id",), [{"id": 1, "note": "a", "__op": "r"}])
    ]


def test_schema_is_found_whatever_the_whitespace() -> None:
    event = with_schema(envelope("c", after={"id": 1}), member("id", "int32"))
    spaced = encoded(event).replace(b'"schema":{', b' "schema" : {', 1)  # type: ignore[union-attr]
    changes = decode(
        DebeziumJsonDecoder(), [(ONE, spaced.replace(b',"payload":', b', "payload" : '))]
    )
    assert str(changes.blocks[0].schema.field("id").type) == "int32"
    assert decoded((ONE, {"schema": None, "payload": envelope("c", after=ONE)})) == [
        ("public.orders", ("id",), [{"id": 1, "__op": "c"}])
    ]


def test_unreadable_schema_of_an_event_is_reported() -> None:
    event = with_schema(envelope("c", after=ONE), member("id", "int128"))
    assert decode(DebeziumJsonDecoder(), [(ONE, event)]).bad == [
        (0, "its schema can't be read: unknown type 'int128'")
    ]


def test_used_decoder_can_be_pickled() -> None:
    decoder = DebeziumJsonDecoder("(same)")
    decode(decoder, [(ONE, with_schema(envelope("c", after=ONE), ID))])
    copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301
    assert copy.placeholder == "(same)"
    assert blocks_of(decode(copy, [(ONE, envelope("c", after=ONE))]))


def test_lone_surrogate_makes_its_record_bad() -> None:
    events = [
        (ONE, envelope("c", after={"id": 1, "note": "\ud83d\ude00"})),
        (TWO, envelope("c", after={"id": 2, "note": "x\ud800"})),
    ]
    changes = decode(DebeziumJsonDecoder(), events)
    assert changes.bad == [(1, "not JSON: lone surrogate, which UTF-8 can't encode")]
    assert [row["note"] for block in changes.blocks for row in block.to_pylist()] == ["😀"]


def test_list_that_starts_with_null_keeps_its_items() -> None:
    for value in ({"id": 1, "x": [None, "a"]}, envelope("c", after={"id": 1, "x": [None, "a"]})):
        [(_, _, [row])] = decoded((ONE, value))
        assert row["x"] == [None, "a"]


GOOD = (b'{"id": 9}', envelope("c", None, {"id": 9}))
STRUCT = {"type": "struct", "fields": [{"type": "int32", "field": "id"}]}


def headed(schema: Any, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def decimal_with(parameters: Any) -> dict[str, Any]:
    name = "org.apache.kafka.connect.data.Decimal"
    kind = {"type": "bytes", "name": name, "parameters": parameters, "field": "a"}
    return {"type": "struct", "fields": [kind]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'{"id": 1}', envelope("c", None, {"id": 1, "__op": "x"})),
        (b'{"id": 1}', envelope("u", None, {"id": 1, "__unsent": "x"})),
        (b'{"id": 1}', headed({"type": "struct", "name": "x.Envelope", "fields": []}, {})),
        (b'{"id": 1}', headed({"type": "struct", "fields": 5}, {})),
        (b'{"id": 1}', headed({"type": "struct", "fields": [5]}, {})),
        (b'{"id": 1}', headed(decimal_with({"scale": "x"}), {"a": "AQ=="})),
        (b'{"id": 1}', headed(decimal_with([1]), {"a": "AQ=="})),
        (b'{"id": 1}', headed(decimal_with({"scale": "-2147483648"}), {"a": "AQ=="})),
        (headed({"type": "struct", "fields": 5}, {"id": 1}), None),
        (headed(STRUCT, {"id": "x"}), None),
        (b'{"id": 1}', b'{"id": 1, "__deleted": {"a": 1}}'),
        (b'{"id": 1}', b'{"id": 1, "__op": [1]}'),
        (b'{"id": 1}', b'{"__op": "u"}'),
        (b'{"id": 1}', b'{"id": 1, "a": "\\ud800"}'),
        (b'{"id": 1}', b'{"op": "c", "source": {"table": "\\ud800"}, "after": {"id": 1}}'),
        (b'{"id": 1}', envelope("c", None, {"id": 1, "v": {"scale": 2147483647, "value": "AQ=="}})),
        (b'{"id": 1}', envelope("c", None, {"id": 1, "v": {"scale": None, "value": "AQ=="}})),
        (b'{"\\ud800": 1}', None),
    ],
)
def test_event_that_no_connector_writes_does_not_affect_its_neighbours(
    key: Any, value: Any
) -> None:
    changes = decode(DebeziumJsonDecoder(), [GOOD, (key, value), GOOD])

    assert [place for place, _ in changes.bad] in ([1], [])
    rows = [row for _, _, rows in blocks_of(changes) for row in rows if row.get("id") == 9]
    assert [row["__op"] for row in rows] == ["c", "c"]


def test_rows_are_traced_back_to_their_records() -> None:
    changes = decode(
        DebeziumJsonDecoder(),
        [
            (ONE, envelope("c", after={"id": 1})),
            (ONE, b"broken"),
            (ONE, envelope("c", after={"id": 1}, table="tags")),
            (TWO, envelope("c", after={"id": 2})),
            (TWO, envelope("d", before={"id": 2})),
        ],
    )

    traced = {
        change_schema_of(block.schema).table[-1]: indices.tolist()
        for block, indices in zip(changes.blocks, changes.records, strict=True)
    }
    assert traced == {"orders": [0, 3, 4], "tags": [2]}
