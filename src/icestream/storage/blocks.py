"""The storage blocks that a sink or a catalog may have, and the store that they configure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, create_model, model_validator

from icestream.contracts import registry
from icestream.contracts.options import Options
from icestream.contracts.storage import installed_stores, store_at
from icestream.errors import DependencyError, PlanError

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage


def as_uri(warehouse: str) -> str:
    """Return a location as a URI that every reader resolves alike.

    Iceberg takes locations literally, so nothing in a path is percent-encoded.

    Raises:
        PlanError: no store for it is installed, or it needs a bucket and names none.
    """
    store = store_at(warehouse)
    parts = urlsplit(warehouse)
    if store.bucket_option is not None and not parts.netloc:
        raise PlanError(
            f"the warehouse {warehouse!r} names no bucket",
            todo=f"Write `warehouse: {parts.scheme}://BUCKET/FOLDER`.",
        )
    return store.normalize(warehouse)


def _missing(name: str) -> Any:
    """Return the type of a block whose store lacks a package that it needs."""

    def refuse(_: Any) -> None:
        try:
            registry.find("storage", name)
        except DependencyError as exc:
            raise ValueError(f"{exc.what}; {exc.todo}") from exc

    return Annotated[Any, AfterValidator(refuse)]


def _fields() -> dict[str, Any]:
    """Return the block of each installed store that has options."""
    stores, fields = installed_stores(), {}
    for name in registry.names("storage"):
        if name not in stores:
            fields[name] = (
                _missing(name) | None,
                Field(None, description="Not usable: a package is missing."),
            )
        elif (kind := stores[name].options_type) is not None:
            fields[name] = (kind | None, Field(None, description=stores[name].description))
    return fields


_FIELDS = _fields()
KINDS = tuple(_FIELDS)


class _Blocks(Options):
    @model_validator(mode="after")
    def _check_one(self) -> _Blocks:
        blocks = [name for name in KINDS if getattr(self, name) is not None]
        if len(blocks) > 1:
            raise ValueError(
                f"has {' and '.join(blocks)}; keep one block, since all files are in one store"
            )
        return self

    def configured_storage(self) -> Storage | None:
        """Return the store of the configured block; None if there is none."""
        for name in KINDS:
            options = getattr(self, name)
            if options is not None:
                return installed_stores()[name].from_options(options)
        return None


if TYPE_CHECKING:
    from icestream.storage.azure import AzureOptions
    from icestream.storage.gcs import GcsOptions
    from icestream.storage.hdfs import HdfsOptions
    from icestream.storage.s3 import S3Options

    class StorageBlocks(_Blocks):
        """Where files are stored: at most one block, or the warehouse's address."""

        azure: AzureOptions | None = None
        gcs: GcsOptions | None = None
        hdfs: HdfsOptions | None = None
        s3: S3Options | None = None

else:
    StorageBlocks = create_model(
        "StorageBlocks",
        __base__=_Blocks,
        __module__=__name__,
        __doc__="Where files are stored: at most one block, or the warehouse's address.",
        **_FIELDS,
    )


def storage_for(warehouse: str, configured: Storage | None) -> Storage:
    """Return the store of a warehouse: the configured one, or the one for its address.

    Raises:
        PlanError: the configured store is of another kind, or none is installed for the address.
    """
    if configured is None:
        return storage_at(warehouse)
    if not configured.covers(warehouse):
        bucket = configured.bucket_option and f"`{configured.kind}.{configured.bucket_option}`, or "
        raise PlanError(
            f"the storage block is `{configured.kind}`, but the warehouse is {warehouse!r}",
            todo=f"Give {bucket or ''}a `warehouse` that begins with {configured.schemes[0]}://; "
            f"or remove the block `{configured.kind}`.",
        )
    return configured


def storage_at(warehouse: str | None) -> Storage:
    """Return the store for an address, with credentials from the store's default chain.

    Raises:
        PlanError: no store is installed for it.
    """
    location = warehouse or ""
    store = store_at(location).from_options()
    store.derived_from = location
    return store
