"""What any client on the network can do to the endpoint, without a signature or a token."""

from __future__ import annotations

import gzip
import hmac
import json
import resource
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.waiting import wait_until
from tests.fixtures.webhook_server import JSON, Server

from icestream.sources.webhook import connections, receiver
from icestream.sources.webhook import server as server_module
from icestream.sources.webhook.server import bind_socket

if TYPE_CHECKING:
    from pathlib import Path

CHUNKED = b"POST /events HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
WHOLE = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


def send_until_cut_off(connection: socket.socket, piece: bytes) -> int:
    """Return how many bytes went out before the other side reset the connection."""
    sent = 0
    try:
        while sent < 64 << 20:
            sent += connection.send(piece)
    except (ConnectionResetError, BrokenPipeError):
        return sent
    pytest.fail("everything was read")


def answer_to(connection: socket.socket) -> tuple[bytes, dict[str, str]]:
    """Return the status line and the body of the response, once the server has closed."""
    found = b""
    while part := connection.recv(65_536):
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    return head, json.loads(body)


@pytest.mark.parametrize("trailer", [b"a:b\r\n", b"y"])
def test_endless_trailers_are_refused(tmp_path: Path, trailer: bytes) -> None:
    with Server(tmp_path) as server, server.raw() as connection:
        connection.sendall(CHUNKED)
        sent = send_until_cut_off(connection, trailer * (32_768 // len(trailer)))
        assert sent < 16 << 20
        assert server.endpoint.spool.end == 0


def test_trailers_are_ignored(tmp_path: Path) -> None:
    with Server(tmp_path, include=["event_id"]) as server, server.raw() as connection:
        connection.sendall(CHUNKED + b"idempotency-key: late\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert server.facts("event_id") == [{"webhook_event_id": None}]


def test_body_of_small_chunks_does_not_count_as_headers(tmp_path: Path) -> None:
    event = b'{"a": "' + b"x" * 100_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in event)
    head, _, _ = CHUNKED.partition(b"2\r\n{}")
    with Server(tmp_path) as server, server.raw() as connection:
        connection.sendall(head + chunks + b"0\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\r\n\r\n",
        b"POST /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        WHOLE.replace(b"host: x", b"content-length: 2"),
        CHUNKED.replace(b"host: x", b"content-length: 2"),
    ],
)
def test_malformed_http_gets_a_json_refusal(tmp_path: Path, sent: bytes) -> None:
    with Server(tmp_path) as server, server.raw() as connection:
        connection.sendall(sent)
        head, body = answer_to(connection)
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert body == {"error": "malformed HTTP request"}
        assert server.endpoint.spool.end == 0


def test_connections_leave_half_of_the_descriptors_to_the_pipeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for files, most in ((1_024, 512), (65_536, 1_000), (resource.RLIM_INFINITY, 1_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert connections.max_connections() == most


def test_connection_above_the_limit_gets_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.webhook.connections.MAX_CONNECTIONS", 1)
    with Server(tmp_path) as server, server.raw() as first:
        first.sendall(WHOLE)
        assert first.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")
        with server.raw() as second:
            head, body = answer_to(second)
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1" in head
        assert body == {"error": "too many connections"}


def test_sender_that_reads_no_responses_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrowed(found: socket.socket) -> socket.socket:
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            found.setsockopt(socket.SOL_SOCKET, side, 4_096)
        return found

    monkeypatch.setattr(
        server_module, "bind_socket", lambda options: narrowed(bind_socket(options))
    )
    with Server(tmp_path, receive_timeout_secs=0.5) as server, socket.socket() as connection:
        connection.settimeout(60)
        narrowed(connection).connect(("127.0.0.1", server.endpoint.port))
        refused = WHOLE.replace(b"/events", b"/nowhere") * 20
        send_until_cut_off(connection, refused)
        open_ones = server.endpoint._server.server_state.connections
        wait_until(lambda: not open_ones, "the connection to end")


@pytest.mark.parametrize(
    ("auth", "forged"),
    [
        ({"type": "bearer", "secrets": "t"}, {"Authorization": "Bearer x"}),
        ({"type": "github", "secrets": "t"}, {"X-Hub-Signature-256": "sha256=00"}),
    ],
)
def test_unauthenticated_requests_do_not_use_up_the_rate(
    tmp_path: Path, auth: dict[str, str], forged: dict[str, str]
) -> None:
    signature = hmac.digest(b"t", b"{}", "sha256").hex()
    known = {"Authorization": "Bearer t", "X-Hub-Signature-256": f"sha256={signature}"}
    with Server(tmp_path, rate_per_sec=0.01, burst=1, auth=auth) as server:
        assert [server.ask("{}", headers={**JSON, **forged})[0] for _ in range(3)] == [401] * 3
        assert [server.ask("{}", headers={**JSON, **known})[0] for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    "body", [b'{"a": "%s"}' % (b"x" * 900), b"[%s]" % b",".join([b"{}"] * 300)]
)
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_memory_of_waiting_requests_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, coding: str
) -> None:
    monkeypatch.setattr(receiver, "IN_FLIGHT_BYTES", 5_000)
    sent = gzip.compress(body) if coding == "gzip" else body
    headers = {**JSON, "Content-Encoding": coding}
    with Server(tmp_path, max_body_kb=1) as server:
        spool, real = server.endpoint.spool, server.endpoint.spool.append
        gate = threading.Event()

        def slow(arrivals: Any) -> list[bool]:
            assert gate.wait(120)
            return real(arrivals)

        monkeypatch.setattr(spool, "append", slow)
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask(sent, headers=headers)[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: 503 in answers, "a request to be put off")
        finally:
            gate.set()
            for thread in threads:
                thread.join()
        assert set(answers) == {200, 503}
        assert server.ask(sent, headers=headers)[0] == 200
