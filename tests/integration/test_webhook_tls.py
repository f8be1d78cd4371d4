"""HTTPS, and certificates that cannot be used."""

from __future__ import annotations

import ssl
import subprocess
from http.client import HTTPSConnection
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.webhook_server import JSON, Server

from icestream.errors import ConnectorError
from icestream.sources.webhook import WebhookOptions
from icestream.sources.webhook.server import tls_context

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)


def test_https_uses_the_configured_certificate(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    cert, key = certificate
    context = ssl.create_default_context(cafile=cert)
    with Server(tmp_path, tls={"cert": cert, "key": key}) as server:
        connection = HTTPSConnection("localhost", server.endpoint.port, timeout=20, context=context)
        connection.request("POST", "/events", '{"a": 1}', JSON)
        assert connection.getresponse().status == 200
        connection.close()
        assert server.events == [{"a": 1}]


def test_incomplete_handshake_times_out(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    tls = {"cert": cert, "key": key}
    with Server(tmp_path, tls=tls, receive_timeout_secs=0.5) as server, server.raw() as connection:
        connection.sendall(b"\x16\x03\x01")
        assert connection.recv(100) == b""


def test_unusable_certificate_is_reported(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, _ = certificate
    other = tmp_path / "none.pem"
    options = WebhookOptions.model_validate(
        {"port": 8480, "tls": {"cert": cert, "key": str(other)}}
    )
    with pytest.raises(ConnectorError) as caught:
        tls_context(options)
    assert str(caught.value) == (
        f"source webhook 127.0.0.1:8480: cannot use the certificate {cert!r} with the key "
        f"{str(other)!r}: no such file or directory\n"
        "  Both must be PEM files that belong together, the key without a password."
    )
    other.write_text("no key")
    with pytest.raises(ConnectorError, match="cannot use the certificate"):
        tls_context(options)
