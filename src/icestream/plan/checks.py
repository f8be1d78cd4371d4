"""Rules between options of one component, and between components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.catalog import name_problem, shorten
from icestream.contracts.columns import UNKNOWN_COLUMNS
from icestream.errors import IcestreamError, PlanError
from icestream.plan.multi_table_checks import reads_changes, route_problems
from icestream.plan.table_rules import table_expectations
from icestream.schemas.column_names import RENAME_RESERVED, reserved_problem
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.partition_terms import (
    parse_partition_term,
    parse_partition_terms,
    parse_sort_term,
    split_partition_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from icestream.config import Component, Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.expectation import Expectation
    from icestream.contracts.source import Source
    from icestream.contracts.transform import Transform
    from icestream.plan.plan import PipelinePlan


def expectation_problems(
    config: Config, block: KeyPath, expectations: Sequence[Expectation]
) -> Iterator[PlanError]:
    """Yield what is wrong with the expectations of a sink or a table, whatever its columns are.

    Args:
        config: the file.
        block: the path of the sink's options or of the table's block.
        expectations: the expectations.
    """
    from icestream.schemas.expressions import bind_condition

    seen: set[str] = set()
    for number, one in enumerate(expectations):
        path = (*block, "expect", number)
        if one.name in seen:
            yield PlanError(
                f"duplicate expectation name {one.name!r}",
                where=config.tree.where((*path, "name")),
                todo="Expectations are counted by name: give each its own.",
            )
        seen.add(one.name)
        for what, todo in bind_condition(one.expr, UNKNOWN_COLUMNS):
            yield PlanError(what, where=config.tree.where((*path, "expr")), todo=todo)


UPSERT_ONLY = (
    "key_fields",
    "sequence_field",
    "op_field",
    "delete_mode",
    "missing_fields",
    "tombstone_days",
)
COMPRESSION_LEVELS = {"gzip": (1, 9), "zstd": (1, 22)}


def sink_problems(
    config: Config, for_changes: Collection[str] = ()
) -> dict[str, list[IcestreamError]]:
    """Return, for each sink that was read whole, the problems between its options.

    Args:
        config: the file.
        for_changes: names of sinks that changes go to, though no pipeline of the file says so.
    """
    problems: dict[str, list[IcestreamError]] = {}
    for name, component in config.sinks.items():
        if isinstance(component.options, IcebergOptions) and component.is_whole:
            is_mirror = name in for_changes or _takes_only_changes(config, component)
            problems[name] = _SinkCheck(config, component, component.options, is_mirror).problems()
    return problems


def view_problems(config: Config) -> Iterator[PlanError]:
    """Yield what is wrong with the views."""
    for name, view in config.block.views.items():
        if (view.sql is None) == (not view.aggregates):
            yield PlanError(
                "a view needs either `sql` or `aggregates`",
                where=config.tree.where(("views", name), key=True),
                todo="Add e.g. `aggregates: {orders: count(*)}`.",
            )


def pipeline_conflicts(config: Config, pipelines: Sequence[PipelinePlan]) -> Iterator[PlanError]:
    """Yield the pipelines that upsert the same table: each would undo the other's work."""
    writers: dict[tuple[str, str], str] = {}
    for pipeline in pipelines:
        sink = pipeline.sink
        if sink.single_table() is None or sink.options.commit_mode != "upsert":
            continue
        table = sink.identity()
        first = writers.setdefault((table, sink.options.branch), pipeline.name)
        if first != pipeline.name:
            yield PlanError(
                f"{pipeline.name!r} upserts {table}, and so does {first!r}: the order of their "
                "changes to one key would be left to chance, and their commits would conflict",
                where=config.tree.where(("pipelines", pipeline.name), key=True),
                todo="Read both sources in one pipeline (`topics: [a, b]`), or give each a table "
                "of its own.",
            )


def reserved_column_problems(
    config: Config, component: Component, source: Source[Any], transforms: Sequence[Transform[Any]]
) -> Iterator[PlanError]:
    """Yield the columns that a source declares and no table can have.

    Args:
        config: the file.
        component: the source, in the file.
        source: the source, built.
        transforms: what the pipeline does to its rows.
    """
    schema = source.schema() if source.declares() else None
    for name in schema.names if schema is not None else ():
        problem = reserved_problem(name)
        if problem is not None and not any(each.removes(name) for each in transforms):
            where = config.tree.where((*component.path, "schema"))
            yield PlanError(problem, where=where, todo=RENAME_RESERVED)


