from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from icestream.catalogs.glue import GlueSettings
from icestream.contracts.faults import check_connection
from icestream.contracts.options import HttpAddress
from icestream.errors import ConnectorError
from icestream.storage.azure import AzureOptions
from icestream.storage.gcs import GcsOptions
from icestream.storage.s3 import S3Options

LONG = "a" * 64
ADDRESS: TypeAdapter[str] = TypeAdapter(HttpAddress)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:10000/devstoreaccount1", "https://store.example/", "http://[::1]:9000"],
)
def test_server_address_is_accepted_unchanged(address: str) -> None:
    assert ADDRESS.validate_python(address) == address


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "127.0.0.1:9000",
            "is not the address of a server; write http://HOST:PORT or https://HOST",
        ),
        ("s3://bucket", "is not the address of a server; write http://HOST:PORT or https://HOST"),
        ("http://", "is not the address of a server; write http://HOST:PORT or https://HOST"),
        ("http://h:80a0", "has an invalid host or port"),
        ("http://h:65536", "has an invalid host or port"),
        ("http://[::1", "has an invalid host or port"),
        (f"http://{LONG}.example", "has an invalid host or port"),
        ("http://h\n", "contains a space or a line break"),
        (
            "http://me:pass@h",
            "contains a user or a password, which would be shown; remove them",
        ),
        ("http://h/?sig=x", "contains more than an address; end it before the ? or #"),
    ],
)
def test_invalid_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ADDRESS.validate_python(address)
    (error,) = caught.value.errors()
    assert error["msg"] == f"Value error, {message}"


@pytest.mark.parametrize("options", [S3Options, GcsOptions, AzureOptions, GlueSettings])
def test_endpoint_of_each_block_is_an_address(options: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        options.model_validate({"endpoint": "localhost:9000"})
    assert caught.value.errors()[0]["loc"] == ("endpoint",)


@pytest.mark.parametrize("address", ["http://h:80a0", f"http://{LONG}", "http://[::1"])
def test_invalid_address_error_names_its_key(address: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        check_connection(address, "catalog 'lake'", "`rest.uri`")
    assert str(caught.value) == (
        "catalog 'lake': invalid host or port in `rest.uri`\n"
        "  Check the spelling of `rest.uri`; a port is a number up to 65535."
    )
