"""The storage blocks that a sink or a catalog may hold, and the store that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from icestream.contracts.catalog import BLOCK_OF_SCHEME
from icestream.contracts.options import Options
from icestream.errors import PlanError
from icestream.storage.azure import AzureOptions, AzureStorage
from icestream.storage.gcs import GcsOptions, GcsStorage
from icestream.storage.local import LocalStorage
from icestream.storage.s3 import S3Options, S3Storage

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage


def as_uri(warehouse: str) -> str:
    """Return a place as the URI that every reader understands alike.

    Iceberg takes locations letter by letter, so nothing in a path is percent-encoded.

    Raises:
        PlanError: it lies in an object store, and names no bucket.
    """
    parts = urlsplit(warehouse)
    scheme = parts.scheme
    if scheme in BLOCK_OF_SCHEME and not parts.netloc:
        raise PlanError(
            f"the warehouse {warehouse!r} names no bucket",
            todo=f"Write `warehouse: {scheme}://BUCKET/FOLDER`.",
        )
    if scheme == "gcs":  # PyIceberg knows it, and Java does not.
        return "gs" + warehouse[len(scheme) :].rstrip("/")
    if len(scheme) > 1 and scheme != "file":
        return warehouse.rstrip("/")
    path = warehouse.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return f"file://{Path(path).expanduser().absolute()}"


KINDS = ("s3", "gcs", "azure")


class StorageBlocks(Options):
    """Where files lie; at most one of the three. Without any, the warehouse's address tells."""

    s3: S3Options | None = Field(None, description="S3 storage.")
    gcs: GcsOptions | None = Field(None, description="Google Cloud Storage.")
    azure: AzureOptions | None = Field(None, description="Azure storage.")

    @model_validator(mode="after")
    def _check_one(self) -> StorageBlocks:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"holds {' and '.join(given)}; files lie in one store, keep one block")
        return self

    def given_storage(self) -> Storage | None:
        """Return the store of the block that is given; None if there is none."""
        if self.s3 is not None:
            return S3Storage(self.s3)
        if self.gcs is not None:
            return GcsStorage(self.gcs)
        if self.azure is not None:
            return AzureStorage(self.azure)
        return None


def storage_for(warehouse: str, given: Storage | None) -> Storage:
    """Return the store that a warehouse lies in: the given one, or the one that its address means.

    Raises:
        PlanError: the given store is of another kind, or the address means none that is known.
    """
    if given is None:
        return storage_at(warehouse)
    if not given.covers(warehouse):
        bucket = "container" if given.kind == "azure" else "bucket"
        raise PlanError(
            f"the storage block is `{given.kind}`, and the warehouse {warehouse!r} lies elsewhere",
            todo=f"Give `{given.kind}.{bucket}`, or a `warehouse` that begins with "
            f"{given.schemes[0]}://; or take the block `{given.kind}` out.",
        )
    return given


def storage_at(warehouse: str | None) -> Storage:
    """Return the store that an address means, with credentials from that store's default chain.

    Raises:
        PlanError: it means none that is known.
    """
    scheme = urlsplit(warehouse or "").scheme
    if scheme in ("s3", "s3a", "s3n"):
        return S3Storage(S3Options.model_validate({}))
    if scheme in ("gs", "gcs"):
        return GcsStorage(GcsOptions.model_validate({}))
    if scheme in ("abfs", "abfss", "wasb", "wasbs"):
        return AzureStorage(AzureOptions.model_validate({}))
    # One letter is a drive of Windows.
    if len(scheme) > 1 and scheme != "file":
        raise PlanError(
            f"the warehouse {warehouse!r} lies at {scheme}:, which is not supported",
            todo="Name a folder, or an address that begins with s3://, gs:// or abfss://.",
        )
    return LocalStorage()
