"""A schema registry with Confluent's API."""

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
*_, _NO_ANSWER = _TRANSPORT
_NOT_FOUND = 404
_TOO_MANY_REQUESTS = 429
_AVRO = "AVRO"
_LARGEST_ID = (1 << 31) - 1
# A replica of the registry may lag behind the producer that registered a schema. So an unknown id
# is asked for again this long, and from then on once in a while.
_PATIENCE_SECS = 3.0
_PAUSE_SECS = 0.2
# An id of no schema at all, which a broken producer may write, costs the whole wait once; and a few
# such ids a minute do, not each of thousands.
_MOST_WAITS, _WAITS_SECS = 5, 60.0
_ASK_AGAIN_SECS = 5.0
_MOST_MISSING = 1000


class RegistryOptions(Options):
    """Address and credentials of a schema registry."""

    url: HttpAddress = Field(description="Address of the registry's Confluent API.")
    user: str | None = Field(None, description="User name for basic authentication.")
    password: SecretStr | None = Field(None, description="Password for basic authentication.")


class AvroSchema(NamedTuple):
    """A schema of a registry.

    Attributes:
        schema: as parsed JSON.
        named: the types of other schemas that it refers to, by name.
    """

    schema: Any
    named: dict[str, Any]


class _NoSuchSchemaError(Exception):
    """The registry has no such schema, or lacks one that it refers to."""


_Login = tuple[str, str | None, str | None]
# One client and one copy of each schema a process: a schema's id never changes its meaning. A text
# in place of a schema says why it can't be used. Credentials are part of the key: another user may
# see other schemas.
_clients: dict[_Login, SchemaRegistryClient] = {}
_schemas: dict[tuple[_Login, int], AvroSchema | str] = {}
# When an unknown id was asked for last; the oldest are forgotten.
_missing: dict[tuple[_Login, int], float] = {}


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the registry client for a failed connection.

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
            BadValueError: no schema has that id, or it is not one of Avro.
            TransientError: the registry does not answer.
        """
        key = (self._login(), schema_id)
        found = _schemas.get(key)
        if found is None:
            found = self._fetched(schema_id)
            _schemas[key] = found
        if isinstance(found, str):
            raise BadValueError(found)
        return found

    def latest(self, subject: str) -> AvroSchema | None:
        """Return the newest schema of a subject; None if there is no such subject.

        Raises:
            PlanError: it is not one of Avro.
        """
        try:
            registered = self._ask(lambda client: client.get_latest_version(subject))
            found = self._read(registered.schema)
        except _NoSuchSchemaError:
            return None
        if isinstance(found, str):
            raise PlanError(
                f"the newest schema of subject {subject!r} {found}",
                where=self._where(),
                todo="Give the format that the topic's records have.",
            )
        return found

    def _fetched(self, schema_id: int) -> AvroSchema | str:
        """Fetch a schema, waiting a while for one that the registry does not know yet."""
        missing = f"schema id {schema_id} is not in the registry"
        key, now = (self._login(), schema_id), time.monotonic()
        asked = _missing.get(key)
        if schema_id > _LARGEST_ID or (asked is not None and now - asked < _ASK_AGAIN_SECS):
            raise BadValueError(missing)
        recent = sum(
            key[0] == login and now - at < _WAITS_SECS for (login, _), at in [*_missing.items()]
        )
        is_patient = asked is None and recent < _MOST_WAITS
        deadline = now + _PATIENCE_SECS if is_patient else now
        while True:
            try:
                found = self._read(self._ask(lambda client: client.get_schema(schema_id)))
            except _NoSuchSchemaError:  # noqa: PERF203 - asks again
                if time.monotonic() >= deadline:
                    break
                time.sleep(_PAUSE_SECS)
            else:
                return f"schema id {schema_id} {found}" if isinstance(found, str) else found
        _missing.pop(key, None)
        _missing[key] = time.monotonic()
        if len(_missing) > _MOST_MISSING:
            _missing.pop(next(iter(_missing)), None)
        raise BadValueError(missing)

    def _read(self, schema: Schema) -> AvroSchema | str:
        """Return a schema with those that it refers to; a text if it is not one of Avro."""
        if (schema.schema_type or _AVRO) != _AVRO:
            return f"is {schema.schema_type}, not Avro"
        named: dict[str, Any] = {}
        for reference in schema.references or ():
            found = self._read(self._version(str(reference.subject), int(reference.version or 0)))
            if isinstance(found, str):
                return found
            named.update(found.named)
            named[str(reference.name)] = found.schema
        try:
            return AvroSchema(json.loads(schema.schema_str or "{}"), named)
        except (ValueError, RecursionError):
            return "is not JSON"

    def _version(self, subject: str, version: int) -> Schema:
        found = self._ask(lambda client: client.get_version(subject, version))
        schema: Schema = found.schema
        return schema

    def _login(self) -> _Login:
        secret = self.options.password
        password = None if secret is None else secret.get_secret_value()
        return self.options.url, self.options.user, password

    def _ask(self, question: Callable[[SchemaRegistryClient], Any]) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question(self._client())
        except SchemaRegistryError as exc:
            if exc.http_status_code == _NOT_FOUND:
                raise _NoSuchSchemaError from None
            raise self._fault(exc.http_status_code, exc.error_message) from exc
        except _transport_errors() as exc:
            raise self._transport_error(exc) from exc

    def _transport_error(self, exc: Exception) -> IcestreamError:
        matched = first_match(_TRANSPORT, exception_text(exc), self._where())
        return matched or _NO_ANSWER.to_error(self._where())

    def _fault(self, status: int, message: str) -> Exception:
        if status in (401, 403):
            return RefusedError(
                f"the registry refused access ({status})",
                where=self._where(),
                todo="Check `schema_registry.user` and `schema_registry.password`.",
            )
        is_passing = status >= 500 or status == _TOO_MANY_REQUESTS
        kind = TransientError if is_passing else ConnectorError
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
    """Return the client of the registry that a source names; None if it names none."""
    options = settings.registry
    return Registry(options) if isinstance(options, RegistryOptions) else None
