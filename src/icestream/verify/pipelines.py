"""Which pipelines of a plan can be verified, by which check, and the reasons for the others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.changes import ChangeSchema
from icestream.sinks.iceberg.ledger import property_key
from icestream.sinks.iceberg.multi.mirror_table import identifier_of, op_name_of
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.properties import SOURCE_TABLE
from icestream.verify.offsets import OffsetCheck
from icestream.verify.side import LakeTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.source import Source
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.verify.side import DatabaseSide, TableNames

APPEND, UPSERT = "append", "upsert"
TRANSFORMED = "transforms change or leave out rows, so they differ from those of the database"
EXPECTED = "`expect` may leave out rows that the database has"


@dataclass(frozen=True)
class Mirror:
    """A pipeline that mirrors tables, and whose rows can be compared with their database.

    Attributes:
        pipeline: its name.
        source: its source.
        sink: the options of the sink.
        catalog: the catalog of the tables.
        rules: the transforms and expectations of single tables.
    """

    pipeline: str
    source: Any
    sink: IcebergOptions
    catalog: Catalog[Any]
    rules: tuple[Any, ...] = ()

    def problem(self, table: TableNames) -> str:
        """Return why a table of the database can't be compared; empty if it can."""
        problems = (_rules_problem(each) for each in self.rules if each.matches(table))
        return next(filter(None, problems), "")

    def side(self) -> DatabaseSide:
        """Return the database."""
        if _is_postgres_cdc(self.source):
            from icestream.verify.postgres_side import PostgresSide

            return PostgresSide(self.source.options)
        from icestream.verify.debezium import debezium_side

        return debezium_side(self.source, dict(self.source_tables()))

    def identifier(self, table: TableNames) -> tuple[str, ...]:
        """Return namespace and name of the mirror of a database table."""
        return identifier_of(self.sink, ChangeSchema(table), self.catalog)

    def name(self, table: TableNames) -> str:
        """Return the full name of a table's mirror, which starts with the catalog."""
        return ".".join((self.catalog.name, *self.identifier(table)))

    def look_up(self, table: TableNames) -> LakeTable | None:
        """Return the current mirror of a table; None if there is none."""
        return _look_up(self.catalog, self.identifier(table), self.pipeline, self.sink)

    def matches(self, table: TableNames, word: str) -> bool:
        """Return whether a word names a table: by its name in the database or in the lake."""
        source_name = ".".join(table)
        name = self.name(table)
        return word in (source_name, table[-1], name, name.partition(".")[2])

    def source_tables(self) -> Iterator[tuple[TableNames, LakeTable]]:
        """Yield the tables of the database that have a mirror, by the names stored in these."""
        key = SOURCE_TABLE + self.pipeline
        for identifier, table in _written_tables(self.catalog, self.sink, self.pipeline):
            if key in table.properties:
                names = tuple(json.loads(table.properties[key]))
                yield names, _lake_table(self.catalog, identifier, table, self.pipeline, self.sink)


@dataclass(frozen=True)
class OffsetPipeline:
    """A pipeline whose tables hold the rows of successive ranges of offsets.

    Attributes:
        pipeline: its name.
        sink: the options of the sink.
        catalog: the catalog of the tables.
        table: the only table; None if rows name their tables.
        check: what to check of each table.
    """

    pipeline: str
    sink: IcebergOptions
    catalog: Catalog[Any]
    table: Identifier | None
    check: OffsetCheck

    def tables(self) -> list[LakeTable | Identifier]:
        """Return its tables; a table that does not exist by its name only."""
        if self.table is None:
            written = _written_tables(self.catalog, self.sink, self.pipeline)
            return [
                _lake_table(self.catalog, identifier, table, self.pipeline, self.sink)
                for identifier, table in written
            ]
        found = _look_up(self.catalog, self.table, self.pipeline, self.sink)
        return [self.table if found is None else found]

    def name(self, table: LakeTable | Identifier) -> str:
        """Return the full name of a table, which starts with the catalog."""
        if isinstance(table, LakeTable):
            return table.name
        return ".".join((self.catalog.name, *table))


def find_mirrors(plan: Plan) -> list[Mirror]:
    """Return the pipelines whose tables can be compared with a database."""
    return [
        Mirror(
            pipeline.name,
            pipeline.source,
            pipeline.sink.options,
            pipeline.sink.catalog,
            _table_rules(pipeline),
        )
        for pipeline in plan.pipelines
        if pipeline.sink.is_mirror and not _mirror_problem(pipeline)
    ]


