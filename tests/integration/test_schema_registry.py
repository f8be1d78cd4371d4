"""The schema registry's real client: a real registry, and none."""

from __future__ import annotations

import json
import pickle
import socket
import struct
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from pydantic import SecretStr

from icestream.errors import UnreachableError
from icestream.formats import schema_registry as registry_module
from icestream.formats.avro import AvroDecoder
from icestream.formats.schema_registry import Registry, RegistryOptions

if TYPE_CHECKING:
    from tests.fixtures.schema_registry import SchemaRegistry


def test_refused_connection_to_the_registry_is_explained() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        options = RegistryOptions(url=url, user="u", password=SecretStr("pw"))
        decoder = AvroDecoder(registry=Registry(options))
        again: AvroDecoder = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - our own bytes

        with pytest.raises(UnreachableError) as caught:
            again.decode(
                pa.array([b"\x00\x00\x00\x00\x07x"], pa.binary()), pa.schema([("id", pa.int64())])
            )

    assert str(caught.value) == (
        f"schema registry {url}: connection to the schema registry refused\n"
        "  Is the server running? Check `schema_registry.url`."
    )


def bad_records(registry: Registry, schema_id: int) -> tuple[tuple[int, str], ...]:
    value = struct.pack(">bI", 0, schema_id) + b"\x0e"
    return (
        AvroDecoder(registry=registry)
        .decode(pa.array([value], pa.binary()), pa.schema([("id", pa.int64())]))
        .bad
    )


def test_schema_registered_after_the_first_lookup_is_found(
    schema_registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_RETRY_SECS", 0.0)
    monkeypatch.setattr(registry_module, "_RECHECK_SECS", 0.0)
    registry = Registry(RegistryOptions(url=schema_registry.url))
    for _ in range(10):  # another test may take the next id
        name = f"r{uuid4().hex}"
        schema = {"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}]}
        number = schema_registry.register(name, json.dumps(schema)) + 1
        before = bad_records(registry, number)
        later = {**schema, "name": f"{name}b"}
        if before and schema_registry.register(f"{name}b", json.dumps(later)) == number:
            break
    else:
        pytest.fail("ten times somebody else took the next id")

    assert before == ((0, f"schema id {number} is not in the registry"),)
    assert bad_records(registry, number) == ()
    largest = (1 << 32) - 1
    for missing in (largest, largest >> 1):
        reason = f"schema id {missing} is not in the registry"
        assert bad_records(registry, missing) == ((0, reason),)


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("PROTOBUF", 'syntax = "proto3"; message R { int64 id = 1; }'),
        ("JSON", '{"type": "object", "properties": {"id": {"type": "integer"}}}'),
    ],
)
def test_record_of_a_schema_that_is_not_avro_is_bad(
    schema_registry: SchemaRegistry, kind: str, schema: str
) -> None:
    number = schema_registry.register(f"other-{uuid4().hex}", schema, kind)
    registry = Registry(RegistryOptions(url=schema_registry.url))

    assert bad_records(registry, number) == ((0, f"schema id {number} is {kind}, not Avro"),)
