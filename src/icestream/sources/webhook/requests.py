"""Parses and authenticates requests; a `Refusal` is the response to an invalid one."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import zlib
from base64 import b64decode
from binascii import Error as NotBase64Error
from typing import TYPE_CHECKING, Any, NoReturn

from icestream.sources.webhook.options import standard_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icestream.sources.webhook.options import AuthType, WebhookAuth


class Refusal(Exception):  # noqa: N818 - a response, not an error of ours
    """The response to a request that is not accepted.

    Args:
        status: the HTTP status.
        reason: the reason, for whoever reads the sender's log.
        retry_after: seconds after which the sender may retry.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


TOLERANCE_SECS = 300
# Each costs a comparison, and senders need only a few.
MAX_SIGNATURES = 16
SECONDS = re.compile(rb"\d{1,12}")
# The header with the id of a delivery, which is the same for every retry.
ID_HEADER: dict[str, bytes] = {
    "standard-webhooks": b"webhook-id",
    "github": b"x-github-delivery",
    "bearer": b"idempotency-key",
    "none": b"idempotency-key",
}


class Verifier:
    """Authenticates requests.

    Args:
        auth: the option; None if no authentication is required.
        now: returns the epoch seconds.
    """

    def __init__(self, auth: WebhookAuth | None, now: Callable[[], float]) -> None:
        self.type: AuthType = auth.type if auth is not None else "none"
        secrets = [secret.get_secret_value() for secret in auth.secrets] if auth is not None else []
        standard = self.type == "standard-webhooks"
        self._keys = [standard_key(secret) if standard else secret.encode() for secret in secrets]
        self._now = now
        self._verify: Callable[[Mapping[bytes, bytes], bytes], None] = {
            "standard-webhooks": self._standard,
            "stripe": self._stripe,
            "github": self._github,
            "bearer": lambda *_: None,
            "none": lambda *_: None,
        }[self.type]

    def check_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the headers, before the body is read.

        Raises:
            Refusal: a required header is missing, or the token is wrong.
        """
        if self.type == "bearer":
            self._bearer(headers)
        elif self.type == "standard-webhooks":
            for name in (b"webhook-id", b"webhook-timestamp", b"webhook-signature"):
                _require_header(headers, name)
        elif self.type == "stripe":
            _require_header(headers, b"stripe-signature")
        elif self.type == "github":
            _require_header(headers, b"x-hub-signature-256")

    def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        """Verify the signature of the body, exactly as it was sent.

        Raises:
            Refusal: it does not match, or its timestamp is too far from now.
        """
        self._verify(headers, body)

    def _bearer(self, headers: Mapping[bytes, bytes]) -> None:
        kind, _, token = _require_header(headers, b"authorization").partition(b" ")
        if kind.lower() != b"bearer" or not _matches(self._keys, [token.strip()]):
            raise Refusal(401, "the bearer token is wrong")

    def _standard(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        timestamp = _require_header(headers, b"webhook-timestamp")
        self._check_timestamp(timestamp)
        signed = b".".join((_require_header(headers, b"webhook-id"), timestamp, body))
        parts = (
            part.split(b",", 1)
            for part in _require_header(headers, b"webhook-signature").split(b" ")
        )
        signatures = [
            _from_base64(part[1]) for part in parts if part[0] == b"v1" and len(part) == 2
        ]
        self._check_signature(signed, signatures)

    def _stripe(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        parts = [
            part.strip().partition(b"=")[::2]
            for part in _require_header(headers, b"stripe-signature").split(b",")
        ]
        timestamp = next((value for name, value in parts if name == b"t"), b"")
        self._check_timestamp(timestamp)
        signatures = [_from_hex(value) for name, value in parts if name == b"v1"]
        self._check_signature(timestamp + b"." + body, signatures)

    def _github(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        kind, _, value = _require_header(headers, b"x-hub-signature-256").partition(b"=")
        self._check_signature(body, [_from_hex(value)] if kind == b"sha256" else [])

    def _check_timestamp(self, timestamp: bytes) -> None:
        if not SECONDS.fullmatch(timestamp):
            raise Refusal(401, "the timestamp of the signature is not in epoch seconds")
        age = self._now() - int(timestamp)
        if abs(age) > TOLERANCE_SECS:
            difference = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s ahead"
            raise Refusal(
                401, f"the timestamp of the signature is {difference}, more than {TOLERANCE_SECS} s"
            )

    def _check_signature(self, signed: bytes, signatures: list[bytes]) -> None:
        expected = [hmac.digest(key, signed, hashlib.sha256) for key in self._keys]
        if not _matches(expected, signatures[:MAX_SIGNATURES]):
            raise Refusal(401, "no signature matches the body")


def _matches(expected: Iterable[bytes], candidates: list[bytes]) -> bool:
    """Compare all pairs without stopping early, so that the time reveals nothing."""
    has_match = False
    for valid in expected:
        for candidate in candidates:
            has_match |= hmac.compare_digest(valid, candidate)
    return has_match


def _require_header(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
    value = headers.get(name)
    if not value:
        raise Refusal(401, f"the header {name.decode()!r} is missing")
    return value


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""


def _from_base64(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NotBase64Error:
        return b""


JSON_TYPES = frozenset({b"", b"application/json", b"text/json"})
NDJSON_TYPES = frozenset(
    {b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonl"}
)
# Tables and their readers cannot handle columns that are nested deeper.
MAX_LEVELS = 64
_GZIP_BITS = 31
# The data after each gzip member is copied, and a body may have thousands of members.
_GZIP_CHUNK = 16 << 10
_WHITESPACE = " \t\r\n"
_WHITESPACE_RUN = re.compile(f"[{_WHITESPACE}]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def is_ndjson(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is NDJSON, one event per line, rather than one JSON value.

    Raises:
        Refusal: it is neither.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in NDJSON_TYPES:
        return True
    if kind in JSON_TYPES or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return False
    name = kind.decode("latin-1")
    raise Refusal(415, f"content type {name!r} is not JSON: application/json or x-ndjson")


def is_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is compressed with gzip.

    Raises:
        Refusal: it has another encoding.
    """
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"gzip", b"x-gzip"):
        return True
    if coding in (b"", b"identity"):
        return False
    raise Refusal(415, f"content encoding {coding.decode('latin-1')!r} is not gzip")


