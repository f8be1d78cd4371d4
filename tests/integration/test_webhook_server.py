"""The endpoint over real sockets: what is taken, what is refused, and how long it waits."""

from __future__ import annotations

import gzip
import json
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.waiting import wait_until
from tests.fixtures.webhook_server import JSON, Server

from icestream.sources.webhook.connections import MAX_HEADER_BYTES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Started = Callable[..., Server]

LINES = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    servers: list[Server] = []

    def start(**changes: Any) -> Server:
        servers.append(Server(tmp_path, **changes))
        return servers[-1]

    yield start
    for server in servers:
        server.endpoint.close()


def received(connection: socket.socket) -> bytes:
    """Return all that comes until the other side ends the connection."""
    found = b""
    while part := connection.recv(65_536):
        found += part
    return found


def test_object_array_ndjson_and_gzip_are_accepted(started: Started) -> None:
    server = started()
    assert server.ask('{"a": 1}')[:2] == (200, {"taken": 1, "already_had": 0})
    assert server.ask('[{"a": 2}, {"a": 3}]')[1] == {"taken": 2, "already_had": 0}
    assert server.ask('{"a": 4}\n{"a": 5}\n', headers=LINES)[1]["taken"] == 2
    zipped = {**JSON, "Content-Encoding": "gzip"}
    assert server.ask(gzip.compress(b'{"a": 6}'), headers=zipped)[1]["taken"] == 1
    assert server.ask("[]")[:2] == (200, {"taken": 0, "already_had": 0})
    assert server.events == [{"a": number} for number in range(1, 7)]


def test_chunked_body_is_accepted_up_to_the_limit(started: Started) -> None:
    server = started(max_body_kb=1)
    assert server.ask(iter([b'{"a":', b" 1}"]), encode_chunked=True)[0] == 200
    many = iter([b'{"a": "', *[b"x" * 100] * 20, b'"}'])
    assert server.refused(many, encode_chunked=True) == (413, "the body is larger than 1 KiB")
    assert server.events == [{"a": 1}]


def test_invalid_requests_are_refused_with_their_reason(started: Started) -> None:
    server = started(max_body_kb=1)
    assert server.refused("{}", "/other") == (404, "unknown path")
    status, body, headers = server.ask(method="GET")
    assert (status, body["error"], headers["allow"]) == (405, "use POST", "POST")
    assert server.refused("{") == (
        400,
        "the body is not JSON: Expecting property name enclosed in double quotes",
    )
    assert server.refused("7") == (400, "the body is not a JSON object")
    assert server.refused("{}", headers={"Content-Type": "text/html"})[0] == 415
    assert server.refused("{}", headers={**JSON, "Content-Encoding": "br"})[0] == 415
    assert server.refused(b"x" * 2000) == (413, "the body is larger than 1 KiB")
    assert server.endpoint.spool.end == 0


def test_decompression_bomb_is_refused(started: Started) -> None:
    server = started()
    bomb = gzip.compress(b" " * (100 << 20))
    assert len(bomb) < 1 << 20
    refusal = server.refused(bomb, headers={**JSON, "Content-Encoding": "gzip"})
    assert refusal == (413, "the body is larger than 1024 KiB")


def test_connection_continues_after_a_body_that_was_too_large(started: Started) -> None:
    server = started(max_body_kb=1)
    connection = HTTPConnection("127.0.0.1", server.endpoint.port, timeout=20)
    for body, status in ((b"x" * 500_000, 413), (b"{}", 200)):
        connection.request("POST", "/events", body, JSON)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


def test_rate_limit_returns_retry_after(started: Started) -> None:
    server = started(rate_per_sec=0.01, burst=2)
    assert [server.ask("{}")[0] for _ in range(2)] == [200, 200]
    status, body, headers = server.ask("{}")
    assert (status, body["error"]) == (429, "more than 0.01 requests per second")
    assert 90 <= int(headers["retry-after"]) <= 100


def test_stream_is_chosen_by_path(started: Started) -> None:
    server = started(path=None, streams={"orders": "/o", "refunds": "/r"})
    key = {**JSON, "Idempotency-Key": "1"}
    for path in ("/o", "/r", "/o"):
        assert server.ask("{}", path, headers=key)[0] == 200
    assert server.refused("{}", "/")[0] == 404
    assert server.facts("stream", "event_id") == [
        {"webhook_stream": "orders", "webhook_event_id": "1"},
        {"webhook_stream": "refunds", "webhook_event_id": "1"},
    ]


def test_included_headers_contain_no_secrets(started: Started) -> None:
    auth = {"type": "bearer", "secrets": "token"}
    server = started(include=["headers"], auth=auth)
    secret = dict.fromkeys(("Cookie", "X-Gitlab-Token", "X-Api-Key", "X-Auth-Key"), "s")
    given = {**JSON, "Authorization": "Bearer token", "X-Shop": "mugs", "Author": "a", **secret}
    assert server.ask("{}", headers=given)[0] == 200
    ((headers,),) = [row.values() for row in server.facts("headers")]
    by_name = {each["key"]: each["value"] for each in headers}
    assert by_name["x-shop"] == "mugs"
    of_http = {"host", "accept-encoding", "content-length", "content-type"}
    assert by_name.keys() == {*of_http, "x-shop", "author"}


def test_repeated_id_is_acknowledged_and_not_stored_again(started: Started) -> None:
    server = started()
    key = {**JSON, "Idempotency-Key": "one"}
    assert server.ask('[{"a": 1}, {"a": 2}]', headers=key)[1]["taken"] == 2
    assert server.ask('[{"a": 1}, {"a": 2}]', headers=key)[:2] == (
        200,
        {"taken": 0, "already_had": 2},
    )
    server.endpoint.close()
    anew = started()
    assert anew.ask('{"a": 1}', headers=key)[1] == {"taken": 0, "already_had": 1}
    assert anew.events == [{"a": 1}, {"a": 2}]


