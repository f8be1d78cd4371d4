"""The faults of the tests' own proxy, seen by a client."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.fixtures.fault_proxy import FaultProxy

MakeProxy = Callable[[int], FaultProxy]


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1024):
            self.request.sendall(data.upper())


@pytest.fixture
def echo_port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        # Stops the loop of its thread; `with` closes the listener.
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def connected(proxy: FaultProxy, secs: float = 10) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=secs)


def ask(client: socket.socket, question: bytes) -> bytes:
    client.sendall(question)
    return client.recv(1024)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1024) == b""
    except ConnectionResetError:
        # What the other side says when it closes with something still unread.
        return True


def test_proxy_forwards_requests_and_responses(fault_proxy: MakeProxy, echo_port: int) -> None:
    with connected(fault_proxy(echo_port)) as client:
        assert ask(client, b"one") == b"ONE"
        assert ask(client, b"two") == b"TWO"


def test_cut_proxy_closes_and_refuses_connections_until_restored(
    fault_proxy: MakeProxy, echo_port: int
) -> None:
    proxy = fault_proxy(echo_port)
    port = proxy.port
    with connected(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        proxy.cut()

        assert is_closed(client)
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.restore()
    with connected(proxy) as client:
        assert (proxy.port, ask(client, b"two")) == (port, b"TWO")


def test_hanging_proxy_accepts_connections_and_responds_once_restored(
    fault_proxy: MakeProxy, echo_port: int
) -> None:
    proxy = fault_proxy(echo_port)
    with connected(proxy) as old:
        assert ask(old, b"one") == b"ONE"
        proxy.hang()
        with connected(proxy) as new:
            old.settimeout(0.3)
            new.settimeout(0.3)
            with pytest.raises(TimeoutError):
                ask(old, b"two")
            with pytest.raises(TimeoutError):
                ask(new, b"three")
            proxy.restore()
            for client, answer in ((old, b"TWO"), (new, b"THREE")):
                client.settimeout(60)
                assert client.recv(1024) == answer


def test_hanging_proxy_can_be_cut(fault_proxy: MakeProxy, echo_port: int) -> None:
    proxy = fault_proxy(echo_port)
    proxy.hang()
    with connected(proxy) as client:
        client.sendall(b"one")
        proxy.cut()

        assert is_closed(client)


def test_proxy_delays_requests_and_responses(fault_proxy: MakeProxy, echo_port: int) -> None:
    proxy = fault_proxy(echo_port)
    proxy.delay(100)
    with connected(proxy) as client:
        started = time.monotonic()
        assert ask(client, b"one") == b"ONE"
        assert time.monotonic() - started >= 0.2


def test_proxy_closes_connections_if_its_target_is_down(fault_proxy: MakeProxy) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with connected(fault_proxy(unused.getsockname()[1])) as client:
            assert is_closed(client)
