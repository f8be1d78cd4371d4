"""A request that is not taken, as the answer tells it."""

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


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of ours
    """The answer to a request that is not taken.

    Args:
        status: of HTTP.
        reason: what is wrong with it, for the person who looks at the sender's log.
        retry_after: seconds after which the same request may be taken.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


TOLERANCE_SECS = 300
# Each costs a comparison, and a sender has no use for more than a few.
MAX_SIGNATURES = 16
SECONDS = re.compile(rb"\d{1,12}")
# Which header names a delivery; the same for each attempt of the sender.
ID_HEADER: dict[str, bytes] = {
    "standard-webhooks": b"webhook-id",
    "github": b"x-github-delivery",
    "bearer": b"idempotency-key",
    "none": b"idempotency-key",
}


class Verifier:
    """Knows the secrets of an endpoint and what a sender must show.

    Args:
        auth: the option; None if anybody may send.
        now: tells the time in seconds.
    """

    def __init__(self, auth: WebhookAuth | None, now: Callable[[], float]) -> None:
        self.type: AuthType = auth.type if auth is not None else "none"
        texts = [each.get_secret_value() for each in auth.secrets] if auth is not None else []
        standard = self.type == "standard-webhooks"
        self._keys = [standard_key(each) if standard else each.encode() for each in texts]
        self._now = now
        self._verify: Callable[[Mapping[bytes, bytes], bytes], None] = {
            "standard-webhooks": self._standard,
            "stripe": self._stripe,
            "github": self._github,
            "bearer": lambda *_: None,
            "none": lambda *_: None,
        }[self.type]

    def check_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse by the headers alone, before a body is read.

        Raises:
            Refusal: what must be there is not, or the token is wrong.
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
        """Check the signature of a body, byte for byte as it was sent.

        Raises:
            Refusal: it does not match, or is too old or from the future.
        """
        self._verify(headers, body)

    def _bearer(self, headers: Mapping[bytes, bytes]) -> None:
        kind, _, token = _require_header(headers, b"authorization").partition(b" ")
        if kind.lower() != b"bearer" or not _matches(self._keys, [token.strip()]):
            raise Refusal(401, "the bearer token is not the one expected")

    def _standard(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        stamp = _require_header(headers, b"webhook-timestamp")
        self._check_timestamp(stamp)
        signed = b".".join((_require_header(headers, b"webhook-id"), stamp, body))
        told = (
            part.split(b",", 1)
            for part in _require_header(headers, b"webhook-signature").split(b" ")
        )
        given = [_from_base64(part[1]) for part in told if part[0] == b"v1" and len(part) == 2]
        self._check_signature(signed, given)

    def _stripe(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        parts = [
            part.strip().partition(b"=")[::2]
            for part in _require_header(headers, b"stripe-signature").split(b",")
        ]
        stamp = next((value for name, value in parts if name == b"t"), b"")
        self._check_timestamp(stamp)
        given = [_from_hex(value) for name, value in parts if name == b"v1"]
        self._check_signature(stamp + b"." + body, given)

    def _github(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        kind, _, value = _require_header(headers, b"x-hub-signature-256").partition(b"=")
        self._check_signature(body, [_from_hex(value)] if kind == b"sha256" else [])

    def _check_timestamp(self, stamp: bytes) -> None:
        if not SECONDS.fullmatch(stamp):
            raise Refusal(401, "the timestamp of the signature is not a number of seconds")
        away = self._now() - int(stamp)
        if abs(away) > TOLERANCE_SECS:
            told = f"{away:.0f} s old" if away > 0 else f"{-away:.0f} s ahead"
            raise Refusal(
                401, f"the timestamp of the signature is {told}, more than {TOLERANCE_SECS} s"
            )

    def _check_signature(self, signed: bytes, given: list[bytes]) -> None:
        expected = [hmac.digest(key, signed, hashlib.sha256) for key in self._keys]
        if not _matches(expected, given[:MAX_SIGNATURES]):
            raise Refusal(401, "no signature matches the body")


def _matches(expected: Iterable[bytes], given: list[bytes]) -> bool:
    """Compare each with each and stop at none, so that time tells nothing."""
    found = False
    for ours in expected:
        for theirs in given:
            found |= hmac.compare_digest(ours, theirs)
    return found


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
# So deep an object makes no column that tables and their readers could bear.
MAX_LEVELS = 64
_GZIP_BITS = 31
# What follows a member of a gzip body is copied, and a body may have thousands of them.
_GZIP_CHUNK = 16 << 10
_WHITESPACE = " \t\r\n"
_WHITESPACE_RUN = re.compile(f"[{_WHITESPACE}]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def is_ndjson(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is NDJSON, an event a line, rather than one JSON value.

    Raises:
        Refusal: it is neither.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in NDJSON_TYPES:
        return True
    if kind in JSON_TYPES or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return False
    shown = kind.decode("latin-1")
    raise Refusal(415, f"content type {shown!r} is not JSON: application/json or x-ndjson")


def is_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is compressed.

    Raises:
        Refusal: in another way than gzip.
    """
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"gzip", b"x-gzip"):
        return True
    if coding in (b"", b"identity"):
        return False
    raise Refusal(415, f"content encoding {coding.decode('latin-1')!r} is not gzip")


