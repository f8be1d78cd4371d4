"""Finds the tables of a pipeline: those that the file, the source or earlier runs name.

`plan`, `status`, `snapshots`, `schema` and `query` all ask here. Needs no JVM.
"""

from __future__ import annotations

import copy
import json
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from icestream.errors import ConnectorError, IcestreamError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pyarrow as pa
    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.source import SourceObject
    from icestream.plan.plan import PipelinePlan, Plan


LOAD_SECS = 20.0
MAX_WORKERS = 8
TABLES_PER_WORKER = 4


@dataclass(frozen=True)
class PipelineTable:
    """A table that a pipeline writes to, or would create.

    Attributes:
        catalog: the name of its catalog.
        identifier: its namespace and name.
        source: its name in the source, if it mirrors a table.
        schema: the columns of its first rows, with their `ChangeSchema`, if the source lists it.
        table: the table; None if it does not exist or could not be loaded.
        is_written: whether the pipeline has committed rows to it, by its state.
        error: why it could not be loaded, or can't have that name.
    """

    catalog: str
    identifier: Identifier
    source: tuple[str, ...] | None = None
    schema: pa.Schema | None = None
    table: Table | None = None
    is_written: bool = False
    error: IcestreamError | None = None

    @property
    def name(self) -> str:
        """The full name, which starts with the catalog."""
        return ".".join((self.catalog, *self.identifier))


@dataclass(frozen=True)
class PipelineTables:
    """The tables of one pipeline.

    Attributes:
        pipeline: the pipeline's name.
        tables: the tables, sorted by name.
        named_by: what names tables that do not exist yet: the `file`, the `source` or its `rows`.
        objects: what a run needs in the source; empty if the source was not asked.
        error: why tables may be missing here.
    """

    pipeline: str
    tables: tuple[PipelineTable, ...] = ()
    named_by: Literal["file", "source", "rows"] = "file"
    objects: tuple[SourceObject, ...] = ()
    error: IcestreamError | None = None


def find_pipeline_tables(
    plan: Plan, pipeline: PipelinePlan, *, asks_source: bool = False
) -> PipelineTables:
    """Return the tables of a pipeline, loaded from its catalog. Creates and changes nothing.

    The tables of a mirror or fan-out are those in its state folder. Without one, for example on
    another machine, they are found by the pipeline's marks.

    Args:
        plan: the plan of the file.
        pipeline: the pipeline.
        asks_source: whether the source of a mirror lists the tables that a run would create.
    """
    sink = pipeline.sink
    single = sink.single_table()
    if single is not None:
        entry = PipelineTable(sink.catalog.name, tuple(single), is_written=True)
        return PipelineTables(pipeline.name, tuple(_load(sink.catalog, [entry])))
    return _MultiTableSearch(plan, pipeline).run(asks_source=asks_source)


