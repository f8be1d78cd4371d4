"""The stores of catalogs without a storage block, asked from the catalogs before Spark starts."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icestream.errors import IcestreamError
from icestream.storage.blocks import storage_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.sink import Sink
    from icestream.plan.plan import Plan

_log = logging.getLogger(__name__)
UNKNOWN = "not known yet: the catalog chooses where it creates tables"


def resolve_stores(plan: Plan, sinks: Iterable[Sink[Any]] = (), *, create: bool = False) -> Plan:
    """Ask catalogs whose store the file does not tell where their tables are.

    A catalog that does not answer keeps its store unknown: the pipelines report why.

    Args:
        plan: the plan.
        sinks: sinks that are not part of the plan.
        create: whether the namespace of a sink may be created for the answer, as a run does.

    Returns:
        The plan with the jars and settings of the stores found.
    """
    for sink in [*sinks, *_sinks(plan)]:
        catalog = sink.catalog
        if catalog.storage is None and plan.catalogs.get(catalog.name) is catalog:
            location = _find_location(sink, create=create)
            if location is not None:
                catalog.storage = storage_at(location)
                catalog.close()  # the next client has the store's settings
                plan = _with_store(plan, catalog)
    return plan


def _sinks(plan: Plan) -> Iterator[Sink[Any]]:
    for pipeline in plan.pipelines:
        yield pipeline.sink
        if pipeline.dead_letter is not None:
            yield pipeline.dead_letter
    yield from plan.sinks.values()


def _find_location(sink: Sink[Any], *, create: bool) -> str | None:
    options = sink.options
    identifier = sink.single_table()
    table = None if identifier is None else identifier[-1]
    namespace = tuple(options.namespace) if identifier is None else identifier[:-1]
    try:
        location = sink.catalog.find_location(namespace, table, create=create and options.create)
        return location if location is None or _is_supported(location) else None
    except IcestreamError as exc:
        _log.debug("the store of catalog %s", sink.catalog.name, exc_info=exc)
        return None


def _is_supported(location: str) -> bool:
    try:
        storage_at(location)
    except IcestreamError:
        return False
    return True


def _with_store(plan: Plan, catalog: Catalog[Any]) -> Plan:
    prefix = f"spark.sql.catalog.{catalog.name}."
    settings = {f"{prefix}{key}": value for key, value in catalog.spark_settings().items()}
    return replace(
        plan,
        jars=tuple(dict.fromkeys([*plan.jars, *catalog.jars()])),
        # Settings of the file win, as everywhere.
        spark_conf={**settings, **plan.spark_conf},
    )


def describe_store(catalog: Catalog[Any]) -> str:
    """Return a catalog's store, and how it was found, for people."""
    store = catalog.storage
    if store is None:
        return UNKNOWN
    if store.derived_from is None or store.options_type is None:
        return store.identity()
    return f"{store.identity()}, by the location {store.derived_from}"
