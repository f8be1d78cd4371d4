"""From a configuration to a plan: every part built, none of them connected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.config.connectors import did_you_mean, is_built
from icestream.config.planned import planned_in
from icestream.contracts import registry
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan.catalogs import CatalogChooser
from icestream.plan.checks import (
    cross_check,
    missing_field_problems,
    reserved_columns,
    same_table,
)
from icestream.plan.expectation_checks import unknown_columns
from icestream.plan.memory import batching_of
from icestream.plan.paths import absolute, resolve
from icestream.plan.plan import PipelinePlan, Plan, PlannedFeature, Restart
from icestream.plan.sources import build_source
from icestream.plan.spark_settings import jars_for, settings_for
from icestream.plan.unbuilt import UnbuiltTransform

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from icestream.config import Config, Part
    from icestream.contracts.sink import Sink
    from icestream.contracts.source import Source
    from icestream.contracts.transform import Transform


def build(config: Config, *, only: Sequence[str] = (), for_changes: Collection[str] = ()) -> Plan:
    """Return what a run of the file would do. Touches no network and starts no Spark.

    Args:
        config: the file.
        only: names of the pipelines to run; every enabled one if empty.
        for_changes: names of sinks that changes go to, though no pipeline of the file says so.

    Raises:
        ConfigError: parts of the file do not fit together; it holds every problem found.
        PlanError: `only` names a pipeline that there is not, or that is switched off.
    """
    problems = cross_check(config, for_changes)
    if problems:
        raise ConfigError(problems)
    return _Planner(config).plan(_chosen(config, only), everything=not only)


def refuse_planned(plan: Plan) -> None:
    """Refuse a plan that names anything which this version does not have.

    Raises:
        UnavailableError: it does; each of them is named.
    """
    if plan.planned:
        lines = [
            f"{item.where}: {item.name!r} is not available in this version" for item in plan.planned
        ]
        raise UnavailableError("\n".join(lines))


def _chosen(config: Config, only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in config.pipelines:
            names = list(config.pipelines)
            raise PlanError(
                f"no pipeline is named {name!r}",
                where=str(config.path),
                todo=f"{did_you_mean(name, names)}There are: {', '.join(names) or 'none'}.",
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
    def __init__(self, config: Config) -> None:
        self.config = config
        self.chooser = CatalogChooser(config)
        self.sources: dict[str, Source[Any]] = {}
        self.sinks: dict[str, Sink[Any]] = {}
        self.running = 1

    def plan(self, names: list[str], *, everything: bool) -> Plan:
        config = self.config
        self.running = max(len(names), 1)
        pipelines = tuple(self._pipeline(name) for name in names)
        if everything:
            for name, part in config.sources.items():
                self.sources.get(name) or self._source(part)
            for name, part in config.sinks.items():
                self.sinks.get(name) or self._sink(part)
            self.chooser.add_named(config.catalogs)
        catalogs = self.chooser.catalogs
        settings = settings_for(config, catalogs)
        return Plan(
            path=config.path,
            state=Path(absolute(config.block.state.path, config.folder)),
            pipelines=pipelines,
            catalogs=catalogs,
            jars=jars_for(config, catalogs.values()),
            master=config.block.spark.master,
            spark_conf=settings.conf,
            secret_keys=frozenset(settings.shown),
            metrics_host=config.block.metrics.host,
            metrics_port=config.block.metrics.port,
            metrics_token=config.block.metrics.token,
            names=tuple(config.pipelines),
            planned=self._planned(),
            shown_secrets=settings.shown,
            environment=self.chooser.environment(),
            sources=self.sources,
            sinks=self.sinks,
        )

    def _planned(self) -> tuple[PlannedFeature, ...]:
        tree = self.config.tree
        return tuple(
            PlannedFeature(tree.where(item.path, key=item.whole), item.name)
            for item in planned_in(self.config)
        )

    def _pipeline(self, name: str) -> PipelinePlan:
        block = self.config.pipelines[name]
        sink_part = self.config.sinks[block.sink]
        options: Any = sink_part.options
        steps = self.config.transforms.get(name, ())
        source = self._source(self.config.sources[block.source])
        sink = self._sink(sink_part, changes=source.traits.changes)
        transforms = tuple(_transform(part) for part in steps)
        source_part = self.config.sources[block.source]
        named = {part.name: step for part, step in zip(steps, transforms, strict=True)}
        problems = [
            *reserved_columns(self.config, source_part, source, transforms),
            *missing_field_problems(self.config, sink_part, source, named),
        ]
        if problems:
            raise ConfigError([*problems])
        if not steps:
            unknown = list(unknown_columns(self.config, sink_part, options.expect, source))
            if unknown:
                raise ConfigError([*unknown])
        dead_letter = self._dead_letter(sink_part)
        if dead_letter is not None and dead_letter.identity() == sink.identity():
            # Names may differ in case where the catalog ignores it.
            raise ConfigError([same_table(self.config, sink_part)])
        return PipelinePlan(
            name=name,
            source_name=block.source,
            source=source,
            sink_name=block.sink,
            sink=sink,
            batching=batching_of(options, self.config.block.spark.conf, self.running),
            restart=Restart(max=block.restart.max, backoff_secs=block.restart.backoff_secs),
            on_error=options.on_error,
            dead_letter=dead_letter,
            transforms=transforms,
            steps=tuple(self._step(part) for part in steps),
        )

    def _step(self, part: Part) -> str:
        value = self.config.tree.shown(part.path)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"{part.name}: {text}"

    def _source(self, part: Part) -> Source[Any]:
        """Build a source. Each pipeline has one of its own, since it may keep a connection."""
        built = build_source(self.config, part)
        self.sources.setdefault(part.name, built)
        return built

    def _sink(self, part: Part, *, changes: bool = False) -> Sink[Any]:
        """Build a sink. Each pipeline has one of its own, since it keeps the pipeline's mark."""
        catalog = self.chooser.catalog_of(part)
        options = resolve(part.options, self.config.folder)
        kind = registry.find("sinks", part.connector)
        built = self._fitting(
            part, "namespace", lambda: kind.build(options, catalog, part.name, changes=changes)
        )
        self.sinks.setdefault(part.name, built)
        return built

    def _dead_letter(self, part: Part) -> Sink[Any] | None:
        options: Any = part.options
        bad_rows = options.dead_letter_options()
        if bad_rows is None:
            return None
        kind, name = registry.find("sinks", part.connector), f"{part.name}.dead_letter"
        catalog = self.chooser.catalog_of(part)
        return self._fitting(part, "dead_letter", lambda: kind(bad_rows, catalog, name))

    def _fitting(self, part: Part, key: str, build: Callable[[], Sink[Any]]) -> Sink[Any]:
        """Build a sink; what does not fit its catalog is told at the key that names it."""
        try:
            return build()
        except PlanError as exc:
            where = self.config.tree.where((*part.path, key))
            raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc


def _transform(part: Part) -> Transform[Any]:
    if not is_built("transforms", part.connector):
        return UnbuiltTransform(part.connector, part.options)
    built: Transform[Any] = registry.find("transforms", part.connector)(part.options)
    return built