def missing_field_problems(
    config: Config, component: Component, source: Source[Any], steps: Mapping[str, Transform[Any]]
) -> Iterator[PlanError]:
    """Yield why `missing_fields: keep` cannot be used in a pipeline.

    Args:
        config: the file.
        component: the sink, in the file.
        source: the source, built.
        steps: the pipeline's transforms, by name.
    """
    if getattr(component.options, "missing_fields", None) != "keep":
        return
    where = config.tree.where((*component.path, "missing_fields"))
    for name, transform in steps.items():
        if not transform.passes_unchanged_columns:
            yield PlanError(
                f"'keep' cannot be combined with the transform {name!r}: its columns are not those "
                "of the record, so missing fields can't be detected",
                where=where,
                todo="Use `rename`, `cast` and `drop` instead.",
            )
    if not source.traits.changes and source.decoder() is None:
        yield PlanError(
            "'keep' needs a source whose records name their fields, and this one gives rows that "
            "all have the same columns",
            where=where,
            todo="Take `missing_fields` out, or read JSON or Avro records.",
        )


def _takes_only_changes(config: Config, sink: Component) -> bool:
    users = [
        config.sources.get(pipeline.source)
        for pipeline in config.pipelines.values()
        if pipeline.sink == sink.name
    ]
    if not users:
        # A sink that no pipeline uses yet is checked as if it received plain events, unless a
        # pipeline that could not be read may be the one that uses it.
        if any(pipeline.sink not in config.sinks for pipeline in config.pipelines.values()):
            return True
        blocks = config.tree.data.get("pipelines")
        return isinstance(blocks, dict) and any(
            not isinstance(block, dict) or block.get("sink", sink.name) == sink.name
            for name, block in blocks.items()
            if name not in config.pipelines
        )
    # A source that can't be built is reported on its own, so it must not cause an error about the
    # sink.
    return all(reads_changes(config, user) is not False for user in users)


def dead_letter_table_problem(config: Config, component: Component) -> PlanError:
    """Return the problem of a sink whose dead letters would join its rows."""
    options: Any = component.options
    return PlanError(
        f"{options.dead_letter!r} is not a valid dead-letter table: it must differ from the "
        "sink's table",
        where=config.tree.where((*component.path, "dead_letter")),
        todo="Set `dead_letter` to another `namespace.table`.",
    )


