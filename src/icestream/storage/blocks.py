"""The storage blocks that a sink or a catalog may hold, and the store that they mean."""

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
    """Return a place as the URI that every reader understands alike.

    Iceberg takes locations letter by letter, so nothing in a path is percent-encoded.

    Raises:
        PlanError: no store for it is installed, or it needs a bucket and names none.
    """
    parts = urlsplit(warehouse)
    store = store_at(warehouse)
    if store.bucket_option is not None and not parts.netloc:
        raise PlanError(
            f"the warehouse {warehouse!r} names no bucket",
            todo=f"Write `warehouse: {parts.scheme}://BUCKET/FOLDER`.",
        )
    return store.normalize(warehouse)


def _missing(name: str) -> Any:
    """Return the type of a block whose store is installed without a package that it needs."""

    def refuse(_: Any) -> None:
        try:
            registry.find("storage", name)
        except DependencyError as exc:
            raise ValueError(f"{exc.what}; {exc.todo}") from exc

    return Annotated[Any, AfterValidator(refuse)]


def _fields() -> dict[str, Any]:
    """Return the block of each store that has options, ours and others' alike."""
    stores, fields = installed_stores(), {}
    for name in registry.names("storage"):
        if name not in stores:
            fields[name] = (_missing(name) | None, Field(None, description="Not complete."))
        elif (kind := stores[name].options_type) is not None:
            fields[name] = (kind | None, Field(None, description=stores[name].description))
    return fields


_FIELDS = _fields()
KINDS = tuple(_FIELDS)


class _Blocks(Options):
    @model_validator(mode="after")
    def _check_one(self) -> _Blocks:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"holds {' and '.join(given)}; files lie in one store, keep one block")
        return self

    def given_storage(self) -> Storage | None:
        """Return the store of the block that is given; None if there is none."""
        for name in KINDS:
            options = getattr(self, name)
            if options is not None:
                return installed_stores()[name].from_options(options)
        return None


if TYPE_CHECKING:
    from icestream.storage.azure import AzureOptions
    from icestream.storage.gcs import GcsOptions
    from icestream.storage.s3 import S3Options

    class StorageBlocks(_Blocks):
        """Where files lie, at most one block. Without any, the warehouse's address tells."""

        azure: AzureOptions | None = None
        gcs: GcsOptions | None = None
        s3: S3Options | None = None

else:
    StorageBlocks = create_model(
        "StorageBlocks",
        __base__=_Blocks,
        __module__=__name__,
        __doc__="Where files lie, at most one block. Without any, the warehouse's address tells.",
        **_FIELDS,
    )


def storage_for(warehouse: str, given: Storage | None) -> Storage:
    """Return the store that a warehouse lies in: the given one, or the one that its address means.

    Raises:
        PlanError: the given store is of another kind, or the address means none that is known.
    """
    if given is None:
        return storage_at(warehouse)
    if not given.covers(warehouse):
        bucket = given.bucket_option and f"`{given.kind}.{given.bucket_option}`, or "
        raise PlanError(
            f"the storage block is `{given.kind}`, and the warehouse {warehouse!r} lies elsewhere",
            todo=f"Give {bucket or ''}a `warehouse` that begins with {given.schemes[0]}://; "
            f"or take the block `{given.kind}` out.",
        )
    return given


def storage_at(warehouse: str | None) -> Storage:
    """Return the store that an address means, with credentials from that store's default chain.

    Raises:
        PlanError: it means none that is known.
    """
    return store_at(warehouse or "").from_options()
