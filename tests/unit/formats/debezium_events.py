"""Debezium events for tests, reduced to the fields that matter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.changes import DecodedChanges, change_schema_of
from icestream.contracts.decoder import Records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.changes import ChangeDecoder

TOPIC = "shop.public.orders"
Event = tuple[Any, Any]


def encoded(value: Any) -> bytes | None:
    """Return a value as JSON; bytes and None unchanged."""
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value, separators=(",", ":")).encode()


def envelope(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    """Return a change of `public.orders`, or of the table that `source` names."""
    origin = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
    return {
        "before": before,
        "after": after,
        "source": {**origin, "snapshot": "false", "lsn": 38481864, **source},
        "transaction": None,
        "op": op,
        "ts_ms": 1794770114365,
    }


def decode(decoder: ChangeDecoder, events: Sequence[Event], topic: str = TOPIC) -> DecodedChanges:
    """Decode events, each a key and a value."""
    values = pa.array([encoded(value) for _, value in events], pa.binary())
    extra = {
        "record_key": pa.array([encoded(key) for key, _ in events], pa.binary()),
        "record_topic": pa.array([topic] * len(events), pa.string()),
    }
    return decoder.decode_changes(Records(values, extra, str))


def blocks_of(changes: DecodedChanges) -> list[tuple[str, tuple[str, ...], list[dict[str, Any]]]]:
    """Return the table, key and rows of each block; nulls are left out of rows."""
    tables = []
    for block in changes.blocks:
        shape = change_schema_of(block.schema)
        assert not shape.is_whole
        rows = [
            {name: value for name, value in row.items() if value is not None}
            for row in block.to_pylist()
        ]
        tables.append((".".join(shape.table), shape.key, rows))
    return tables


def member(name: str, kind: str, meaning: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a field of a Connect schema."""
    named = {} if meaning is None else {"name": meaning}
    return {"type": kind, "optional": True, "field": name, **named, **more}


def with_schema(value: dict[str, Any], *members: Any) -> Any:
    """Return an envelope with a schema whose rows have these members."""
    row = {"type": "struct", "fields": list(members), "optional": True, "name": "shop.Value"}
    source = {
        "type": "struct",
        "fields": [member("db", "string"), member("schema", "string"), member("table", "string")],
        "name": "io.debezium.connector.postgresql.Source",
        "field": "source",
    }
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, source, member("op", "string")]
    schema = {"type": "struct", "fields": fields, "name": "shop.public.orders.Envelope"}
    return {"schema": schema, "payload": value}
