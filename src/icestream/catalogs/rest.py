"""Catalogs with Iceberg's REST protocol: Polaris, Lakekeeper, Nessie, Gravitino, Unity, ..."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import Field, SecretStr, field_validator

from icestream.catalogs.base import ClientCatalog, count_namespaces
from icestream.catalogs.rest_faults import RestEndpoints, explain
from icestream.contracts.catalog import Abilities
from icestream.contracts.faults import CheckStep, check_connection
from icestream.contracts.options import Options, PropertyText
from icestream.contracts.secrets import HIDDEN, hide, is_secret, secrets_in
from icestream.errors import PlanError
from icestream.storage.blocks import StorageBlocks, storage_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog as PyIcebergCatalog

    from icestream.contracts.storage import Storage
    from icestream.errors import IcestreamError


# Java's names; a value in the configuration applies to both clients.
CONNECT_TIMEOUT = "rest.client.connection-timeout-ms"
ANSWER_TIMEOUT = "rest.client.socket-timeout-ms"
# Values of properties such as `token-refresh-enabled`, which are not secret.
SWITCH_VALUE = re.compile(r"|true|false|\d*", re.IGNORECASE)
UNSUPPORTED_BLOCKS = {
    "ssl": "let Python (REQUESTS_CA_BUNDLE) and Java (javax.net.ssl.trustStore) trust the server's "
    "authority",
    "auth": "give `credential` or `token`",
}


def validate_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties that a client does not support.

    Raises:
        ValueError: with the reason.
    """
    for name in (CONNECT_TIMEOUT, ANSWER_TIMEOUT):
        value = properties.get(name, "1")
        if not re.fullmatch(r"[0-9]{1,9}", value) or not int(value):
            raise ValueError(f"`{name}` is {value!r}, not a number of milliseconds")
    for name, instead in UNSUPPORTED_BLOCKS.items():
        if name in properties:
            raise ValueError(f"`{name}` is a block that only PyIceberg supports; {instead}")


def is_secret_property(name: str, value: str) -> bool:
    """Tell whether a property's value must not be shown."""
    return is_secret(name, value) and not SWITCH_VALUE.fullmatch(value)


def masked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with their secrets masked."""
    return {
        name: HIDDEN if is_secret_property(name, value) else value
        for name, value in properties.items()
    }


TOKEN_SERVER = "oauth2-server-uri"  # noqa: S105 - a name
DELEGATION = "header.X-Iceberg-Access-Delegation"
CONNECT_MS = 10_000
# A commit may take the server a while; reading metadata may not.
COMMIT_MS = 60_000
METADATA_MS = 20_000


class RestSettings(Options):
    """Address and credentials of the server."""

    uri: str = Field(min_length=1, description="Address of the catalog.")
    warehouse: str | None = Field(None, description="Name of the warehouse on the server.")
    credential: SecretStr | None = Field(
        None,
        description="`id:secret` is an OAuth2 client credential; anything else a bearer token.",
    )
    token: SecretStr | None = Field(
        None, description="Bearer token; ignored if a client credential is set."
    )
    scope: str | None = Field(None, description="OAuth2 scope; defaults to `catalog`.")
    prefix: str | None = Field(
        None, description="Prefix of the server's paths; most servers supply it themselves."
    )
    properties: dict[str, PropertyText] = Field(
        default_factory=dict, description="Further properties, e.g. `oauth2-server-uri`."
    )

    @field_validator("properties")
    @classmethod
    def _check_properties(cls, properties: dict[str, str]) -> dict[str, str]:
        validate_properties(properties)
        return properties

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, masked_properties(value) if name == "properties" else value


class RestCatalogOptions(StorageBlocks):
    """A catalog with Iceberg's REST protocol."""

    type: Literal["rest"] = Field("rest", description="Kind of catalog.")
    rest: RestSettings = Field(description="Address and credentials.")


