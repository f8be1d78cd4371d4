"""Catalog for the lifetime of the process, for tests and experiments."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from icestream.catalogs.sql_catalog import SqlDatabaseCatalog
from icestream.catalogs.sql_store import SqliteStore
from icestream.contracts.options import LOCATION
from icestream.errors import PlanError
from icestream.storage.blocks import StorageBlocks

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage


class MemoryCatalogOptions(StorageBlocks):
    """A catalog that ends with the process."""

    type: Literal["memory"] = Field("memory", description="The kind of catalog.")
    warehouse: str | None = Field(
        None,
        description="Folder or URI under which tables are created; it is kept. By default, a "
        "temporary folder that is removed at the end.",
        json_schema_extra=LOCATION,
    )


class MemoryCatalog(SqlDatabaseCatalog[MemoryCatalogOptions]):
    """A temporary SQLite file.

    Spark and PyIceberg each have an in-memory catalog that the other cannot see; both can open a
    file.
    """

    options_type = MemoryCatalogOptions

    def __init__(
        self, name: str, options: MemoryCatalogOptions, storage: Storage | None = None
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="icestream-memory-"))
        storage = storage or options.configured_storage()
        bucket = storage.warehouse() if storage else None
        warehouse = options.warehouse or bucket or str(folder / "warehouse")
        try:
            super().__init__(name, options, SqliteStore(folder / "catalog.db"), warehouse, storage)
        except PlanError:
            folder.rmdir()
            raise
        atexit.register(self._remove, folder, os.getpid())

    def identity(self) -> str:
        return "memory"

    def _remove(self, folder: Path, owner: int) -> None:
        # A forked child inherits the registration, but must not remove the folder.
        if os.getpid() == owner:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)
