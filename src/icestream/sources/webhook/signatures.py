"""Tells whether a request comes from whom it should: signatures and tokens, in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode
from binascii import Error as NotBase64Error
from typing import TYPE_CHECKING

from icestream.sources.webhook.options import standard_key
from icestream.sources.webhook.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from icestream.sources.webhook.options import AuthType, WebhookAuth

TOLERANCE_SECS = 300
# Each costs a comparison, and a sender has no use for more than a few.
MOST_SIGNATURES = 16
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

    def refuse_stranger(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse by the headers alone, before a body is read.

        Raises:
            Refusal: what must be there is not, or the token is wrong.
        """
        if self.type == "bearer":
            self._bearer(headers)
        elif self.type == "standard-webhooks":
            for name in (b"webhook-id", b"webhook-timestamp", b"webhook-signature"):
                _needed(headers, name)
        elif self.type == "stripe":
            _needed(headers, b"stripe-signature")
        elif self.type == "github":
            _needed(headers, b"x-hub-signature-256")

    def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        """Check the signature of a body, byte for byte as it was sent.

        Raises:
            Refusal: it does not match, or is too old or from the future.
        """
        self._verify(headers, body)

    def _bearer(self, headers: Mapping[bytes, bytes]) -> None:
        kind, _, token = _needed(headers, b"authorization").partition(b" ")
        if kind.lower() != b"bearer" or not _matches(self._keys, [token.strip()]):
            raise Refusal(401, "the bearer token is not the one expected")

    def _standard(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        stamp = _needed(headers, b"webhook-timestamp")
        self._refuse_other_times(stamp)
        signed = b".".join((_needed(headers, b"webhook-id"), stamp, body))
        told = (part.split(b",", 1) for part in _needed(headers, b"webhook-signature").split(b" "))
        given = [_from_base64(part[1]) for part in told if part[0] == b"v1" and len(part) == 2]
        self._refuse_forged(signed, given)

    def _stripe(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        parts = [
            part.strip().partition(b"=")[::2]
            for part in _needed(headers, b"stripe-signature").split(b",")
        ]
        stamp = next((value for name, value in parts if name == b"t"), b"")
        self._refuse_other_times(stamp)
        given = [_from_hex(value) for name, value in parts if name == b"v1"]
        self._refuse_forged(stamp + b"." + body, given)

    def _github(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        kind, _, value = _needed(headers, b"x-hub-signature-256").partition(b"=")
        self._refuse_forged(body, [_from_hex(value)] if kind == b"sha256" else [])

    def _refuse_other_times(self, stamp: bytes) -> None:
        if not SECONDS.fullmatch(stamp):
            raise Refusal(401, "the timestamp of the signature is not a number of seconds")
        away = self._now() - int(stamp)
        if abs(away) > TOLERANCE_SECS:
            told = f"{away:.0f} s old" if away > 0 else f"{-away:.0f} s ahead"
            raise Refusal(
                401, f"the timestamp of the signature is {told}, more than {TOLERANCE_SECS} s"
            )

    def _refuse_forged(self, signed: bytes, given: list[bytes]) -> None:
        expected = [hmac.digest(key, signed, hashlib.sha256) for key in self._keys]
        if not _matches(expected, given[:MOST_SIGNATURES]):
            raise Refusal(401, "no signature matches the body")


def _matches(expected: Iterable[bytes], given: list[bytes]) -> bool:
    """Compare each with each and stop at none, so that time tells nothing."""
    found = False
    for ours in expected:
        for theirs in given:
            found |= hmac.compare_digest(ours, theirs)
    return found


def _needed(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
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
