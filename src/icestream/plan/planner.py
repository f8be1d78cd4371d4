"""From a configuration to a plan: every component built, none of them connected."""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from icestream.config import in_file_order
from icestream.config.connectors import is_available
from icestream.contracts import registry
from icestream.contracts.columns import UNKNOWN_COLUMNS
from icestream.contracts.registry import did_you_mean
from icestream.contracts.sink import RowExpectation
from icestream.errors import ConfigError, IcestreamError, PlanError, UnavailableError
from icestream.plan.catalogs import CatalogResolver
from icestream.plan.checks import (
    dead_letter_table_problem,
    missing_field_problems,
    pipeline_conflicts,
    reserved_column_problems,
    sink_problems,
    view_problems,
)
from icestream.plan.columns import bind_columns, bind_steps, declared_columns
from icestream.plan.multi_table_checks import mirror_problems
from icestream.plan.plan import (
    PipelinePlan,
    Plan,
    PlannedFeature,
    RestartPolicy,
    TableRules,
    endless_problems,
)
from icestream.plan.planned import UnavailableTransform, find_planned
from icestream.plan.sources import absolute_path, build_source, resolve_paths
from icestream.plan.spark_settings import batching_for, jars_for, settings_for, spark_problems
from icestream.plan.table_rules import rule_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from icestream.config import Component, Config
    from icestream.contracts.columns import Columns
    from icestream.contracts.sink import Sink
    from icestream.contracts.source import Source
    from icestream.contracts.transform import Transform


BuiltT = TypeVar("BuiltT")


def build(config: Config, *, only: Sequence[str] = (), for_changes: Collection[str] = ()) -> Plan:
    """Return what a run of the file would do. Touches no network and starts no Spark.

    Args:
        config: the file.
        only: names of the pipelines to run; every enabled one if empty.
        for_changes: names of sinks that changes go to, though no pipeline of the file says so.

    Raises:
        ConfigError: the file is wrong, or components of it do not fit together; it holds every
            problem found.
        PlanError: `only` names a pipeline that there is not, or that is switched off.
    """
    planner = _Planner(config, only, for_changes)
    plan = planner.plan()
    if planner.problems or plan is None:
        raise ConfigError(in_file_order(planner.problems))
    return plan


def build_runnable(config: Config, *, only: Sequence[str] = (), once: bool) -> Plan:
    """Return a plan that can run, or all reasons why it can't.

    Args:
        config: the file.
        only: names of the pipelines to run; every enabled one if empty.
        once: whether the run goes up to where each source ends now.

    Raises:
        ConfigError: the file is wrong, components of it do not fit together, or a source that does
            not end would replace a table batch for batch; it holds every problem found.
        UnavailableError: the file is good, but names features that this version does not have.
        PlanError: `only` names a pipeline that there is not, or that is switched off.
    """
    planner = _Planner(config, only)
    plan = planner.plan()
    planned = planner.planned()
    problems = [*planner.problems, *endless_problems(planner.pipelines, config, once=once)]
    if problems or plan is None:
        problems += [UnavailableError(item.message, where=item.where) for item in planned]
        raise ConfigError(in_file_order(problems))
    refuse_planned(plan)
    return plan


def refuse_planned(plan: Plan) -> None:
    """Refuse a plan that names anything which this version does not have.

    Raises:
        UnavailableError: it does; each of them is named.
    """
    if plan.planned:
        raise UnavailableError("\n".join(f"{item.where}: {item.message}" for item in plan.planned))