def decompress(body: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip body of at most `max_bytes` decompressed bytes.

    Raises:
        Refusal: it is larger, or is not gzip.
    """
    parts: list[bytes] = []
    remaining, position = max_bytes, 0
    member = zlib.decompressobj(_GZIP_BITS)
    while position < len(body):
        if member.eof:
            member = zlib.decompressobj(_GZIP_BITS)
        chunk = body[position : position + _GZIP_CHUNK]
        try:
            part = member.decompress(chunk, remaining + 1)
        except zlib.error:
            raise Refusal(400, "the body is not gzip") from None
        if len(part) > remaining:
            raise too_large_refusal(max_bytes)
        parts.append(part)
        remaining -= len(part)
        position += len(chunk) - len(member.unused_data)
    if body and not member.eof:
        raise Refusal(400, "the gzip body is truncated")
    return b"".join(parts)


def too_large_refusal(max_bytes: int) -> Refusal:
    """Return the response to a body that is too large."""
    return Refusal(413, f"the body is larger than {max_bytes // 1024} KiB")


def parse_events(body: bytes, *, lines: bool) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the raw text and the parsed content of each event.

    Raises:
        Refusal: the body is not JSON, or contains anything but objects.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not UTF-8") from None
    if lines:
        yield from _parse_lines(text)
        return
    text = text.strip(_WHITESPACE)
    if text.startswith("["):
        yield from _parse_array(text)
    else:
        yield text.encode(), _parse_object(text, "the body")


def _parse_lines(text: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    # Not splitlines, which also splits at characters that JSON strings may contain.
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(_WHITESPACE)
        if stripped:
            yield stripped.encode(), _parse_object(stripped, f"line {number}")


def _parse_array(text: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Split an array at its elements, so that each event is stored exactly as it was sent."""
    position, number = _skip_whitespace(text, 1), 0
    if text[position : position + 1] == "]":
        position += 1
    else:
        while True:
            number += 1
            label = f"event {number} of the array"
            event, end = _parse(text, position, label)
            yield text[position:end].encode(), _as_object(event, label)
            position = _skip_whitespace(text, end)
            separator = text[position : position + 1]
            position = _skip_whitespace(text, position + 1)
            if separator == "]":
                break
            if separator != ",":
                raise Refusal(
                    400, f"the body is not JSON: expected a comma or ] after event {number}"
                )
    if position != len(text):
        raise Refusal(400, "the body is not JSON: unexpected text after the array")


def _parse_object(text: str, label: str) -> dict[str, Any]:
    value, end = _parse(text, 0, label)
    if end != len(text):
        raise Refusal(400, f"{label} is not JSON: unexpected text after the value")
    return _as_object(value, label)


def _parse(text: str, start: int, label: str) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise Refusal(400, f"{label} is nested too deeply") from None
    except ValueError as exc:
        reason = exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)
        raise Refusal(400, f"{label} is not JSON: {reason}") from None
    # Most events have fewer brackets than allowed levels, and need no traversal.
    if text.count("{", start, end) + text.count("[", start, end) > MAX_LEVELS and _is_too_deep(
        value
    ):
        raise Refusal(400, f"{label} is nested too deeply")
    return value, end


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            inner
            for container in level
            for inner in (container.values() if isinstance(container, dict) else container)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _as_object(value: Any, label: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"{label} is not a JSON object")
    return value


def _skip_whitespace(text: str, start: int) -> int:
    whitespace = _WHITESPACE_RUN.match(text, start)
    return whitespace.end() if whitespace is not None else start
