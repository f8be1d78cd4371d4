"""PostgreSQL reports a fault of the connection in the same sentence as every other connector."""

from __future__ import annotations

import psycopg
import pytest

from icestream.errors import IcestreamError, RefusedError, UnreachableError
from icestream.sources.postgres_cdc.faults import to_error
from icestream.sources.postgres_cdc.options import PostgresCdcOptions

OPTIONS = PostgresCdcOptions(host="db", port=5433, database="shop", user="app")
ATTEMPT = 'connection failed: connection to server at "db", port 5433 failed: '


@pytest.mark.parametrize(
    ("text", "error_type", "what", "todo"),
    [
        (
            "failed to resolve host 'db': [Errno -2] Name or service not known",
            UnreachableError,
            "cannot resolve the host name of db:5433",
            "Check the spelling of `host` and `port`, and that this machine's DNS resolves the "
            "name.",
        ),
        (
            'could not translate host name "db" to address: Unknown error',
            UnreachableError,
            "cannot resolve the host name of db:5433",
            "Check the spelling of `host` and `port`, and that this machine's DNS resolves the "
            "name.",
        ),
        (
            f"{ATTEMPT}Connection refused\n\tIs the server running on that host?",
            UnreachableError,
            "connection to db:5433 refused",
            "Is the server running? Check `host` and `port`.",
        ),
        (
            "connection timeout expired",
            UnreachableError,
            "no answer from db:5433",
            "Is the server running? Check `host` and `port`. Is a firewall, a VPN or a proxy in "
            "between?",
        ),
        (
            f"{ATTEMPT}server does not support SSL, but SSL was required",
            RefusedError,
            "TLS connection to db:5433 failed: server does not support SSL, but SSL was required",
            "Check `sslmode`, and the certificates of the server and of this host.",
        ),
    ],
)
def test_connection_faults_have_the_shared_sentences(
    text: str, error_type: type[IcestreamError], what: str, todo: str
) -> None:
    error = to_error(psycopg.OperationalError(text), OPTIONS)
    assert type(error) is error_type
    assert (error.where, error.what, error.todo) == (
        "source postgres-cdc db:5433/shop",
        what,
        todo,
    )
