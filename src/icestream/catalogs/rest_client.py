"""PyIceberg's client for REST catalogs, with the patience that it has no setting for."""

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
    """A REST catalog that is not waited for without end.

    Args:
        name: the catalog's name.
        properties: PyIceberg's properties.
        patience_secs: how long to wait for a connection, and for an answer.
        borrows_keys: whether to ask for the store's keys with each table; PyIceberg always does.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        *,
        patience_secs: tuple[float, float],
        requests_credentials: bool,
    ) -> None:
        # The first request is made while the client is being built.
        self._patience_secs = patience_secs
        self._requests_credentials = requests_credentials
        super().__init__(name, **properties)

    def _config_headers(self, session: Session) -> None:
        # The first thing that every new session is given to, before it asks for a token.
        super()._config_headers(session)
        if not self._requests_credentials:
            session.headers.pop(DELEGATION, None)
        patient = partial(session.request, timeout=self._patience_secs)
        session.request = patient  # type: ignore[method-assign]

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        if not {"credential", "token"} & self.properties.keys():
            # PyIceberg would send the token `None`.
            return NoopAuthManager()
        return super()._create_legacy_oauth2_auth_manager(session)
