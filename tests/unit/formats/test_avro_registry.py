"""The registry client against a small test registry: caching, retries, errors and secrets."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from icestream.errors import ConfigError, ConnectorError, PlanError, RefusedError, TransientError
from icestream.formats import schema_registry as registry_module
from icestream.formats.avro import AvroDecoder
from icestream.formats.schema_registry import Registry, RegistryOptions
from icestream.sources.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = pa.schema([("id", pa.int64())])
AVRO = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
SECRET = "s3cr3t-of-bob"  # noqa: S105 - planted, to be looked for


class SmallRegistry:
    """A registry that serves the schemas of a test and counts requests."""

    def __init__(self) -> None:
        self.schemas: dict[str, dict[str, Any]] = {}
        self.status: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self.logins: set[str] = set()
        self.appear_after: dict[str, int] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = owner.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # How often it checks for shutdown; the default of half a second adds up.
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path: str, login: str) -> tuple[int, bytes]:
        path = path.partition("?")[0]
        self.requests[path] += 1
        self.logins.add(login)
        schema = self.schemas.get(path)
        if path in self.status:
            return self.status[path], json.dumps({"error_code": 1, "message": "no"}).encode()
        if schema is None or self.requests[path] <= self.appear_after.get(path, 0):
            return 404, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
        return 200, json.dumps(schema).encode()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallRegistry]:
    monkeypatch.setattr(registry_module, "_PAUSE_SECS", 0.01)
    monkeypatch.setattr(registry_module, "_RETRY_SECS", 0.05)
    registry = SmallRegistry()
    yield registry
    registry.server.shutdown()
    registry.server.server_close()


def path_of(number: int) -> str:
    return f"/schemas/ids/{number}"


def value(number: int) -> bytes:
    return struct.pack(">bI", 0, number) + b"\x0e"  # the long 7


def decode(registry: Registry, *numbers: int) -> Any:
    values = pa.array([value(number) for number in numbers], pa.binary())
    return AvroDecoder(registry=registry).decode(values, COLUMNS)


def test_lookup_waits_for_a_schema_that_is_being_registered(
    small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_RETRY_SECS", 60.0)
    small.schemas[path_of(1)] = {"schema": json.dumps(AVRO)}
    small.appear_after[path_of(1)] = 3

    decoded = decode(Registry(RegistryOptions(url=small.url)), 1)

    assert (decoded.bad, decoded.rows.to_pylist()) == ((), [{"id": 7}])


def test_next_batch_finds_a_schema_that_was_registered_later(
    small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(RegistryOptions(url=small.url))
    reason = "schema id 2 is not in the registry"

    assert decode(registry, 2, 2).bad == ((0, reason), (1, reason))
    requests = small.requests[path_of(2)]
    assert decode(registry, 2).bad == ((0, reason),)
    assert small.requests[path_of(2)] == requests, (
        "a missing schema is remembered for a few seconds"
    )

    small.schemas[path_of(2)] = {"schema": json.dumps(AVRO)}
    monkeypatch.setattr(registry_module, "_RECHECK_SECS", 0.0)
    assert decode(registry, 2).rows.to_pylist() == [{"id": 7}]
    assert decode(registry, 2).bad == ()
    assert small.requests[path_of(2)] == requests + 1, "a schema is fetched once"


def test_unknown_id_does_not_prevent_waiting_for_another(
    small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(RegistryOptions(url=small.url))
    assert len(decode(registry, 50).bad) == 1
    monkeypatch.setattr(registry_module, "_RETRY_SECS", 60.0)
    small.schemas[path_of(51)] = {"schema": json.dumps(AVRO)}
    small.appear_after[path_of(51)] = 3

    assert decode(registry, 51).rows.to_pylist() == [{"id": 7}]


def test_many_unknown_ids_cost_few_waits(
    small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_MAX_MISSING", 50)
    decoded = decode(Registry(RegistryOptions(url=small.url)), *range(100, 200), 2**32 - 1)

    assert len(decoded.bad) == 101
    assert all(small.requests[path_of(number)] == 1 for number in range(105, 200))
    assert small.requests[path_of(2**32 - 1)] == 0
    assert len(registry_module._missing) == 50


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"schemaType": "PROTOBUF", "schema": "message r {}"}, "schema id 3 is PROTOBUF, not Avro"),
        ({"schemaType": "JSON", "schema": '{"type":"object"}'}, "schema id 3 is JSON, not Avro"),
        ({"schema": "message r {}"}, "schema id 3 is not JSON"),
        (
            {"schema": '"string"'},
            "its schema can't be used: schema: the Avro schema is not a record",
        ),
        ({"schema": '{"type":"record"}'}, "its schema can't be used: 'fields'"),
    ],
)
def test_record_with_a_schema_that_is_not_avro_is_bad(
    small: SmallRegistry, answer: dict[str, Any], reason: str
) -> None:
    small.schemas[path_of(3)] = answer
    small.schemas[path_of(4)] = {"schema": json.dumps(AVRO)}

    decoded = decode(Registry(RegistryOptions(url=small.url)), 3, 4, 3)

    assert decoded.bad == ((0, reason), (2, reason))
    assert decoded.rows.to_pylist() == [{"id": 7}]
    assert small.requests[path_of(3)] == 1


def test_schema_with_a_missing_reference_is_fetched_again(
    small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = {"type": "record", "name": "inner", "fields": [{"name": "x", "type": "long"}]}
    outer = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "inner"}]}
    references = [{"name": "inner", "subject": "inner", "version": 1}]
    small.schemas[path_of(5)] = {"schema": json.dumps(outer), "references": references}
    registry = Registry(RegistryOptions(url=small.url))
    monkeypatch.setattr(registry_module, "_RECHECK_SECS", 0.0)

    assert decode(registry, 5).bad == ((0, "schema id 5 is not in the registry"),)

    small.schemas["/subjects/inner/versions/1"] = {
        "subject": "inner", "version": 1, "id": 6, "schema": json.dumps(inner)
    }  # fmt: skip
    assert AvroDecoder(registry=registry).infer([value(5)]) == pa.schema(
        [("id", pa.struct([("x", pa.int64())]))]
    )


def test_subject_that_is_not_avro_is_refused(small: SmallRegistry) -> None:
    small.schemas["/subjects/t-value/versions/latest"] = {
        "subject": "t-value", "version": 1, "id": 8, "schemaType": "PROTOBUF", "schema": "x"
    }  # fmt: skip
    registry = Registry(RegistryOptions(url=small.url))

    with pytest.raises(PlanError) as caught:
        AvroDecoder(registry=registry, subjects=("t-value",)).infer([])

    assert str(caught.value) == (
        f"schema registry {small.url}: the latest schema of subject 't-value' is PROTOBUF, not "
        "Avro\n"
        "  Set `format` to the format of the topic's records."
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, TransientError), (503, TransientError), (401, RefusedError), (422, ConnectorError)],
)
def test_error_response_of_the_registry_is_raised(
    small: SmallRegistry, status: int, kind: type[Exception]
) -> None:
    small.status[path_of(9)] = status
    options = RegistryOptions(url=small.url, user="bob", password=SecretStr(SECRET))

    with pytest.raises(kind) as caught:
        decode(Registry(options), 9)

    assert type(caught.value) is kind
    assert SECRET not in f"{caught.value} {caught.value!r} {options!r}"


def test_sources_with_one_address_keep_their_own_credentials(small: SmallRegistry) -> None:
    small.schemas[path_of(1)] = {"schema": json.dumps(AVRO)}
    logins = set()
    for user, password in (("ann", "one"), ("ann", "two"), ("bob", "one"), (None, None)):
        secret = None if password is None else SecretStr(password)
        decode(Registry(RegistryOptions(url=small.url, user=user, password=secret)), 1)
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        logins.add("" if user is None else f"Basic {encoded}")

    assert small.logins == logins


def test_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        RegistryOptions(url=f"http://bob:{SECRET}@127.0.0.1:1")

    assert "contains a user or a password, which would be shown; remove them" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_broker_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaOptions(brokers=(f"bob:{SECRET}@127.0.0.1:9092",), topics=("t",))

    assert "`brokers` contains a user or a password" in str(caught.value)
    assert SECRET not in str(caught.value)