class _SinkCheck:
    """The checks of one Iceberg sink."""

    def __init__(
        self, config: Config, component: Component, options: IcebergOptions, for_changes: bool
    ) -> None:
        self.config = config
        self.component = component
        self.options = options
        self.for_changes = for_changes

    def problems(self) -> list[IcestreamError]:
        return [
            *self._names(),
            *self._partitioning(),
            *self._compression(),
            *self._commit_mode(),
            *self._errors(),
            *self._batching(),
            *self._renames(),
            *expectation_problems(self.config, self.component.path, self.options.expect),
            # With changes, `route_by` is refused as a whole.
            *(
                []
                if self.for_changes
                else route_problems(self.config, self.component, self.options)
            ),
        ]

    def _problem(self, field: str, what: str, todo: str, *, at: str = "") -> PlanError:
        """Write a problem at a field's value or, if the field is absent, at another's key."""
        path, given = (*self.component.path, field), field in self.options.model_fields_set
        if given or not at:
            return PlanError(what, where=self.config.tree.where(path, key=not given), todo=todo)
        fallback_path = (*self.component.path, at)
        where = self.config.tree.where(path, key=True, at=fallback_path)
        return PlanError(what, where=where, todo=todo)

    def _names(self) -> Iterator[PlanError]:
        named = {
            "namespace": self.options.namespace,
            "table": (self.options.table,) if self.options.table else (),
            "dead_letter": [part for part in (self.options.dead_letter or "").split(".") if part],
        }
        for field, parts in named.items():
            for part in parts:
                problem = name_problem(part)
                if problem is not None:
                    yield self._problem(
                        field,
                        f"{shorten(part)!r} is not a valid name: {problem}",
                        "Choose another name.",
                    )
        if self.for_changes or self.options.route_by is not None:
            return
        for field, example in (("namespace", "analytics"), ("table", "events")):
            if not getattr(self.options, field):
                yield self._problem(
                    field,
                    f"{field!r} is missing",
                    f"Add e.g. `{field}: {example}`.",
                )

    def _partitioning(self) -> Iterator[IcestreamError]:
        options = self.options
        if isinstance(options.partitioning, str):
            if options.partitioning in ("none", "table_default"):
                if options.partition_fields:
                    yield self._problem(
                        "partition_fields",
                        f"partitioning {options.partitioning!r} ignores 'partition_fields'",
                        "Add e.g. `partitioning: identity`, or remove `partition_fields`.",
                    )
            elif not options.partition_fields and not self.for_changes:
                yield from self._attempt(
                    lambda _: parse_partition_terms(options),
                    None,
                    "partition_fields",
                    at="partitioning",
                )
        else:
            for number, text in enumerate(options.partitioning):
                yield from self._attempt(parse_partition_term, text, "partitioning", number)
        for number, text in enumerate(options.sort_order):
            yield from self._attempt(parse_sort_term, text, "sort_order", number)

    def _attempt(
        self, read: Callable[[Any], Any], text: Any, field: str, *number: int, at: str = ""
    ) -> Iterator[IcestreamError]:
        try:
            read(text)
        except PlanError as exc:
            path = (*self.component.path, field, *number)
            fallback_path = (
                (*self.component.path, at)
                if at and field not in self.options.model_fields_set
                else None
            )
            where = self.config.tree.where(path, key=fallback_path is not None, at=fallback_path)
            yield exc.at(where)

    def _compression(self) -> Iterator[PlanError]:
        codec, level = self.options.compression, self.options.compression_level
        if codec == "brotli":
            yield self._problem(
                "compression",
                "'brotli' cannot be used: Spark's Parquet reader has no class for this codec, so "
                "the table could be neither compacted nor read by Spark",
                "Use `compression: zstd`, which is as small.",
            )
        elif level is not None and codec not in COMPRESSION_LEVELS:
            yield self._problem(
                "compression_level",
                f"compression {codec!r} has no levels, found level {level}",
                "Remove `compression_level`, or use `compression: zstd`.",
            )
        elif level is not None:
            low, high = COMPRESSION_LEVELS[codec]
            if not low <= level <= high:
                yield self._problem(
                    "compression_level",
                    f"must be from {low} to {high} for {codec!r}, found {level}",
                    "",
                )

    def _commit_mode(self) -> Iterator[IcestreamError]:
        options = self.options
        if options.commit_mode == "upsert" and not options.key_fields and not self.for_changes:
            yield self._problem(
                "key_fields",
                "commit_mode 'upsert' needs at least one key field, and none is given",
                "Add e.g. `key_fields: [order_id]`, or use `commit_mode: append`.",
                at="commit_mode",
            )
        if options.commit_mode != "upsert" and not self.for_changes:
            for field in UPSERT_ONLY:
                if field in options.model_fields_set:
                    yield self._problem(
                        field,
                        f"commit_mode {options.commit_mode!r} ignores {field!r}",
                        "Use `commit_mode: upsert`, or remove it.",
                    )
        replaces = options.commit_mode == "overwrite_partitions"
        if replaces and not options.overwrite_partitions:
            yield self._problem(
                "overwrite_partitions",
                f"commit_mode {options.commit_mode!r} needs at least one partition, and none is "
                "given",
                'Add e.g. `overwrite_partitions: ["year=2024/month=10"]`.',
                at="commit_mode",
            )
        if options.overwrite_partitions and not replaces:
            yield self._problem(
                "overwrite_partitions",
                f"commit_mode {options.commit_mode!r} ignores 'overwrite_partitions'",
                "Use `commit_mode: overwrite_partitions`, or remove it.",
            )
        for number, name in enumerate(options.overwrite_partitions):
            yield from self._attempt(split_partition_name, name, "overwrite_partitions", number)
        yield from self._publish()

    def _publish(self) -> Iterator[PlanError]:
        publish, branch = self.options.publish, self.options.branch
        if publish is not None and branch == publish.to:
            yield self._problem(
                "branch",
                f"rows are written to {branch!r} itself, so `publish` has nothing to hold back",
                "Add e.g. `branch: audit`; once the checks pass, "
                f"{publish.to!r} is fast-forwarded to it.",
                at="publish",
            )

    def _renames(self) -> Iterator[PlanError]:
        evolution = self.options.schema_evolution
        if self.options.renames and evolution != "full":
            yield self._problem(
                "renames",
                f"schema_evolution {evolution!r} ignores 'renames'",
                "Use `schema_evolution: full`, or remove it.",
            )

    def _errors(self) -> Iterator[PlanError]:
        options = self.options
        wanted = [
            *(["on_error 'dead_letter'"] if options.on_error == "dead_letter" else []),
            *(
                f"expectation {one.name!r}"
                for one in (*options.expect, *table_expectations(self.config, self.component.name))
                if one.on_fail == "dead_letter"
            ),
        ]
        if wanted and options.dead_letter is None:
            yield self._problem(
                "dead_letter",
                f"{wanted[0]} needs a table for the bad rows, and none is named",
                f"Add e.g. `dead_letter: {'.'.join(options.namespace) or 'analytics'}.bad_rows`.",
                at="on_error" if "on_error" in options.model_fields_set else "expect",
            )
        if options.dead_letter is not None and not wanted:
            yield self._problem(
                "dead_letter",
                f"on_error {options.on_error!r} ignores 'dead_letter'",
                "Use `on_error: dead_letter`, or remove it.",
            )
        name = options.dead_letter_name()
        if name is not None and (name == (options.namespace, options.table) or not all(name[0])):
            yield dead_letter_table_problem(self.config, self.component)

    def _batching(self) -> Iterator[PlanError]:
        most, size = self.options.max_batch_rows, self.options.batch_size
        if most is not None and most < size:
            yield self._problem(
                "max_batch_rows",
                f"max_batch_rows {most} is less than batch_size {size}",
                "Raise `max_batch_rows`, or lower `batch_size`.",
            )
