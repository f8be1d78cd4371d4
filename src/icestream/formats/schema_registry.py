"""A client of schema registries with Confluent's API."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, SecretStr

from icestream.contracts.faults import exception_text, first_match, transport_faults
from icestream.contracts.options import HttpAddress, Options
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    PlanError,
    RefusedError,
    TransientError,
)
from icestream.formats.blocks import BadValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from icestream.contracts.decoder import FormatSettings


_TRANSPORT = transport_faults("the schema registry", "`schema_registry.url`")
*_, _NO_RESPONSE = _TRANSPORT
_NOT_FOUND = 404
_TOO_MANY_REQUESTS = 429
_AVRO = "AVRO"
_MAX_ID = (1 << 31) - 1
# A replica of the registry may lag behind the producer that registered a schema, so the lookup of
# an unknown id is retried for this long, and later once in a while.
_RETRY_SECS = 3.0
_PAUSE_SECS = 0.2
# A broken producer may write ids that do not exist. Such an id costs the full wait once, and only a
# few ids per minute do.
_MAX_WAITS, _WAITS_SECS = 5, 60.0
_RECHECK_SECS = 5.0
_MAX_MISSING = 1000


class RegistryOptions(Options):
    """Address and credentials of a schema registry."""

    url: HttpAddress = Field(description="Address of the registry's Confluent API.")
    user: str | None = Field(None, description="User name for basic authentication.")
    password: SecretStr | None = Field(None, description="Password for basic authentication.")


class AvroSchema(NamedTuple):
    """A schema of a registry.

    Attributes:
        schema: the schema as parsed JSON.
        named: the schemas that it refers to, by name.
    """

    schema: Any
    named: dict[str, Any]


class _NoSuchSchemaError(Exception):
    """The registry lacks the schema, or one that it refers to."""


_Login = tuple[str, str | None, str | None]
# One client, and one copy of each schema, per process: the schema of an id never changes. A string
# in place of a schema says why it can't be used. Credentials are part of the key, since another
# user may see other schemas.
_clients: dict[_Login, SchemaRegistryClient] = {}
_schemas: dict[tuple[_Login, int], AvroSchema | str] = {}
# When an unknown id was last looked up; the oldest are evicted.
_missing: dict[tuple[_Login, int], float] = {}


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that the registry client raises for a failed connection.

    It uses one of two HTTP packages, depending on its version and Python's.
    """
    loaded = [sys.modules[name] for name in ("httpx2", "httpx") if name in sys.modules]
    return (OSError, *(module.TransportError for module in loaded))


class Registry:
    """Fetches schemas by id and by subject. Holds options only, so it can be pickled."""

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options

    def by_id(self, schema_id: int) -> AvroSchema:
        """Return the schema of an id.

        Raises:
            BadValueError: no schema has that id, or it is not an Avro schema.
            TransientError: the registry does not respond.
        """
        key = (self._login(), schema_id)
        schema = _schemas.get(key)
        if schema is None:
            schema = self._fetch(schema_id)
            _schemas[key] = schema
        if isinstance(schema, str):
            raise BadValueError(schema)
        return schema

    def latest(self, subject: str) -> AvroSchema | None:
        """Return the latest schema of a subject; None if there is no such subject.

        Raises:
            PlanError: it is not an Avro schema.
        """
        try:
            registered = self._request(lambda client: client.get_latest_version(subject))
            schema = self._read(registered.schema)
        except _NoSuchSchemaError:
            return None
        if isinstance(schema, str):
            raise PlanError(
                f"the latest schema of subject {subject!r} {schema}",
                where=self._where(),
                todo="Set `format` to the format of the topic's records.",
            )
        return schema

    def _fetch(self, schema_id: int) -> AvroSchema | str:
        """Fetch a schema, waiting a while for one that the registry does not have yet."""
        missing = f"schema id {schema_id} is not in the registry"
        key, now = (self._login(), schema_id), time.monotonic()
        last_lookup = _missing.get(key)
        is_recent = last_lookup is not None and now - last_lookup < _RECHECK_SECS
        if schema_id > _MAX_ID or is_recent:
            raise BadValueError(missing)
        recent = sum(
            key[0] == login and now - at < _WAITS_SECS for (login, _), at in [*_missing.items()]
        )
        retries = last_lookup is None and recent < _MAX_WAITS
        deadline = now + _RETRY_SECS if retries else now
        while True:
            try:
                schema = self._read(self._request(lambda client: client.get_schema(schema_id)))
            except _NoSuchSchemaError:  # noqa: PERF203 - retries
                if time.monotonic() >= deadline:
                    break
                time.sleep(_PAUSE_SECS)
            else:
                return f"schema id {schema_id} {schema}" if isinstance(schema, str) else schema
        _missing.pop(key, None)
        _missing[key] = time.monotonic()
        if len(_missing) > _MAX_MISSING:
            _missing.pop(next(iter(_missing)), None)
        raise BadValueError(missing)

    def _read(self, schema: Schema) -> AvroSchema | str:
        """Return a schema with those that it refers to; a string says why it can't be used."""
        if (schema.schema_type or _AVRO) != _AVRO:
            return f"is {schema.schema_type}, not Avro"
        named: dict[str, Any] = {}
        for reference in schema.references or ():
            version = self._version(str(reference.subject), int(reference.version or 0))
            referenced = self._read(version)
            if isinstance(referenced, str):
                return referenced
            named.update(referenced.named)
            named[str(reference.name)] = referenced.schema
        try:
            return AvroSchema(json.loads(schema.schema_str or "{}"), named)
        except (ValueError, RecursionError):
            return "is not JSON"

    def _version(self, subject: str, version: int) -> Schema:
        registered = self._request(lambda client: client.get_version(subject, version))
        schema: Schema = registered.schema
        return schema

    def _login(self) -> _Login:
        secret = self.options.password
        password = None if secret is None else secret.get_secret_value()
        return self.options.url, self.options.user, password

    def _request(self, call: Callable[[SchemaRegistryClient], Any]) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return call(self._client())
        except SchemaRegistryError as exc:
            if exc.http_status_code == _NOT_FOUND:
                raise _NoSuchSchemaError from None
            raise self._fault(exc.http_status_code, exc.error_message) from exc
        except _transport_errors() as exc:
            raise self._transport_error(exc) from exc

    def _transport_error(self, exc: Exception) -> IcestreamError:
        matched = first_match(_TRANSPORT, exception_text(exc), self._where())
        return matched or _NO_RESPONSE.to_error(self._where())

    def _fault(self, status: int, message: str) -> Exception:
        if status in (401, 403):
            return RefusedError(
                f"the registry refused access ({status})",
                where=self._where(),
                todo="Check `schema_registry.user` and `schema_registry.password`.",
            )
        is_transient = status >= 500 or status == _TOO_MANY_REQUESTS
        kind = TransientError if is_transient else ConnectorError
        return kind(f"the registry answered {status}: {message}", where=self._where())

    def _where(self) -> str:
        return f"schema registry {self.options.url}"

    def _client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        login = self._login()
        client = _clients.get(login)
        if client is None:
            url, user, password = login
            settings: dict[str, Any] = {"url": url, "timeout": 10, "max.retries": 1}
            if user is not None:
                settings["basic.auth.user.info"] = f"{user}:{password or ''}"
            client = _clients[login] = SchemaRegistryClient(settings)
        return client


def registry_of(settings: FormatSettings) -> Registry | None:
    """Return the registry in a source's settings; None if there is none."""
    options = settings.registry
    return Registry(options) if isinstance(options, RegistryOptions) else None