def test_id_field_names_each_event_of_a_body(started: Started) -> None:
    server = started(id_field="n")
    assert server.ask('[{"n": 1}, {"n": "x"}, {"n": 1}]')[1] == {"taken": 2, "already_had": 1}
    assert server.ask('[{"n": 2}, {"n": "x"}]')[1] == {"taken": 1, "already_had": 1}
    assert server.ask('{"n": "1"}')[1] == {"taken": 1, "already_had": 0}, "a text, no number"
    for event in ("{}", '{"n": null}', '{"n": true}', '{"n": ""}', '{"n": 1.5}'):
        reason = "event 2 has no string or integer field 'n'"
        assert server.refused(f'[{{"n": 9}}, {event}]') == (400, reason)
    assert server.refused(json.dumps({"n": "x" * 2000})) == (
        400,
        "the id of the event is longer than 1024 bytes",
    )
    assert server.endpoint.spool.end == 4


def test_either_token_is_accepted(started: Started) -> None:
    server = started(auth={"type": "bearer", "secrets": ["new", "old"]})
    for token, status in (("new", 200), ("old", 200), ("older", 401)):
        assert server.ask("{}", headers={**JSON, "Authorization": f"Bearer {token}"})[0] == status
    assert server.refused("{}") == (401, "the header 'authorization' is missing")


def test_slow_sender_is_disconnected(started: Started) -> None:
    server = started(receive_timeout_secs=1)
    ended = threading.Event()
    began = time.monotonic()
    connection = server.raw()

    def drip() -> None:
        head = b"POST /events HTTP/1.1\r\nhost: x\r\nx-slow: "
        try:
            connection.sendall(head)
            while not ended.wait(0.1):
                connection.sendall(b"y")
        except OSError:
            return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        answer = connection.recv(65_536)
    finally:
        ended.set()
        thread.join()
        connection.close()
    assert time.monotonic() - began >= 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(body) == {"error": "the request did not arrive within 1 s"}


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{",
        b"POST /events HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_incomplete_request_times_out(started: Started, sent: bytes) -> None:
    server = started(receive_timeout_secs=0.5)
    with server.raw() as connection:
        connection.sendall(sent)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert server.endpoint.spool.end == 0


def test_deadline_applies_to_a_request_and_not_to_a_connection(started: Started) -> None:
    server = started(receive_timeout_secs=2)
    whole = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    with server.raw() as connection:
        opened, sent = time.monotonic(), 0
        while time.monotonic() < opened + 2.5:
            connection.sendall(whole)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")
            sent += 1
        connection.sendall(whole[:-1])
        assert received(connection).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert server.endpoint.spool.end == sent


def test_pipelined_requests_are_answered_in_order(started: Started) -> None:
    server = started()
    one = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    last = one.replace(b"host: x", b"host: x\r\nconnection: close")
    with server.raw() as connection:
        connection.sendall(one * 5 + last)
        assert received(connection).count(b"HTTP/1.1 200 OK\r\n") == 6


def test_large_body_in_one_chunk_does_not_count_as_headers(started: Started) -> None:
    server = started()
    body = b'{"a": "' + b"x" * 3 * MAX_HEADER_BYTES + b'"}'
    head = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    last = head.replace(b"host: x", b"host: x\r\nconnection: close")
    with server.raw() as connection:
        connection.sendall(head + body + head + body + last + body)
        assert received(connection).count(b"HTTP/1.1 200 OK\r\n") == 3


def test_endless_headers_are_refused(started: Started) -> None:
    server = started()
    with server.raw() as connection:
        connection.sendall(b"POST /events HTTP/1.1\r\nx-long: ")
        with suppress(OSError):
            connection.sendall(b"y" * 40 * MAX_HEADER_BYTES)
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_concurrent_requests_share_an_fsync(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = started()
    spool, real = server.endpoint.spool, server.endpoint.spool.append
    groups: list[int] = []
    gate = threading.Event()

    def slow(arrivals: Any) -> list[bool]:
        groups.append(len(arrivals))
        assert gate.wait(120)
        return real(arrivals)

    monkeypatch.setattr(spool, "append", slow)
    threads = [threading.Thread(target=server.ask, args=("{}",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    queue = server.endpoint._commit._waiting
    wait_until(lambda: sum(groups) + queue.qsize() >= 20, "all requests to wait")
    gate.set()
    for thread in threads:
        thread.join()
    assert sum(groups) == 20
    assert len(groups) <= 2
    assert spool.end == 20


def test_full_disk_and_full_spool_return_503(
    started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = started(max_spool_mb=4)
    big = json.dumps({"a": "x" * 1_000_000})
    answers = [server.ask(big) for _ in range(5)]
    assert [status for status, _, _ in answers] == [200, 200, 200, 200, 503]
    _, body, headers = answers[-1]
    assert (body["error"], headers["retry-after"]) == (
        "too many events are waiting for their commit",
        "10",
    )
    assert server.ask("{}")[0] == 200

    def refuse(_: Any) -> list[bool]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.endpoint.spool, "append", refuse)
    for _ in range(3):
        assert server.refused("{}") == (503, "the disk is full")
    rejecting = "rejecting events with 503, since the spool cannot be written: "
    assert caplog.messages == [
        rejecting + "it has reached `max_spool_mb`",
        "accepting events again",
        rejecting + "[Errno 28] No space left on device",
    ]
