"""The schema registry's real client, where no registry is."""

from __future__ import annotations

import pickle
import socket

import pyarrow as pa
import pytest
from pydantic import SecretStr

from icestream.decode.avro import AvroDecoder
from icestream.decode.registry import Registry, RegistryOptions
from icestream.errors import UnreachableError


def test_registry_that_does_not_answer_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        options = RegistryOptions(url=url, user="u", password=SecretStr("pw"))
        decoder = AvroDecoder(registry=Registry(options))
        again: AvroDecoder = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - our own bytes

        with pytest.raises(UnreachableError) as caught:
            again.decode(
                pa.array([b"\x00\x00\x00\x00\x07x"], pa.binary()), pa.schema([("id", pa.int64())])
            )

    assert str(caught.value) == (
        f"schema registry {url}: no schema registry answers\n"
        "  Is the registry running there? Check `schema_registry.url`."
    )
