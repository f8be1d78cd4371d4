"""A store explains its own faults, and leaves those of sources and of Spark alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icestream.errors import RefusedError, UnreachableError
from icestream.storage.azure import AzureOptions, AzureStorage
from icestream.storage.gcs import GcsOptions, GcsStorage
from icestream.storage.s3 import S3Options, S3Storage

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage

AT = "http://127.0.0.1:9000"
STORES: tuple[Storage, ...] = (
    S3Storage(S3Options.model_validate({"endpoint": AT, "path_style_access": True})),
    GcsStorage(GcsOptions.model_validate({"endpoint": AT})),
    AzureStorage(AzureOptions.model_validate({"storage_account": "a", "endpoint": AT})),
)


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
@pytest.mark.parametrize(
    "message",
    [
        "SchemaRegistryError: 403 Forbidden (HTTP status 403, Status Code: 403)",
        "java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]",
        "OSError: [Errno 111] Connection refused: 127.0.0.1:9092",
        "com.google.common.util.concurrent.UncheckedExecutionException: timed out",
        "KafkaError: PERMISSION_DENIED, Name or service not known",
    ],
)
def test_fault_of_another_system_is_ignored(store: Storage, message: str) -> None:
    assert store.explain(message, "here") is None


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
def test_fault_at_the_address_of_the_store_belongs_to_it(store: Storage) -> None:
    message = "HttpHostConnectException: Connect to 127.0.0.1:9000 failed: Connection refused"
    assert isinstance(store.explain(message, "here"), UnreachableError)


class ForbiddingIO(PyArrowFileIO):
    """Refuses to write, in words that do not say whose they are."""

    def new_output(self, location: str) -> Any:
        raise PermissionError("Forbidden, UNAUTHENTICATED, (403, no reason given)")


@pytest.mark.parametrize(
    ("built", "warehouse"),
    [
        (S3Storage(S3Options.model_validate({})), "s3a://b"),
        (GcsStorage(GcsOptions.model_validate({})), "gs://b"),
        (AzureStorage(AzureOptions.model_validate({})), "wasb://c@a.blob.example"),
    ],
)
def test_every_fault_of_a_check_belongs_to_the_store(
    built: Storage, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = f"{ForbiddingIO.__module__}.{ForbiddingIO.__name__}"
    monkeypatch.setattr(built, "pyiceberg_properties", lambda: {"py-io-impl": reader})
    steps = {step.name: step for step in built.check(warehouse)}
    with pytest.raises(RefusedError):
        steps["write an object"].run()
