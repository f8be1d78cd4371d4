"""Options of the webhook source: events posted over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from icestream.contracts.options import Options


class WebhookAuth(Options):
    """How a sender shows that it may send."""

    type: Literal["bearer", "basic", "hmac"] = Field("bearer", description="Kind of proof.")
    token: SecretStr | None = Field(None, description="Token for `bearer`.")
    user: str | None = Field(None, description="User for `basic`.")
    password: SecretStr | None = Field(None, description="Password for `basic`.")
    secret: SecretStr | None = Field(None, description="Shared secret for `hmac`.")
    header: str | None = Field(None, description="Header with the signature for `hmac`.")


class WebhookTls(Options):
    """Certificate of the server."""

    cert: str = Field(description="File with the certificate.", json_schema_extra={"path": True})
    key: str = Field(description="File with its key.", json_schema_extra={"path": True})


class WebhookOptions(Options):
    """Where to listen and what to take."""

    host: str = Field("127.0.0.1", description="Address to listen on; loopback unless told.")
    port: int = Field(ge=0, le=65_535, description="Port to listen on.")
    path: str = Field("/", pattern="^/", description="Path of the address that events go to.")
    auth: WebhookAuth | None = Field(
        None, description="Who may send; required when not on loopback."
    )
    tls: WebhookTls | None = Field(None, description="HTTPS instead of HTTP.")
    max_body_kb: int = Field(1_024, ge=1, description="Largest request, in KiB.")
    rate_per_sec: float | None = Field(
        None, gt=0, description="Most requests a second; no bound if absent."
    )
    spool: str | None = Field(
        None,
        description="Folder where events wait for their commit; below `state.path` if absent.",
        json_schema_extra={"path": True},
    )
