"""PyIceberg's client for REST catalogs, with timeouts, and where its server keeps files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, NoopAuthManager
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
from pyiceberg.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import Session

DELEGATION = "X-Iceberg-Access-Delegation"
# Where servers say in `/v1/config` that new tables go: Polaris, and those that resolve a name.
CONFIGURED_LOCATIONS = ("default-base-location", "warehouse")


class RestClient(RestCatalog):
    """A REST catalog client with timeouts.

    Args:
        name: the catalog's name.
        properties: PyIceberg's properties.
        timeout_secs: how long to wait for a connection, and for a response.
        requests_credentials: whether to request credentials for the store with each table, as
            PyIceberg always does.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        *,
        timeout_secs: tuple[float, float],
        requests_credentials: bool,
    ) -> None:
        # The constructor sends the first request.
        self._timeout_secs = timeout_secs
        self._requests_credentials = requests_credentials
        super().__init__(name, **properties)

    def _config_headers(self, session: Session) -> None:
        # Every new session is passed here first, before it requests a token.
        super()._config_headers(session)
        if not self._requests_credentials:
            session.headers.pop(DELEGATION, None)
        request = partial(session.request, timeout=self._timeout_secs)
        session.request = request  # type: ignore[method-assign]

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        if not {"credential", "token"} & self.properties.keys():
            # PyIceberg would send the token `None`.
            return NoopAuthManager()
        return super()._create_legacy_oauth2_auth_manager(session)


def find_location(
    client: RestClient, namespace: tuple[str, ...], table: str | None, *, create: bool
) -> str | None:
    """Return where the server would put a new table; None if it does not say.

    Args:
        client: the client, which has the server's configuration already.
        namespace: the table's namespace.
        table: its name; None if rows name the tables.
        create: whether to create the namespace, so that the server can choose a location.
    """
    location = _namespace_location(client, namespace, create=create) if namespace else None
    if location is None:
        known = (client.properties.get(key, "") for key in CONFIGURED_LOCATIONS)
        location = next((address for address in known if "://" in address), None)
    if location is None and table is not None and create:
        location = _staged_location(client, (*namespace, table))
    return location


def _namespace_location(
    client: RestClient, namespace: tuple[str, ...], *, create: bool
) -> str | None:
    try:
        if create:
            client.create_namespace_if_not_exists(namespace)
        location: str | None = client.load_namespace_properties(namespace).get("location")
    except (NoSuchNamespaceError, RESTError):
        return None  # it does not exist, or may not be read: another answer may do
    return location


def _staged_location(client: RestClient, identifier: tuple[str, ...]) -> str | None:
    """Let the server prepare the table's creation, which creates nothing yet."""
    try:
        staged = client.create_table_transaction(identifier, Schema())
    except (RESTError, ValueError, NotImplementedError):
        return None  # not every server can
    location: str = staged.table_metadata.location
    return location