def find_offset_pipelines(plan: Plan) -> list[OffsetPipeline]:
    """Return the pipelines whose history of offsets can be verified."""
    return [
        _offset_pipeline(pipeline)
        for pipeline in plan.pipelines
        if not pipeline.sink.is_mirror and not _offset_problem(pipeline)
    ]


def skipped_pipelines(plan: Plan) -> dict[str, str]:
    """Return the pipelines, or single tables of them, that can't be verified, and why."""
    reasons = {}
    for pipeline in plan.pipelines:
        if not pipeline.sink.is_mirror:
            reasons[pipeline.name] = _offset_problem(pipeline)
            continue
        reasons[pipeline.name] = problem = _mirror_problem(pipeline)
        for rules in () if problem else _table_rules(pipeline):
            reasons[f"{pipeline.name}: {rules.pattern}"] = _rules_problem(rules)
    return {name: reason for name, reason in reasons.items() if reason}


def _mirror_problem(pipeline: PipelinePlan) -> str:
    sink = pipeline.sink
    if op_name_of(sink.options) is not None:
        return "with `commit_mode: append` its tables hold every change"
    if pipeline.transforms:
        return TRANSFORMED
    if sink.expectations():
        return EXPECTED
    if not _is_postgres_cdc(pipeline.source) and not _has_database(pipeline.source):
        return f"source {pipeline.source_name!r} has no `database` to compare its tables with"
    return ""


def _is_postgres_cdc(source: Source[Any]) -> bool:
    try:
        from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    except ModuleNotFoundError:  # without its packages, no source of the plan is one
        return False
    return isinstance(source.options, PostgresCdcOptions)


def _has_database(source: Source[Any]) -> bool:
    """Tell whether a source is one of Debezium's changes that names their database."""
    try:
        from icestream.sources.kafka.options import KafkaOptions
    except ModuleNotFoundError:
        return False
    return isinstance(source.options, KafkaOptions) and source.options.database is not None


def _table_rules(pipeline: PipelinePlan) -> tuple[Any, ...]:
    rules: tuple[Any, ...] = getattr(pipeline, "tables", ())
    return rules


def _rules_problem(rules: Any) -> str:
    if rules.transforms:
        return TRANSFORMED
    return EXPECTED if rules.expectations else ""


def _offset_problem(pipeline: PipelinePlan) -> str:
    mode = pipeline.sink.options.commit_mode
    if mode not in (APPEND, UPSERT):
        return f"with `commit_mode: {mode}` rows replace those of earlier batches"
    return ""


def _offset_pipeline(pipeline: PipelinePlan) -> OffsetPipeline:
    sink = pipeline.sink
    table = sink.single_table()
    check = OffsetCheck(
        pipeline.source,
        appends=sink.options.commit_mode == APPEND,
        counts_records=table is not None,
        keeps_records=not pipeline.transforms,
    )
    return OffsetPipeline(pipeline.name, sink.options, sink.catalog, table, check)


def _look_up(
    catalog: Catalog[Any], identifier: Identifier, pipeline: str, sink: IcebergOptions
) -> LakeTable | None:
    table = catalog.find_table(identifier)
    return None if table is None else _lake_table(catalog, identifier, table, pipeline, sink)


def _lake_table(
    catalog: Catalog[Any],
    identifier: Identifier,
    table: Table,
    pipeline: str,
    sink: IcebergOptions,
) -> LakeTable:
    branch = None if sink.branch == MAIN else sink.branch
    return LakeTable(".".join((catalog.name, *identifier)), table, pipeline, branch)


def _written_tables(
    catalog: Catalog[Any], sink: IcebergOptions, pipeline: str
) -> Iterator[tuple[Identifier, Table]]:
    """Yield the tables that hold a mark of a pipeline, sorted by name."""
    key = property_key(pipeline)
    for identifier in sorted(_identifiers(catalog, tuple(sink.namespace))):
        table = catalog.find_table(identifier)
        if table is not None and key in table.properties:
            yield identifier, table


def _identifiers(catalog: Catalog[Any], root: tuple[str, ...]) -> Iterator[Identifier]:
    """Yield the tables in a namespace and those below it; all tables for an empty one."""
    client = catalog.client()
    queue = [root] if root else list(client.list_namespaces())
    seen = set(queue)
    while queue:
        namespace = queue.pop()
        if not client.namespace_exists(namespace):
            continue
        yield from client.list_tables(namespace)
        for inner in client.list_namespaces(namespace):
            # Some catalogs return the full name of inner namespaces, some only the last part.
            full = inner if inner[: len(namespace)] == namespace else (*namespace, *inner)
            if full not in seen:
                seen.add(full)
                queue.append(full)
