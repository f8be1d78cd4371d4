"""PyIceberg's client for REST catalogs, with timeouts, which it has no setting for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, NoopAuthManager

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import Session

DELEGATION = "X-Iceberg-Access-Delegation"


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
