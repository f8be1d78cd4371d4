"""What a check of a store asks first, and what it shows of a fault."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icestream.catalogs.nessie import NessieCatalog, NessieCatalogOptions
from icestream.errors import ConnectorError
from icestream.storage import azure, gcs
from icestream.storage.azure import AzureOptions, AzureStorage
from icestream.storage.gcs import GcsOptions, GcsStorage
from icestream.storage.s3 import S3Options, S3Storage

KEYS = {"access_key_id": "some-id", "secret_access_key": "some-secret"}


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    places: list[tuple[str, str]] = []

    def note(address: str, where: str, key: str) -> str:
        places.append((address, key))
        return where

    for module in (azure, gcs):
        monkeypatch.setattr(module, "check_connection", note)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return places


def account(**options: Any) -> AzureStorage:
    return AzureStorage(AzureOptions.model_validate({"storage_account": "acct", **options}))


def test_account_of_azure_is_reached_first(connections: list[tuple[str, str]]) -> None:
    next(iter(account().check("abfss://c@acct.dfs.core.windows.net"))).run()
    assert connections == [("acct.blob.core.windows.net:443", "`azure.storage_account`")]


def test_configured_endpoint_is_reached_instead(connections: list[tuple[str, str]]) -> None:
    next(iter(account(endpoint="http://h:1/acct").check("abfss://c@h"))).run()
    assert connections == [("http://h:1/acct", "`azure.endpoint`")]


def test_google_is_reached_first(connections: list[tuple[str, str]]) -> None:
    next(iter(GcsStorage(GcsOptions.model_validate({})).check("gs://b"))).run()
    assert connections == [("storage.googleapis.com:443", "`gcs.endpoint`")]


def test_no_direct_connection_is_attempted_with_a_proxy(
    connections: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    stores = {"abfss://c@a": account(), "gs://b": GcsStorage(GcsOptions.model_validate({}))}
    for place, store in stores.items():
        assert next(iter(store.check(place))).name == "list store"
    assert connections == []


class QuotingIO(PyArrowFileIO):
    """Quotes its secret in a fault of Arrow's own."""

    def new_output(self, location: str) -> Any:
        raise pa.ArrowInvalid(f"cannot sign {location[:4]} by some-secret")


def test_fault_of_arrow_is_shown_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Storage(S3Options.model_validate(KEYS))
    reader = f"{QuotingIO.__module__}.{QuotingIO.__name__}"
    monkeypatch.setattr(store, "pyiceberg_properties", lambda: {"py-io-impl": reader})
    steps = {step.name: step for step in store.check("s3://b")}
    with pytest.raises(ConnectorError) as caught:
        steps["write an object"].run()
    assert str(caught.value) == (
        "storage s3 of Amazon: the store answered: ArrowInvalid: cannot sign s3:/ by ***\n"
        "  Check the `s3` block."
    )


def test_catalog_masks_the_secrets_of_the_sinks_store() -> None:
    options = {"nessie": {"uri": "http://h", "token": "some-token"}}
    store = S3Storage(S3Options.model_validate({"bucket": "b", **KEYS}))
    catalog = NessieCatalog("lake", NessieCatalogOptions.model_validate(options), store)
    assert catalog.mask_secrets("some-token, some-secret, b") == "***, ***, b"