@dataclass
class _MultiTableSearch:
    plan: Plan
    pipeline: PipelinePlan
    entries: dict[Identifier, PipelineTable] = field(default_factory=dict)
    unusable: list[PipelineTable] = field(default_factory=list)
    objects: tuple[SourceObject, ...] = ()
    named_by: Literal["source", "rows"] = "rows"
    error: IcestreamError | None = None

    def run(self, *, asks_source: bool) -> PipelineTables:
        if asks_source:
            self._try(self._ask_source)
        self._try(self._find_written)
        tables = sorted([*self.entries.values(), *self.unusable], key=lambda table: table.name)
        return PipelineTables(
            self.pipeline.name, tuple(tables), self.named_by, self.objects, self.error
        )

    def _try(self, step: Callable[[], None]) -> None:
        """Take a step; the first error is kept, and does not hide what the others find."""
        try:
            step()
        except IcestreamError as exc:
            self.error = self.error or exc

    def _ask_source(self) -> None:
        """Add the tables that the source of a mirror lists."""
        source, sink = self.pipeline.source, self.pipeline.sink
        if not sink.is_mirror:
            return
        try:
            schemas = source.list_tables()
            self.objects = tuple(source.list_objects())
        finally:
            source.close()
        if schemas is not None:
            self.named_by = "source"
        for schema in schemas or ():
            self._add_listed(schema)

    def _add_listed(self, schema: pa.Schema) -> None:
        from icestream.contracts.changes import change_schema_of
        from icestream.sinks.iceberg.multi.mirror_table import identifier_of, shared_target_error

        sink, change_schema = self.pipeline.sink, change_schema_of(schema)
        name = sink.catalog.name
        try:
            identifier = identifier_of(sink.options, change_schema, sink.catalog)
        except IcestreamError as exc:
            namespace = tuple(sink.options.namespace) or change_schema.table[:-1]
            identifier = (*namespace, sink.options.table or change_schema.table[-1])
            self.unusable.append(PipelineTable(name, identifier, change_schema.table, error=exc))
            return
        entry = PipelineTable(name, identifier, change_schema.table, schema)
        owner = self.entries.setdefault(identifier, entry).source
        if owner is not None and owner != entry.source:
            error = shared_target_error(identifier, owner, change_schema.table)
            self.unusable.append(replace(entry, error=error))

    def _find_written(self) -> None:
        """Add the tables of earlier runs, and load all."""
        from icestream.sinks.iceberg.multi.state_file import FanOutStateFile
        from icestream.sinks.iceberg.multi.tables import namespace_tables

        sink = self.pipeline.sink
        catalog, stored = sink.catalog, sink.catalog.abilities.stored_name
        if is_missing_catalog_file(catalog):
            return
        file = FanOutStateFile(self.plan.sink_cache(self.pipeline.name))
        recorded = {stored(table) for table in file.state.tables | file.state.written}
        written = {stored(table) for table in file.state.written}
        found = (
            recorded
            if file.exists
            else catalog.call(lambda: namespace_tables(sink.options, catalog))
        )
        listed = set(self.entries)
        for identifier in found - listed:
            self.entries[identifier] = PipelineTable(catalog.name, identifier)
        for loaded in _load(catalog, list(self.entries.values())):
            one = replace(loaded, is_written=loaded.identifier in written)
            own = one.identifier in listed or self._is_own(one, in_state=file.exists)
            if own:
                self.entries[one.identifier] = self._with_source(one)
            else:
                del self.entries[one.identifier]

    def _is_own(self, one: PipelineTable, *, in_state: bool) -> bool:
        from icestream.sinks.iceberg.ledger import is_own_table

        if in_state:
            return one.is_written or one.table is not None or one.error is not None
        # Another team's table in the same namespace is none of ours, readable or not.
        return one.table is not None and is_own_table(one.table.properties, self.pipeline.name)

    def _with_source(self, one: PipelineTable) -> PipelineTable:
        from icestream.sinks.iceberg.properties import SOURCE_TABLE

        if one.source is not None or one.table is None:
            return one
        text = one.table.properties.get(SOURCE_TABLE + self.pipeline.name)
        return replace(one, source=tuple(json.loads(text))) if text else one


def is_missing_catalog_file(catalog: Catalog[Any]) -> bool:
    """Tell whether the catalog is a file that does not exist; connecting would create it."""
    uri = catalog.pyiceberg_properties().get("uri", "")
    if not uri.startswith("sqlite:///"):
        return False
    file = Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0]))
    # A file in place of its folder is a fault, which connecting reports.
    return not file.exists() and (file.parent.is_dir() or not file.parent.exists())


def _load(catalog: Catalog[Any], tables: Collection[PipelineTable]) -> Iterator[PipelineTable]:
    """Yield the tables as the catalog has them now, in any order."""
    if is_missing_catalog_file(catalog):
        yield from tables
        return
    found = load_tables(catalog, [one.identifier for one in tables])
    for one in tables:
        outcome = found[one.identifier]
        if isinstance(outcome, IcestreamError):
            yield replace(one, error=outcome)
        else:
            yield replace(one, table=outcome)


def load_tables(
    catalog: Catalog[Any], identifiers: Collection[Identifier], *, seconds: float = LOAD_SECS
) -> dict[Identifier, Table | IcestreamError | None]:
    """Load tables, some at a time; a table that can't be loaded has its error instead.

    Args:
        catalog: the catalog.
        identifiers: the tables.
        seconds: how long to wait for all of them.
    """
    queue = deque(sorted(identifiers))
    found: dict[Identifier, Table | IcestreamError | None] = {}
    failures: list[BaseException] = []

    def work(own: Catalog[Any]) -> None:
        try:
            while (identifier := _next(queue)) is not None:
                found[identifier] = _load_table(own, identifier)
        except BaseException as exc:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(exc)
        finally:
            if own is not catalog:
                own.close()

    count = min(MAX_WORKERS, -(-len(queue) // TABLES_PER_WORKER))
    # Not every client may be used by two threads at once, so each worker has its own.
    owners = [catalog, *(copy.copy(catalog) for _ in range(count - 1))][:count]
    threads = [Thread(target=work, args=(owner,), daemon=True) for owner in owners]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    for failure in failures:
        raise failure
    late = UnreachableError(
        f"the table was not loaded within {seconds:g} s", where=f"catalog {catalog.name!r}"
    )
    return {identifier: found.get(identifier, late) for identifier in identifiers}


def _next(queue: deque[Identifier]) -> Identifier | None:
    try:
        return queue.popleft()
    except IndexError:
        return None


def _load_table(catalog: Catalog[Any], identifier: Identifier) -> Table | IcestreamError | None:
    try:
        return catalog.find_table(identifier)
    except IcestreamError as exc:
        return exc
    except OSError as exc:
        return ConnectorError(f"the table's metadata cannot be read ({exc})")