def _select_pipelines(config: Config, only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in config.pipelines and config.problems:
            # It may be one of those that the problems are about.
            raise ConfigError(config.problems)
        if name not in config.pipelines:
            names = list(config.pipelines)
            raise PlanError(
                f"no pipeline is named {name!r}",
                where=str(config.path),
                todo=f"{did_you_mean(name, names)}Available: {', '.join(names) or 'none'}.",
            )
        if not config.pipelines[name].enabled:
            raise PlanError(
                f"the pipeline {name!r} is switched off",
                where=config.tree.where(("pipelines", name, "enabled")),
                todo="Set `enabled: true`, or leave the key out.",
            )
    return [
        name
        for name, block in config.pipelines.items()
        if block.enabled and (not only or name in only)
    ]


class _Planner:
    """Builds the components of a file, and gathers every problem instead of stopping at the first.

    A component with problems is left out, and so is a pipeline that uses it.
    """

    def __init__(
        self, config: Config, only: Sequence[str], for_changes: Collection[str] = ()
    ) -> None:
        self.config = config
        self.resolver = CatalogResolver(config)
        self.sources: dict[str, Source[Any]] = {}
        self.sinks: dict[str, Sink[Any]] = {}
        self.names = _select_pipelines(config, only)
        self.everything = not only
        self.pipelines: list[PipelinePlan] = []
        spark = config.block.spark
        of_sinks = sink_problems(config, for_changes)
        self.good_sinks = {
            name
            for name, problems in of_sinks.items()
            if not problems and config.sinks[name].has_catalog
        }
        self.problems: list[IcestreamError] = [
            *chain.from_iterable(of_sinks.values()),
            *mirror_problems(config, for_changes),
            *rule_problems(config),
            *view_problems(config),
            *spark_problems(
                spark.master, spark.conf, lambda *path: config.tree.where(("spark", *path))
            ),
        ]

    def plan(self) -> Plan | None:
        """Return the plan; None if anything is wrong, which `problems` then has."""
        config = self.config
        for name in self.names:
            built = self._gather(partial(self._pipeline, name))
            if built is not None:
                self.pipelines.append(built)
        if self.everything:
            for name, component in config.sources.items():
                if name not in self.sources:
                    self._gather(partial(self._source, component))
            for name, component in config.sinks.items():
                if name not in self.sinks and name in self.good_sinks:
                    self._gather(partial(self._sink, component))
            for name in config.catalogs:
                self._gather(partial(self.resolver.add_named, name))
        self.problems += pipeline_conflicts(config, self.pipelines)
        # What an unresolved reference stands for is not known, and so not wrong either.
        unknown = {config.tree.where(path) for path in config.tree.unresolved}
        own = [problem for problem in self.problems if problem.where not in unknown]
        self.problems = [*config.problems, *own]
        return self._gather(self._whole_plan) if not self.problems else None

    def _gather(self, build: Callable[[], BuiltT]) -> BuiltT | None:
        """Return what `build` returns; None if it fails, after noting its problems."""
        try:
            return build()
        except ConfigError as exc:
            self.problems += exc.problems
        except PlanError as exc:
            self.problems.append(exc)
        return None

    def _whole_plan(self) -> Plan:
        config, catalogs = self.config, self.resolver.catalogs
        settings = settings_for(config, catalogs)
        return Plan(
            path=config.path,
            state=Path(absolute_path(config.block.state.path, config.folder)),
            pipelines=tuple(self.pipelines),
            catalogs=catalogs,
            jars=jars_for(config, catalogs.values()),
            master=config.block.spark.master,
            spark_conf=settings.conf,
            secret_keys=frozenset(settings.displayed_secrets),
            spark_locations=settings.locations,
            metrics_host=config.block.metrics.host,
            metrics_port=config.block.metrics.port,
            metrics_token=config.block.metrics.token,
            names=tuple(config.pipelines),
            planned=self.planned(),
            shown_secrets=settings.displayed_secrets,
            environment=self.resolver.environment(),
            sources=self.sources,
            sinks=self.sinks,
        )

    def planned(self) -> tuple[PlannedFeature, ...]:
        """Return what the file names and this version does not have."""
        tree = self.config.tree
        return tuple(
            PlannedFeature(tree.where(item.path, key=item.whole), item.name)
            for item in find_planned(self.config)
        )

    def _pipeline(self, name: str) -> PipelinePlan | None:
        """Build a pipeline; None if one of its components is known to be wrong."""
        config, block = self.config, self.config.pipelines[name]
        source_component = config.sources.get(block.source)
        sink_component = config.sinks.get(block.sink)
        source = None
        if source_component is not None:
            source = self._gather(partial(self._source, source_component))
        steps = config.transforms.get(name, ())
        transforms = tuple(_build_transform(component) for component in steps)
        columns = self._bind(name, source, [*zip(steps, transforms, strict=True)])
        all_steps = [*steps, *chain.from_iterable(config.table_transforms.get(name, {}).values())]
        is_whole = block.sink in self.good_sinks and all(step.is_whole for step in all_steps)
        if source is None or source_component is None or sink_component is None or not is_whole:
            return None
        options: Any = sink_component.options
        sink = self._sink(sink_component, changes=source.traits.changes)
        named = {component.name: step for component, step in zip(steps, transforms, strict=True)}
        self.problems += reserved_column_problems(config, source_component, source, transforms)
        if not source.traits.changes:
            self.problems += missing_field_problems(config, sink_component, source, named)
        dead_letter = self._dead_letter(sink_component)
        if dead_letter is not None and dead_letter.identity() == sink.identity():
            # Names may differ in case where the catalog ignores it.
            self.problems.append(dead_letter_table_problem(config, sink_component))
        return PipelinePlan(
            name=name,
            source_name=block.source,
            source=source,
            sink_name=block.sink,
            sink=sink,
            batching=batching_for(options, config.block.spark.conf, max(len(self.names), 1)),
            restart=RestartPolicy(max=block.restart.max, backoff_secs=block.restart.backoff_secs),
            on_error=options.on_error,
            dead_letter=dead_letter,
            transforms=transforms,
            steps=tuple(self._step(component) for component in steps),
            columns=columns,
            tables=tuple(self._table_rules(name)),
        )

    def _bind(
        self,
        pipeline: str,
        source: Source[Any] | None,
        steps: Sequence[tuple[Component, Transform[Any]]],
    ) -> Columns:
        """Note what is wrong with the columns and the SQL of a pipeline.

        Returns:
            The columns of its table, as far as they are known. The tables of a change source have
            columns of their own.
        """
        config = self.config
        sink = config.sinks.get(config.pipelines[pipeline].sink)
        is_mirror = source is not None and source.traits.changes
        if sink is not None and not is_mirror:
            known = UNKNOWN_COLUMNS if source is None else declared_columns(source)
            bound = bind_columns(config, known, steps, sink)
            self.problems += bound.problems
            return bound.table
        columns, problems = bind_steps(config, UNKNOWN_COLUMNS, steps)
        self.problems += problems
        for own in config.table_transforms.get(pipeline, {}).values():
            built = [(component, _build_transform(component)) for component in own]
            self.problems += bind_steps(config, columns, built)[1]
        return UNKNOWN_COLUMNS

    def _table_rules(self, pipeline: str) -> Iterator[TableRules]:
        steps = self.config.table_transforms.get(pipeline, {})
        for pattern, block in self.config.pipelines[pipeline].tables.items():
            components = steps.get(pattern, ())
            yield TableRules(
                pattern=pattern,
                transforms=tuple(_build_transform(component) for component in components),
                steps=tuple(self._step(component) for component in components),
                expectations=tuple(
                    RowExpectation(one.name, one.expr, one.on_fail) for one in block.expect
                ),
            )

    def _step(self, component: Component) -> str:
        value = self.config.tree.source_value(component.path)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"{component.name}: {text}"

    def _source(self, component: Component) -> Source[Any]:
        """Build a source. Each pipeline has one of its own, since it may keep a connection."""
        built = build_source(self.config, component)
        self.sources.setdefault(component.name, built)
        return built

    def _sink(self, component: Component, *, changes: bool = False) -> Sink[Any]:
        """Build a sink. Each pipeline has one of its own, since it keeps the pipeline's mark."""
        catalog = self.resolver.catalog_of(component)
        options = resolve_paths(component.options, self.config.folder)
        kind = registry.find("sinks", component.connector)
        built = self._build_sink(
            component,
            "namespace",
            lambda: kind.build(options, catalog, component.name, changes=changes),
        )
        self.sinks.setdefault(component.name, built)
        return built

    def _dead_letter(self, component: Component) -> Sink[Any] | None:
        options: Any = component.options
        bad_rows = options.dead_letter_options()
        if bad_rows is None:
            return None
        kind, name = registry.find("sinks", component.connector), f"{component.name}.dead_letter"
        catalog = self.resolver.catalog_of(component)
        return self._build_sink(component, "dead_letter", lambda: kind(bad_rows, catalog, name))

    def _build_sink(
        self, component: Component, key: str, build: Callable[[], Sink[Any]]
    ) -> Sink[Any]:
        """Build a sink; report an option that its catalog does not support at that option's key."""
        try:
            return build()
        except PlanError as exc:
            where = self.config.tree.where((*component.path, key))
            raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc


def _build_transform(component: Component) -> Transform[Any]:
    if not component.is_whole or not is_available("transforms", component.connector):
        return UnavailableTransform(component.connector, component.options)
    built: Transform[Any] = registry.find("transforms", component.connector)(component.options)
    return built