class RestCatalog(ClientCatalog[RestCatalogOptions]):
    """Iceberg's REST client for Spark, PyIceberg's for everything else, configured alike."""

    options_type = RestCatalogOptions
    abilities = Abilities(nested_namespaces=True, vends_credentials=True)
    # Requests signed for AWS, as S3 Tables requires, need boto3.
    extra = "s3"

    def __init__(
        self, name: str, options: RestCatalogOptions, storage: Storage | None = None
    ) -> None:
        super().__init__(name, options, _storage(options, storage))
        parts = urlsplit(options.rest.uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PlanError(
                "`rest.uri` begins with neither http:// nor https://",
                where=f"catalog {name!r}",
                todo="Write e.g. `uri: https://catalog.example/api/catalog`.",
            )
        if parts.username or parts.password or parts.query:
            raise PlanError(
                "`rest.uri` contains a user, a password or a query",
                where=f"catalog {name!r}",
                todo="Set credentials as `rest.credential` or `rest.token`: addresses are logged.",
            )

    def identity(self) -> str:
        warehouse = self.options.rest.warehouse
        return f"rest {self.uri}" + (f", warehouse {warehouse}" if warehouse else "")

    @property
    def uri(self) -> str:
        return self.options.rest.uri.rstrip("/")

    @property
    def address_key(self) -> str:
        return "rest.uri"

    def addresses(self) -> list[str]:
        return [self.uri]

    def required_packages(self) -> dict[str, str]:
        signs = {"boto3": "icestream[s3]"} if self._signs_requests else {}
        return {**signs, **super().required_packages()}

    def chain_variables(self) -> tuple[str, ...]:
        # Without keys, the server supplies them; only signed requests need the chain.
        return ("AWS_PROFILE",) if self._signs_requests and not self.environment() else ()

    def storage_location(self) -> str | None:
        # Credentials that the catalog vends are valid for a table only.
        return (
            self.storage.warehouse()
            if self.storage is not None and self._has_storage_keys
            else None
        )

    def jars(self) -> tuple[str, ...]:
        return () if self.storage is None else self.storage.jars()

    def spark_settings(self) -> dict[str, str]:
        signs_in = {} if self._has_custom_auth else self._java_auth_properties()
        return {
            "type": "rest",
            # Each session has its own cache, and would not see the commits of others.
            "cache-enabled": "false",
            CONNECT_TIMEOUT: str(CONNECT_MS),
            ANSWER_TIMEOUT: str(COMMIT_MS),
            **self._shared(),
            **signs_in,
            **({DELEGATION: "vended-credentials"} if self._requests_credentials else {}),
            **({} if self.storage is None else self.storage.spark_settings()),
            **self._extra_properties(),
        }

    def pyiceberg_properties(self) -> dict[str, str]:
        return {
            "type": "rest",
            **self._shared(),
            **({} if self.storage is None else self.storage.pyiceberg_properties()),
            **self._extra_properties(),
        }

    def check(self) -> Iterator[CheckStep]:
        endpoints = self._endpoints
        if endpoints.token_uri is not None and endpoints.has_token_server:
            yield CheckStep("reach token server", lambda: self._check_token_server(endpoints))
        yield from super().check()

    def find_location(
        self, namespace: tuple[str, ...], table: str | None, *, create: bool
    ) -> str | None:
        from icestream.catalogs.rest_client import find_location

        found = None if table is None else self.find_table((*namespace, table))
        if found is not None:
            return found.location()
        client: Any = self.client()
        return self.call(lambda: find_location(client, namespace, table, create=create))

    def faults(self) -> tuple[type[Exception], ...]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        # A server without that path answers 404, even if no namespace was requested.
        return (*super().faults(), NoSuchNamespaceError, NotImplementedError)

    def explain(self, text: str, where: str) -> IcestreamError | None:
        return explain(self.mask_secrets(text), where, self._endpoints) or super().explain(
            text, where
        )

    def mask_secrets(self, text: str) -> str:
        return hide(text, self._secrets())

    def _load_client(self) -> PyIcebergCatalog:
        from icestream.catalogs.rest_client import RestClient

        properties = self.options.rest.properties
        timeouts_ms = (
            int(properties.get(CONNECT_TIMEOUT, CONNECT_MS)),
            int(properties.get(ANSWER_TIMEOUT, METADATA_MS)),
        )
        return RestClient(
            self.name,
            self.pyiceberg_properties(),
            timeout_secs=(timeouts_ms[0] / 1000, timeouts_ms[1] / 1000),
            requests_credentials=self._requests_credentials or self._sets_delegation,
        )

    def _sign_in(self) -> str:
        from pyiceberg.exceptions import ForbiddenError

        client = self.client()

        def count() -> str:
            try:
                namespaces = len(client.list_namespaces())
            except ForbiddenError:
                # Permissions on a single namespace are enough for a pipeline.
                return "authenticated, but not permitted to list namespaces"
            return count_namespaces(namespaces)

        return self.call(count)

    def _check_token_server(self, endpoints: RestEndpoints) -> str:
        return check_connection(endpoints.token_uri or "", self.where, f"`{endpoints.token_key}`")

    def _shared(self) -> dict[str, str]:
        """Return the settings that have the same name in both clients."""
        rest = self.options.rest
        properties = {
            "uri": self.uri,
            "warehouse": rest.warehouse,
            "prefix": rest.prefix,
            "scope": rest.scope,
            "token": self._token,
            "credential": self._client_credential,
        }
        return {key: value for key, value in properties.items() if value is not None}

    def _extra_properties(self) -> dict[str, str]:
        """Return the configured properties, which override ours."""
        properties = dict(self.options.rest.properties)
        if self._token_uri is not None:
            # Both clients warn if they must guess it, and only Java accepts a relative one.
            properties[TOKEN_SERVER] = self._token_uri
        return properties

    def _java_auth_properties(self) -> dict[str, str]:
        if self._client_credential is not None:
            # Few servers support token exchange, but all support client credentials.
            return {"rest.auth.type": "oauth2", "token-exchange-enabled": "false"}
        return {} if self._token is None else {"rest.auth.type": "oauth2"}

    @property
    def _client_credential(self) -> str | None:
        credential = _plain(self.options.rest.credential)
        return credential if credential is not None and ":" in credential else None

    @property
    def _token(self) -> str | None:
        if self._client_credential is not None:
            return None
        return _plain(self.options.rest.token) or _plain(self.options.rest.credential)

    @property
    def _token_uri(self) -> str | None:
        if self._client_credential is None:
            return None
        path = self.options.rest.properties.get(TOKEN_SERVER, "v1/oauth/tokens")
        return urljoin(f"{self.uri}/", path)

    @property
    def _has_custom_auth(self) -> bool:
        return bool({"rest.auth.type", "rest.sigv4-enabled"} & self.options.rest.properties.keys())

    @property
    def _signs_requests(self) -> bool:
        return self.options.rest.properties.get("rest.sigv4-enabled", "").lower() == "true"

    @property
    def _sets_delegation(self) -> bool:
        return any(key.lower() == DELEGATION.lower() for key in self.options.rest.properties)

    @property
    def _requests_credentials(self) -> bool:
        return not self._sets_delegation and not self._has_storage_keys

    @property
    def _has_storage_keys(self) -> bool:
        """Whether the configuration has its own keys for the store."""
        options = getattr(self.storage, "options", None)
        return options is not None and (
            any(secrets_in(options)) or getattr(options, "profile", None) is not None
        )

    @property
    def _endpoints(self) -> RestEndpoints:
        rest = self.options.rest
        bearer_key = "rest.token" if rest.token is not None else "rest.credential"
        return RestEndpoints(
            uri=self.uri,
            warehouse=rest.warehouse,
            prefix=rest.prefix,
            token_uri=self._token_uri,
            has_token_server=TOKEN_SERVER in rest.properties,
            bearer_key=None if self._token is None else bearer_key,
            others=(getattr(self._client, "uri", self.uri),),
        )

    def _secrets(self) -> Iterator[str]:
        yield from secrets_in(self.options)
        storage_options: Any = getattr(self.storage, "options", None)
        if storage_options is not None:
            yield from secrets_in(storage_options)
        if self._client_credential is not None:
            yield from filter(None, (self._client_credential.partition(":")[2],))
        for key, value in self.options.rest.properties.items():
            if is_secret_property(key, value):
                yield value


def _storage(options: RestCatalogOptions, configured: Storage | None) -> Storage | None:
    """Return the store of the tables; None if only the server knows it.

    A warehouse is a name that the server defines, which may be the address of a store.

    Raises:
        PlanError: the warehouse is in another store than the block's, or in none that is installed.
    """
    configured = configured or options.configured_storage()
    warehouse = options.rest.warehouse or ""
    if "://" not in warehouse:
        return configured
    return storage_for(warehouse, configured)


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value() or None
