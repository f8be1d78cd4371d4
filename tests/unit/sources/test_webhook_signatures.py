"""Signatures as the schemes publish them, computed here."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from icestream.sources.webhook.options import WebhookAuth
from icestream.sources.webhook.requests import Refusal, Verifier

NOW = 1_614_265_330
BODY = b'{"test": 2432232314}'
# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - published
SIGNED = {
    b"webhook-id": b"msg_p5jXN8AQM9LWM0D4loKWxJek",
    b"webhook-timestamp": b"1614265330",
    b"webhook-signature": b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def verifier(kind: str, *secrets: str, now: float = NOW) -> Verifier:
    auth = WebhookAuth.model_validate({"type": kind, "secrets": secrets})
    return Verifier(auth, lambda: now)


def refusal(check: Verifier, headers: dict[bytes, bytes], body: bytes = BODY) -> str:
    def look() -> None:
        check.check_headers(headers)
        check.verify(headers, body)

    with pytest.raises(Refusal) as caught:
        look()
    assert caught.value.status == 401
    return caught.value.reason


def standard(secret: str, message: bytes, stamp: int, body: bytes) -> bytes:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = message + b"." + str(stamp).encode() + b"." + body
    return b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())


def test_published_example_of_standard_webhooks_is_accepted() -> None:
    verifier("standard-webhooks", SECRET).verify(SIGNED, BODY)
    assert standard(SECRET, SIGNED[b"webhook-id"], NOW, BODY) == SIGNED[b"webhook-signature"]


@pytest.mark.parametrize("name", list(SIGNED))
def test_standard_signature_covers_id_time_and_body(name: bytes) -> None:
    check = verifier("standard-webhooks", SECRET)
    assert refusal(check, SIGNED, BODY + b" ") == "no signature matches the body"
    assert (
        refusal(check, {**SIGNED, b"webhook-id": b"msg_other"}) == "no signature matches the body"
    )
    later = {**SIGNED, b"webhook-timestamp": b"1614265331"}
    assert refusal(check, later) == "no signature matches the body"
    without = {key: value for key, value in SIGNED.items() if key != name}
    assert refusal(check, without) == f"the header {name.decode()!r} is missing"


def test_one_of_several_signatures_is_enough() -> None:
    check = verifier("standard-webhooks", SECRET)
    ours = SIGNED[b"webhook-signature"]
    for several in (b"v1,bm9uZQ== " + ours, ours + b" v1,bm9uZQ==", b"v1a,x v1, v1,?? v2 " + ours):
        check.verify({**SIGNED, b"webhook-signature": several}, BODY)
    other = ours.replace(b"v1,", b"v2,")
    assert (
        refusal(check, {**SIGNED, b"webhook-signature": other}) == "no signature matches the body"
    )


def test_signatures_beyond_sixteen_are_ignored() -> None:
    check = verifier("standard-webhooks", SECRET)
    many = b"v1,bm9uZQ== " * 16 + SIGNED[b"webhook-signature"]
    assert refusal(check, {**SIGNED, b"webhook-signature": many}) == "no signature matches the body"


@pytest.mark.parametrize("secret", [SECRET, "whsec_" + base64.b64encode(b"n" * 24).decode()])
def test_both_secrets_are_accepted(secret: str) -> None:
    check = verifier("standard-webhooks", SECRET, "whsec_" + base64.b64encode(b"n" * 24).decode())
    headers = {**SIGNED, b"webhook-signature": standard(secret, SIGNED[b"webhook-id"], NOW, BODY)}
    check.verify(headers, BODY)


@pytest.mark.parametrize("away", [-300, -299, 0, 300])
def test_timestamp_within_300_seconds_is_accepted(away: int) -> None:
    verifier("standard-webhooks", SECRET, now=NOW + away).verify(SIGNED, BODY)


def test_timestamps_beyond_300_seconds_are_refused() -> None:
    old = verifier("standard-webhooks", SECRET, now=NOW + 301)
    message = "the timestamp of the signature is 301 s old, more than 300 s"
    assert refusal(old, SIGNED) == message
    ahead = verifier("standard-webhooks", SECRET, now=NOW - 301)
    assert refusal(ahead, SIGNED) == (
        "the timestamp of the signature is 301 s ahead, more than 300 s"
    )


@pytest.mark.parametrize("stamp", [b"now", b"-1", b"1e9", b" 1614265330", b"9" * 400])
def test_timestamp_that_is_not_epoch_seconds_is_refused(stamp: bytes) -> None:
    check = verifier("standard-webhooks", SECRET)
    assert refusal(check, {**SIGNED, b"webhook-timestamp": stamp}) == (
        "the timestamp of the signature is not in epoch seconds"
    )


def stripe(secret: str, stamp: int = NOW, body: bytes = BODY) -> str:
    signed = str(stamp).encode() + b"." + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def test_stripe_signature_matches_by_any_v1_part_and_either_secret() -> None:
    check = verifier("stripe", "whsec_new", "whsec_old")
    for parts in (
        f"t={NOW},v1={stripe('whsec_new')}",
        f"t={NOW}, v1={'0' * 64}, v1={stripe('whsec_old')}, v0=ignored",
    ):
        check.verify({b"stripe-signature": parts.encode()}, BODY)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (f"t={NOW},v1={stripe('other')}", "no signature matches the body"),
        (f"t={NOW},v0={stripe('whsec_new')}", "no signature matches the body"),
        (f"t={NOW},v1=xyz", "no signature matches the body"),
        (f"t={NOW}", "no signature matches the body"),
        (
            f"v1={stripe('whsec_new')}",
            "the timestamp of the signature is not in epoch seconds",
        ),
        (
            f"t={NOW - 400},v1={stripe('whsec_new', NOW - 400)}",
            "the timestamp of the signature is 400 s old, more than 300 s",
        ),
        ("", "the header 'stripe-signature' is missing"),
    ],
)
def test_invalid_stripe_signatures_are_refused(header: str, reason: str) -> None:
    check = verifier("stripe", "whsec_new")
    assert refusal(check, {b"stripe-signature": header.encode()}) == reason


def test_published_example_of_github_is_accepted() -> None:
    check = verifier("github", "It's a Secret to Everybody")
    signature = b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    check.verify({b"x-hub-signature-256": signature}, b"Hello, World!")
    assert refusal(check, {b"x-hub-signature-256": signature}) == "no signature matches the body"
    other = signature.replace(b"sha256", b"sha1")
    assert refusal(check, {b"x-hub-signature-256": other}, b"Hello, World!") == (
        "no signature matches the body"
    )
    assert refusal(check, {}) == "the header 'x-hub-signature-256' is missing"


@pytest.mark.parametrize("header", [b"Bearer token-a", b"bearer token-b", b"BEARER  token-a "])
def test_bearer_token_is_checked_before_the_body_arrives(header: bytes) -> None:
    verifier("bearer", "token-a", "token-b").check_headers({b"authorization": header})


@pytest.mark.parametrize("header", [b"Bearer token", b"Bearer", b"Basic token-a", b"token-a"])
def test_wrong_tokens_are_refused(header: bytes) -> None:
    check = verifier("bearer", "token-a")
    assert refusal(check, {b"authorization": header}) == "the bearer token is wrong"
    assert refusal(check, {}) == "the header 'authorization' is missing"


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ({"type": "bearer"}, "type 'bearer' needs `secrets`, and one is missing or empty"),
        ({"type": "github", "secrets": ["a", ""]}, "needs `secrets`, and one is missing or empty"),
        ({"type": "none", "secrets": "a"}, "type 'none' takes no `secrets`"),
        (
            {"type": "standard-webhooks", "secrets": [SECRET, "whsec_not base64"]},
            "secret 2 is not `whsec_` followed by base64, as Standard Webhooks defines",
        ),
        ({"type": "bearer", "secrets": ["a", "b", "c"]}, "at most 2 items"),
    ],
)
def test_invalid_secrets_are_refused_without_showing_them(
    auth: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        WebhookAuth.model_validate(auth)
    assert message in str(caught.value)
    assert "not base64" not in str(caught.value)
