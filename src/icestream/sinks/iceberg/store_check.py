"""A step of `icestream check`: test a table's storage where only the catalog knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.faults import CheckStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog


UNKNOWN = "not known yet: the catalog chooses where it creates the table"


def storage_check_steps(
    catalog: Catalog[Any], identifier: tuple[str, ...] | None
) -> Iterator[CheckStep]:
    """Yield the step that tests a table's store, unless the catalog's own steps do.

    Args:
        catalog: the table's catalog.
        identifier: namespace and table; None if rows name the tables.
    """
    if catalog.checks_storage():
        return

    def run() -> str:
        table = None if identifier is None else catalog.find_table(identifier)
        return UNKNOWN if table is None else _probe_storage(catalog, table)

    yield CheckStep("try store", run)


def _probe_storage(catalog: Catalog[Any], table: Table) -> str:
    """Write, read and remove an object beside the table's files, with the table's credentials."""
    from icestream.storage.blocks import storage_at
    from icestream.storage.probing import probe

    location, configured = table.location(), catalog.storage
    store = storage_at(location) if configured is None else configured
    if not store.covers(location):
        store = storage_at(location)
    # A server may vend credentials for the table's own folder only, so don't list the bucket.
    for step in probe(store, location, table.io.properties):
        if step.name != "list store":
            step.run()
    return location
