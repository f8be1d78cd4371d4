from __future__ import annotations

import gzip
import os
import time
from typing import Any

import pytest

from icestream.sources.webhook.group_commit import RateLimiter
from icestream.sources.webhook.requests import Refusal, decompress, is_gzip, is_ndjson, parse_events


def events(body: str, *, lines: bool = False) -> list[bytes]:
    return [raw for raw, _ in parse_events(body.encode(), lines=lines)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (' {"a": 1.10}\n', [b'{"a": 1.10}']),
        ('[{"a":1e400} ,\n{"b":"]},{"}]', [b'{"a":1e400}', b'{"b":"]},{"}']),
        ('[{"a": "\\u2028 ä"}]', ['{"a": "\\u2028 ä"}'.encode()]),
        ("[]", []),
        (" [ ] ", []),
        ("{}", [b"{}"]),
    ],
)
def test_events_are_kept_as_they_were_written(body: str, found: list[bytes]) -> None:
    assert events(body) == found


def test_lines_are_events_and_blank_lines_are_skipped() -> None:
    assert events('{"a": 1}\r\n\n {"b": "x\u2028y"}', lines=True) == [
        b'{"a": 1}',
        '{"b": "x\u2028y"}'.encode(),
    ]
    assert events("", lines=True) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "the body is not JSON: Expecting value"),
        ("{", "the body is not JSON: Expecting property name enclosed in double quotes"),
        ('{"a": NaN}', "the body is not JSON: NaN is not JSON"),
        ("{} {}", "the body is not JSON: unexpected text after the value"),
        ("7", "the body is not a JSON object"),
        ("[{}, 7]", "event 2 of the array is not a JSON object"),
        ("[{}", "the body is not JSON: expected a comma or ] after event 1"),
        ("[{} {}]", "the body is not JSON: expected a comma or ] after event 1"),
        ("[{},]", "event 2 of the array is not JSON: Expecting value"),
        ("[{}] 1", "the body is not JSON: unexpected text after the array"),
        ("[] 1", "the body is not JSON: unexpected text after the array"),
        ("[", "event 1 of the array is not JSON: Expecting value"),
        ('{"a":' + "[" * 200_000, "the body is nested too deeply"),
    ],
)
def test_invalid_bodies_are_refused_with_the_reason(body: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        events(body)
    assert (caught.value.status, caught.value.reason) == (400, reason)


def test_line_that_is_not_an_object_is_refused_by_its_number() -> None:
    with pytest.raises(Refusal) as caught:
        events('{"a": 1}\n\n[1]\n', lines=True)
    assert caught.value.reason == "line 3 is not a JSON object"


def test_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(Refusal, match="the body is not JSON: Exceeds the limit"):
        events('{"a": ' + "9" * 5000 + "}")


def test_body_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        list(parse_events(b'{"a": "\xff"}', lines=False))
    assert caught.value.reason == "the body is not UTF-8"


def test_gzip_members_are_decompressed_up_to_the_limit() -> None:
    both = gzip.compress(b"a" * 600, mtime=0) + gzip.compress(b"b" * 400, mtime=0)
    assert decompress(both, 1000) == b"a" * 600 + b"b" * 400
    with pytest.raises(Refusal) as caught:
        decompress(both + gzip.compress(b"c", mtime=0), 1024 - 24)
    assert caught.value.status == 413


def test_decompression_bomb_is_refused_early() -> None:
    bomb = gzip.compress(b"\0" * (30 << 20), 1)
    with pytest.raises(Refusal) as caught:
        decompress(bomb, 1 << 20)
    assert (caught.value.status, caught.value.reason) == (413, "the body is larger than 1024 KiB")


def test_thousands_of_gzip_members_are_decompressed_quickly() -> None:
    body = gzip.compress(b"") * 200_000 + gzip.compress(b"{}")
    began = time.process_time()
    assert decompress(body, 1000) == b"{}"
    assert time.process_time() - began < 5


def test_gzip_body_larger_than_a_chunk_is_decompressed() -> None:
    content = os.urandom(100_000)
    assert decompress(gzip.compress(content) + gzip.compress(b"end"), 200_000) == content + b"end"
    assert decompress(b"", 10) == b""


@pytest.mark.parametrize("outer", ["{}", '[{"a": 1}, {}]'])
def test_object_of_64_levels_is_accepted_and_a_deeper_one_refused(outer: str) -> None:
    def nested(levels: int) -> str:
        event = '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)
        return outer.replace("{}", event)

    assert events(nested(64))[-1].startswith(b'{"a":{"a"')
    assert len(events('{"a": [' + ",".join(["{}"] * 1000) + "]}")) == 1
    with pytest.raises(Refusal, match="is nested too deeply"):
        events(nested(65))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no gzip", "the body is not gzip"),
        (gzip.compress(b"whole", mtime=0)[:-4], "the gzip body is truncated"),
        (gzip.compress(b"whole", mtime=0) + b"rest", "the body is not gzip"),
    ],
)
def test_broken_gzip_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        decompress(body, 1000)
    assert (caught.value.status, caught.value.reason) == (400, reason)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (b"application/json; charset=utf-8", False),
        (b"Application/CloudEvents+JSON", False),
        (b"application/x-ndjson", True),
        (None, False),
    ],
)
def test_content_type_distinguishes_ndjson_from_json(kind: bytes | None, lines: bool) -> None:
    assert is_ndjson({} if kind is None else {b"content-type": kind}) is lines


@pytest.mark.parametrize(
    ("look", "headers", "reason"),
    [
        (
            is_ndjson,
            {b"content-type": b"application/x-www-form-urlencoded"},
            "content type 'application/x-www-form-urlencoded' is not JSON: application/json or "
            "x-ndjson",
        ),
        (is_gzip, {b"content-encoding": b"br"}, "content encoding 'br' is not gzip"),
    ],
)
def test_other_types_and_encodings_are_refused(
    look: Any, headers: dict[bytes, bytes], reason: str
) -> None:
    with pytest.raises(Refusal) as caught:
        look(headers)
    assert (caught.value.status, caught.value.reason) == (415, reason)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_limit_allows_a_burst_and_returns_retry_after() -> None:
    clock = Clock()
    rate = RateLimiter(0.5, 3, clock)
    for _ in range(3):
        rate.acquire()
    with pytest.raises(Refusal) as caught:
        rate.acquire()
    assert (caught.value.status, caught.value.retry_after) == (429, 2)
    assert caught.value.reason == "more than 0.5 requests per second"
    clock.now += 2
    rate.acquire()
    clock.now += 1_000
    for _ in range(3):
        rate.acquire()
    with pytest.raises(Refusal):
        rate.acquire()
