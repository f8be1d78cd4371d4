"""Errors of a REST catalog, and the keys of the configuration to check for each.

PyIceberg and Iceberg's Java client have different names for the same fault: `UnauthorizedError`,
caused by an `HTTPError` with the address, and `NotAuthorizedException`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from icestream.contracts.faults import DEFAULT_PORTS, Fault, transport_faults
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
)

# Keeps HTML pages out of messages.
MAX_REASON = 200


@dataclass(frozen=True)
class RestEndpoints:
    """The servers that requests go to, and the keys of the configuration that name them.

    Attributes:
        uri: the catalog's address.
        warehouse: the configured name of the warehouse.
        prefix: the configured prefix.
        token_uri: where tokens are requested; None without a client credential.
        has_token_server: whether the configuration sets that address.
        bearer_key: the key that holds a bearer token; None if there is none.
        others: further addresses, supplied by the server.
    """

    uri: str
    warehouse: str | None = None
    prefix: str | None = None
    token_uri: str | None = None
    has_token_server: bool = False
    bearer_key: str | None = None
    others: tuple[str, ...] = ()

    @property
    def token_key(self) -> str:
        return "rest.properties.oauth2-server-uri" if self.has_token_server else "rest.uri"

    def has_no_response(self, text: str) -> bool:
        """Tell whether a request to one of these servers got no response."""
        if re.search(JAVA_REQUEST_FAILED, text):
            return not re.search(JAVA_INVALID_JSON, text)
        pool = re.search(r"HTTPS?ConnectionPool\(host='([^']+)'", text)
        if pool is None:
            return bool(re.search(r"Connection aborted|ChunkedEncodingError", text))
        return self._knows(pool[1])

    def is_from_other_host(self, text: str) -> bool:
        """Tell whether another server answered: storage clients use the same library."""
        url = re.search(r"(Client|Server) Error: .* for url: (\S+)", text)
        return url is not None and not self._knows(_host(url[2]))

    def _knows(self, host: str) -> bool:
        return host in {_host(uri) for uri in (self.uri, self.token_uri, *self.others) if uri}

    def message_values(self, text: str) -> dict[str, object]:
        """Return the values for the placeholders of messages."""
        uri, key = self.uri, "rest.uri"
        if self.token_uri is not None and _address(self.token_uri) != _address(uri):
            host, port = _address(self.token_uri)
            if re.search(rf"{re.escape(host)}('?, port=|:){port}\b", text) or (
                host != _host(uri) and host in text
            ):
                uri, key = self.token_uri, "rest.properties.oauth2-server-uri"
        host, port = _address(uri)
        return {
            "address": f"{host}:{port}",
            "bearer_key": self.bearer_key,
            "host": host,
            "key": key,
            "paths": f"{self.uri}/v1/{self.prefix or ''}",
            "token_key": self.token_key,
            "token_uri": self.token_uri,
            "uri": self.uri,
            "warehouse": self.warehouse,
        }


SERVER_ERROR = (
    r"\b5\d\d Server Error|ServiceFailureException|ServiceUnavailableException|\(code: 5\d\d"
)
JAVA_REQUEST_FAILED = r"RESTException: Error occurred while processing \w+ request"
# Java parses the response inside the request.
JAVA_INVALID_JSON = rf"{JAVA_REQUEST_FAILED}\n\S*\.Json\w*Exception"
TOKEN_FAULTS = (
    Fault(
        r": invalid_scope\b",
        RefusedError,
        "the scope is refused",
        "Check `rest.scope`; Polaris needs e.g. `PRINCIPAL_ROLE:ALL`.",
    ),
    Fault(
        r": (invalid_client|unauthorized_client|invalid_grant|access_denied)\b",
        RefusedError,
        "the client credential is refused",
        "Check `rest.credential`, written `CLIENT_ID:CLIENT_SECRET`, and that `{token_key}` "
        "is the server that has this client.",
    ),
    Fault(
        SERVER_ERROR,
        TransientError,
        "the token server has an internal error",
        "Check its log; its address comes from `{token_key}`.",
    ),
    Fault(
        r"",
        RefusedError,
        "no token is issued at {token_uri!r}",
        "Is that the address for tokens? If another server issues them, set its address as "
        "`oauth2-server-uri` in `rest.properties`.",
    ),
)
UNAUTHORIZED = (
    r"UnauthorizedError|AuthorizationExpiredError|NotAuthorizedException|\b401 Client Error"
    r"|\(code: (401|419)"
)
REFUSED_CREDENTIAL = Fault(
    UNAUTHORIZED,
    RefusedError,
    "the catalog rejects the token that was issued for the client credential",
    "Does `rest.credential` belong to this catalog? Do `{token_key}` and `rest.scope`? Is this "
    "machine's clock right?",
)
REFUSED_TOKEN = Fault(
    UNAUTHORIZED,
    RefusedError,
    "the bearer token is refused",
    "Has it expired? Renew `{bearer_key}`, or use a client credential, which is renewed "
    "automatically: `rest.credential: CLIENT_ID:CLIENT_SECRET`.",
)
NO_CREDENTIALS = Fault(
    UNAUTHORIZED,
    RefusedError,
    "the catalog requires credentials, and none are set",
    "Add `rest.credential: CLIENT_ID:CLIENT_SECRET`, or a bearer token as `rest.token`.",
)
WRONG_PREFIX = Fault(
    r"NoSuchNamespace(Error|Exception)",
    ConnectorError,
    "the catalog finds no such namespace below {paths!r}",
    "Check `rest.prefix`; leave it out if the server supplies it, as most do.",
)
NO_WAREHOUSE = Fault(
    r"(BadRequestError|BadRequestException): .*(?i:warehouse)",
    ConnectorError,
    "the catalog requires a warehouse name, and none is set",
    "Add `rest.warehouse`; for Polaris, it is the name of the catalog.",
)
FAULTS = (
    Fault(
        r"ForbiddenError|ForbiddenException|\b403 Client Error|\(code: 403",
        RefusedError,
        "the catalog denies access",
        "Are the credentials those of the right user or client? May its role read and write the "
        "table? For Polaris, does it have the privilege TABLE_WRITE_DATA?",
    ),
    Fault(
        rf"{SERVER_ERROR}|TooManyRequestsError|\(code: 429|CommitStateUnknownException",
        TransientError,
        "the catalog has an internal error or is overloaded",
        "Check the server's log.",
    ),
    Fault(
        r"unexpected JSON Payload|Could not decode json|validation error for \w+Response"
        rf"|\(code: 4\d\d, type: (null|RESTException)\)|{JAVA_INVALID_JSON}",
        ConnectorError,
        "the server at {uri!r} is not a REST catalog",
        "Is `rest.uri` the catalog's address, without `/v1` at its end? It is e.g. "
        "https://HOST/api/catalog for Polaris, https://HOST/catalog for Lakekeeper and "
        "https://HOST/iceberg for Nessie.",
    ),
    Fault(
        r"40[04] Client Error.*/v1/config\?warehouse=|NoSuchWarehouseException",
        ConnectorError,
        "the catalog has no warehouse {warehouse!r}",
        "Check the spelling of `rest.warehouse`, and that the warehouse exists on the server "
        "that `rest.uri` names.",
    ),
    Fault(
        # A dropped table is a 404 too.
        r"\A(?![\s\S]*NoSuch(Table|View))[\s\S]*?(404 Client Error.* for url: "
        r"|400 Client Error.* for url: \S+/v1/config$|No route for request)",
        ConnectorError,
        "the server at {uri!r} has no such path",
        "Is `rest.uri` the catalog's address, without `/v1` at its end? Is `rest.prefix` right? "
        "Most servers supply it themselves.",
    ),
)
# A request without a response means that the connection failed, whatever the text.
TRANSPORT = transport_faults("{address}", "`{key}`", no_answer=r"", tls=True)
# Java reports a catalog's fault by its class, and an OAuth2 fault in lower case or as null.
OAUTH_PATTERN = (
    r"OAuthError|TokenResponse|(request|authorized): [a-z]+_[a-z_]+: |, type: (null|[a-z_]+)\)"
    rf"|(?=.* POST ){JAVA_INVALID_JSON}"
)
# What clients put before the server's message.
CLIENT_PREFIX = re.compile(
    r"^([\w.$]*(Error|Exception): |(Not authorized|Malformed request|Forbidden|Server error"
    r"|Service unavailable|Service failed|Unable to process \(code: \d+, type: \w+\)): )+"
)

# What a client reports for a response that it cannot parse.
UNREADABLE_REASON = re.compile(
    r"RESTError|RestError|Error occurred while|\d\d\d (Client|Server) Error|\d+ valid|[{<]|$"
)


def explain(text: str, where: str, endpoints: RestEndpoints) -> IcestreamError | None:
    """Return the error for a fault's text; None if it is unknown.

    Args:
        text: the client's message, free of secrets.
        where: the catalog, for the message.
        endpoints: the servers that requests go to.
    """
    if endpoints.is_from_other_host(text):
        return None
    for fault in _faults(text, endpoints):
        match = re.search(fault.pattern, text, re.MULTILINE)
        if match is not None:
            message_values = endpoints.message_values(text)
            reason = _reason(text, match.start()) if fault not in TRANSPORT else ""
            what = fault.what.format_map(message_values) + (f": {reason}" if reason else "")
            return fault.kind(what, where=where, todo=fault.todo.format_map(message_values))
    return None


def _faults(text: str, endpoints: RestEndpoints) -> tuple[Fault, ...]:
    """Return the possible faults, by the server that was asked."""
    if endpoints.has_no_response(text):
        return TRANSPORT
    if endpoints.token_uri is not None:
        if re.search(OAUTH_PATTERN, text) or f"url: {endpoints.token_uri}" in text:
            return TOKEN_FAULTS
        return (REFUSED_CREDENTIAL, *_catalog_faults(endpoints))
    return (
        NO_CREDENTIALS if endpoints.bearer_key is None else REFUSED_TOKEN,
        *_catalog_faults(endpoints),
    )


def _catalog_faults(endpoints: RestEndpoints) -> tuple[Fault, ...]:
    first = () if endpoints.prefix is None else (WRONG_PREFIX,)
    return (*first, *(() if endpoints.warehouse else (NO_WAREHOUSE,)), *FAULTS)


def _reason(text: str, position: int) -> str:
    """Return the server's own message, if it sent a readable one."""
    start = text.rfind("\n", 0, position) + 1
    for line in (text[start:].splitlines()[0], text.splitlines()[0]):
        words = CLIENT_PREFIX.sub("", line).strip()
        if not UNREADABLE_REASON.match(words):
            return words[:MAX_REASON]
    return ""


def _host(uri: str) -> str:
    return _address(uri)[0]


def _address(uri: str) -> tuple[str, int]:
    parts = urlsplit(uri)
    return parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 443)