def decompress(body: bytes, most: int) -> bytes:
    """Return what a gzip body holds, never more than `most` bytes of it in memory.

    Raises:
        Refusal: it holds more, or is no gzip.
    """
    parts: list[bytes] = []
    left, place = most, 0
    member = zlib.decompressobj(_GZIP_BITS)
    while place < len(body):
        if member.eof:
            member = zlib.decompressobj(_GZIP_BITS)
        piece = body[place : place + _GZIP_CHUNK]
        try:
            part = member.decompress(piece, left + 1)
        except zlib.error:
            raise Refusal(400, "the body is not gzip") from None
        if len(part) > left:
            raise too_large_refusal(most)
        parts.append(part)
        left -= len(part)
        place += len(piece) - len(member.unused_data)
    if body and not member.eof:
        raise Refusal(400, "the gzip body ends too early")
    return b"".join(parts)


def too_large_refusal(most: int) -> Refusal:
    """Return the answer to a body that is larger than may be."""
    return Refusal(413, f"the body is larger than {most // 1024} KiB")


def parse_events(body: bytes, *, lines: bool) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each event as it was sent, and what it says.

    Raises:
        Refusal: the body is not JSON, or holds something else than objects.
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
    # Not splitlines, which breaks at letters that JSON texts may hold.
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(_WHITESPACE)
        if stripped:
            yield stripped.encode(), _parse_object(stripped, f"line {number}")


def _parse_array(text: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Cut an array where its elements end: what is stored is what was sent, digit for digit."""
    place, number = _skip_whitespace(text, 1), 0
    if text[place : place + 1] == "]":
        place += 1
    else:
        while True:
            number += 1
            what = f"event {number} of the array"
            event, end = _parse(text, place, what)
            yield text[place:end].encode(), _as_object(event, what)
            place = _skip_whitespace(text, end)
            follows = text[place : place + 1]
            place = _skip_whitespace(text, place + 1)
            if follows == "]":
                break
            if follows != ",":
                raise Refusal(400, f"the body is not JSON: no comma or ] after event {number}")
    if place != len(text):
        raise Refusal(400, "the body is not JSON: more follows the array")


def _parse_object(text: str, what: str) -> dict[str, Any]:
    value, end = _parse(text, 0, what)
    if end != len(text):
        raise Refusal(400, f"{what} is not JSON: more follows the value")
    return _as_object(value, what)


def _parse(text: str, place: int, what: str) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, place)
    except RecursionError:
        raise Refusal(400, f"{what} is nested too deep") from None
    except ValueError as exc:
        reason = exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)
        raise Refusal(400, f"{what} is not JSON: {reason}") from None
    # Most events have fewer brackets than levels are allowed, so they are not walked through.
    if text.count("{", place, end) + text.count("[", place, end) > MAX_LEVELS and _is_too_deep(
        value
    ):
        raise Refusal(400, f"{what} is nested too deep")
    return value, end


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"{what} is not a JSON object, and events are")
    return value


def _skip_whitespace(text: str, place: int) -> int:
    found = _WHITESPACE_RUN.match(text, place)
    return found.end() if found is not None else place
