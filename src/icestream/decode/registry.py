"""A schema registry that speaks Confluent's API."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pydantic import Field, SecretStr

from icestream.contracts.options import Options
from icestream.errors import ConnectorError, RefusedError, TransientError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_NOT_FOUND = 404


class RegistryOptions(Options):
    """Where a schema registry is."""

    url: str = Field(description="Address of the registry's Confluent API.")
    user: str | None = Field(None, description="User name for basic authentication.")
    password: SecretStr | None = Field(None, description="Password for basic authentication.")


# One client and one copy of each schema a process: a schema's id never changes its meaning.
_clients: dict[str, SchemaRegistryClient] = {}
_schemas: dict[tuple[str, int], tuple[Any, dict[str, Any]] | None] = {}


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what the registry client raises when nobody answers.

    It speaks HTTP by one of two packages, depending on its version and Python's.
    """
    loaded = [sys.modules[name] for name in ("httpx2", "httpx") if name in sys.modules]
    return (OSError, *(module.TransportError for module in loaded))


class Registry:
    """Fetches schemas by id and by subject. Holds options only, so it can be pickled."""

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options

    def by_id(self, schema_id: int) -> tuple[Any, dict[str, Any]] | None:
        """Return a schema and the named types it refers to; None if no schema has that id."""
        key = (self.options.url, schema_id)
        if key not in _schemas:
            found = self._ask(lambda client: client.get_schema(schema_id))
            _schemas[key] = None if found is None else self._with_references(found)
        return _schemas[key]

    def latest(self, subject: str) -> tuple[Any, dict[str, Any]] | None:
        """Return the newest schema of a subject; None if there is no such subject."""
        found = self._ask(lambda client: client.get_latest_version(subject))
        return None if found is None else self._with_references(found.schema)

    def _with_references(self, schema: Schema) -> tuple[Any, dict[str, Any]]:
        named: dict[str, Any] = {}
        for reference in schema.references or ():
            subject, version = str(reference.subject), int(reference.version or 0)
            found = self._version(subject, version)
            if found is None:
                raise ConnectorError(
                    f"a schema needs version {version} of subject {subject!r}, which is missing",
                    where=self._where(),
                )
            inner, deeper = self._with_references(found.schema)
            named.update(deeper)
            named[str(reference.name)] = inner
        return json.loads(schema.schema_str or "{}"), named

    def _version(self, subject: str, version: int) -> Any:
        return self._ask(lambda client: client.get_version(subject, version))

    def _ask(self, question: Callable[[SchemaRegistryClient], Any]) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question(self._client())
        except SchemaRegistryError as exc:
            if exc.http_status_code == _NOT_FOUND:
                return None
            raise self._fault(exc.http_status_code, exc.error_message) from exc
        except _transport_errors() as exc:
            raise UnreachableError(
                "no schema registry answers",
                where=self._where(),
                todo="Is the registry running there? Check `schema_registry.url`.",
            ) from exc

    def _fault(self, status: int, message: str) -> Exception:
        if status in (401, 403):
            return RefusedError(
                f"the registry refused access ({status})",
                where=self._where(),
                todo="Check `schema_registry.user` and `schema_registry.password`.",
            )
        kind = TransientError if status >= 500 else ConnectorError
        return kind(f"the registry answered {status}: {message}", where=self._where())

    def _where(self) -> str:
        return f"schema registry {self.options.url}"

    def _client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        options = self.options
        client = _clients.get(options.url)
        if client is None:
            settings: dict[str, Any] = {"url": options.url, "timeout": 10, "max.retries": 1}
            if options.user is not None:
                secret = options.password.get_secret_value() if options.password else ""
                settings["basic.auth.user.info"] = f"{options.user}:{secret}"
            client = _clients[options.url] = SchemaRegistryClient(settings)
        return client
