"""Options of the webhook source: address, authentication and limits."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from icestream.contracts.options import Options, text_form

UrlPath = Annotated[str, text_form("^/", "the path of a URL", "Begin it with `/`, e.g. `/events`.")]

AuthType = Literal["standard-webhooks", "stripe", "github", "bearer", "none"]
Extra = Literal["event_id", "received_at", "stream", "number", "headers"]
MIN_REMEMBER_DAYS = 4
STANDARD_PREFIX = "whsec_"


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, (str, SecretStr)) else value


def standard_key(secret: str) -> bytes:
    """Return the key of a Standard Webhooks secret, `whsec_` and base64.

    Raises:
        ValueError: it is not base64.
    """
    return base64.b64decode(secret.removeprefix(STANDARD_PREFIX), validate=True)


class WebhookAuth(Options):
    """How senders authenticate."""

    type: AuthType = Field(
        description="Authentication: a signature as defined by Standard Webhooks, Stripe or "
        "GitHub, a bearer token, or `none`, on loopback only."
    )
    secrets: Annotated[tuple[SecretStr, ...], BeforeValidator(_as_tuple)] = Field(
        (),
        max_length=2,
        description="The secret or token. During a rotation, two: either is accepted.",
    )

    @model_validator(mode="after")
    def _has_usable_secrets(self) -> WebhookAuth:
        if self.type == "none":
            if self.secrets:
                raise ValueError("type 'none' takes no `secrets`")
            return self
        if not self.secrets or not all(secret.get_secret_value() for secret in self.secrets):
            raise ValueError(f"type {self.type!r} needs `secrets`, and one is missing or empty")
        if self.type == "standard-webhooks":
            for number, secret in enumerate(self.secrets, 1):
                _refuse_invalid_key(number, secret.get_secret_value())
        return self


def _refuse_invalid_key(number: int, secret: str) -> None:
    try:
        is_invalid = not standard_key(secret)
    except (binascii.Error, ValueError):
        is_invalid = True
    if is_invalid:
        raise ValueError(
            f"secret {number} is not `whsec_` followed by base64, as Standard Webhooks defines"
        )


class WebhookTls(Options):
    """TLS certificate of the server."""

    cert: str = Field(
        description="PEM file with the certificate and its intermediate certificates.",
        json_schema_extra={"path": True},
    )
    key: str = Field(
        description="PEM file with the private key, without a password.",
        json_schema_extra={"path": True},
    )


class WebhookOptions(Options):
    """Where to listen and what to accept."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on; any except loopback needs `auth`.",
    )
    port: int = Field(
        ge=0, le=65_535, description="Port to listen on; 0 for any free port, which is logged."
    )
    path: UrlPath | None = Field(None, description="Path that events are posted to; `/` if absent.")
    streams: dict[str, UrlPath] = Field(
        default_factory=dict,
        description="Several paths instead of `path`, by stream name. The name is in column "
        "`webhook_stream`, for `route_by`.",
    )
    auth: WebhookAuth | None = Field(
        None, description="Authentication of senders; required except on loopback."
    )
    tls: WebhookTls | None = Field(None, description="Serve HTTPS instead of HTTP.")
    id_field: str | None = Field(
        None,
        min_length=1,
        description="Field with the unique id of an event, for senders that send no id in a "
        "header.",
    )
    remember_days: int = Field(
        MIN_REMEMBER_DAYS,
        ge=MIN_REMEMBER_DAYS,
        description="How many days to remember event ids, to drop duplicates that a sender "
        "retries.",
    )
    schema_: str | None = Field(
        None,
        alias="schema",
        description="Columns: DDL such as `id bigint, at timestamp`, or the path of a .ddl file. "
        "By default, taken from the table or the first events.",
        json_schema_extra={"path": "if_file"},
    )
    include: tuple[Extra, ...] = Field(
        (),
        description="Event metadata to add as columns `webhook_event_id`, "
        "`webhook_received_at`, ...",
    )
    max_body_kb: int = Field(
        1_024,
        ge=1,
        le=262_144,
        description="Maximum size of a body in KiB, before and after decompression.",
    )
    rate_per_sec: float | None = Field(
        None, gt=0, description="Maximum requests per second; unlimited by default."
    )
    burst: int | None = Field(
        None,
        ge=1,
        description="Requests accepted at once before `rate_per_sec` applies; one second's worth "
        "by default.",
    )
    receive_timeout_secs: float = Field(
        15, gt=0, description="How long a request may take to arrive in full."
    )
    spool: str | None = Field(
        None,
        description="Folder where events wait for their commit; `.icestream/webhook-PORT` by "
        "default. Tasks read it, so on a cluster every worker needs access to it.",
        json_schema_extra={"path": True},
    )
    max_spool_mb: int = Field(
        10_240,
        ge=4,
        description="Maximum size of the spool in MiB; when it is full, senders get 503.",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_spool(cls, values: Any) -> Any:
        # Set here, so that it is relative to the file's folder like any path.
        if isinstance(values, dict) and values.get("spool") is None and "port" in values:
            return {**values, "spool": f".icestream/webhook-{values['port']}"}
        return values

    @model_validator(mode="after")
    def _check_combinations(self) -> WebhookOptions:
        if self.path is not None and self.streams:
            raise ValueError("needs `path` or `streams`, not both")
        if len(set(self.streams.values())) < len(self.streams):
            raise ValueError("two `streams` have the same path")
        if self.burst is not None and self.rate_per_sec is None:
            raise ValueError("`burst` needs `rate_per_sec`")
        if self.max_body_kb * 4 > self.max_spool_mb * 1024:
            raise ValueError(
                f"`max_spool_mb` of {self.max_spool_mb} is too small for `max_body_kb` of "
                f"{self.max_body_kb}: four such bodies must fit"
            )
        if not is_loopback(self.host) and self.auth_type == "none":
            raise ValueError(
                f"host {self.host!r} is reachable from other hosts, and anyone could send: add "
                "`auth`, e.g. `auth: {type: bearer, secrets: ${WEBHOOK_TOKEN}}`"
            )
        return self

    @property
    def auth_type(self) -> AuthType:
        """The required authentication."""
        return self.auth.type if self.auth is not None else "none"

    def stream_by_path(self) -> dict[str, str]:
        """Return the name of each stream by its path."""
        if self.streams:
            return {path: name for name, path in self.streams.items()}
        path = self.path or "/"
        return {path: path}

    def extra_names(self) -> tuple[Extra, ...]:
        """Return the metadata of each event: `include`, and the stream if there are several."""
        if self.streams and "stream" not in self.include:
            return (*self.include, "stream")
        return self.include


def is_loopback(host: str) -> bool:
    """Tell whether an address is reachable from this host only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
