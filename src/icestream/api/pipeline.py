"""A pipeline built in Python, run by the same engine as one from a file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, get_args

from icestream.api.settings import Settings, build_plan
from icestream.contracts import registry
from icestream.contracts.option_errors import describe_type, validated
from icestream.contracts.packages import require_packages
from icestream.contracts.registry import did_you_mean
from icestream.contracts.source import Source
from icestream.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icestream.api.sink import IcebergSink
    from icestream.contracts.transform import Transform
    from icestream.engine.recovery.reconcile import Choice
    from icestream.engine.run import Run
    from icestream.metrics.events import Event
    from icestream.metrics.registry import PipelineMetrics, SinkMetrics
    from icestream.plan.plan import PipelinePlan
    from icestream.sinks.iceberg.options import IcebergOptions


def validate_pipeline(
    name: str,
    options: IcebergOptions,
    *,
    changes: bool = False,
    transforms: Sequence[Transform[Any]] = (),
) -> None:
    """Apply the checks that a pipeline in a file has to pass.

    Args:
        name: the pipeline's name.
        options: the sink's options.
        changes: whether the source produces changes.
        transforms: the pipeline's transforms.

    Raises:
        PlanError: a check failed; only the first is reported.
        UnavailableError: an option is not available in this version.
    """
    from icestream.config import parse
    from icestream.config.model import NAME_PATTERN
    from icestream.plan import build, refuse_planned
    from icestream.plan.table_rules import unusable_step_problem

    if not re.fullmatch(NAME_PATTERN, name):
        raise PlanError(
            f"{name!r} is not a valid pipeline name",
            todo="Start with a letter, followed by letters, digits, '_' and '-'.",
        )
    for transform in transforms if changes else ():
        if not transform.is_row_by_row:
            raise unusable_step_problem(type(transform).__name__, f"pipeline {name!r}")
    # The catalog is built separately, and may hold secrets. In a script, `$` has no meaning.
    config = options.model_dump(mode="json", exclude_unset=True, exclude={"catalog"})
    sink = {"connector": "iceberg", "config": config}
    text = json.dumps({"sinks": {"python": sink}}).replace("${", "$ {")
    try:
        mirrored = ("python",) if changes else ()
        refuse_planned(build(parse(text, "script.yaml"), for_changes=mirrored))
    except ConfigError as exc:
        first = exc.problems[0]
        where = f"pipeline {name!r}, options of the sink"
        raise PlanError(first.what, where=where, todo=first.todo) from exc


@dataclass(frozen=True)
class Pipeline:
    """A source, transforms and a sink.

    Each step returns a new pipeline; nothing runs before `run` or `start`.

    Example:
        Pipeline.from_source(source).filter("amount > 0").to_sink(sink).run("orders")
    """

    source: Source[Any]
    sink: IcebergSink | None = None
    transforms: tuple[Transform[Any], ...] = ()
    settings: Settings = field(default_factory=Settings)
    _live: _RunningPipeline | None = None

    @classmethod
    def from_source(cls, source: Source[Any]) -> Pipeline:
        """Return a pipeline that reads a source.

        Raises:
            PlanError: it is not a source.
            DependencyError: a package that it needs is not installed.
        """
        if not isinstance(source, Source):
            raise PlanError(
                f"expected a source, found {describe_type(source)}",
                where="Pipeline.from_source",
                todo="Build one, e.g. KafkaSource(KafkaOptions(...)).",
            )
        require_packages(source.required_packages(), type(source).__name__)
        return cls(source)

    def filter(self, expr: str) -> Pipeline:
        """Keep the rows for which a SQL condition holds."""
        return self._with("filter", expr)

    def select(self, *columns: str) -> Pipeline:
        """Keep columns, or SQL expressions such as `price * quantity AS total`."""
        return self._with("select", columns)

    def compute(self, columns: dict[str, str]) -> Pipeline:
        """Add columns, or replace them, by SQL expressions; keep all others."""
        return self._with("compute", columns)

    def rename(self, columns: dict[str, str]) -> Pipeline:
        """Rename columns, old name to new."""
        return self._with("rename", columns)

    def drop(self, *columns: str) -> Pipeline:
        """Drop columns."""
        return self._with("drop", columns)

    def cast(self, columns: dict[str, str]) -> Pipeline:
        """Cast columns, name to SQL type."""
        return self._with("cast", columns)

    def to_sink(self, sink: IcebergSink) -> Pipeline:
        """Write the pipeline's rows to a sink.

        Raises:
            PlanError: it is not a sink.
        """
        from icestream.api.sink import IcebergSink

        if not isinstance(sink, IcebergSink):
            raise PlanError(
                f"expected an IcebergSink, found {describe_type(sink)}",
                where="Pipeline.to_sink",
                todo="Build one: IcebergSink(IcebergOptions(...)).",
            )
        return replace(self, sink=sink, settings=sink.settings)

    def run(self, name: str, *, once: bool = True, beginning: Choice = "ask") -> Pipeline:
        """Run and block: up to the source's current end, or forever with `once=False`.

        Args:
            name: the pipeline's name, which identifies its state and its mark.
            once: stop at the source's current end.
            beginning: what to do when checkpoint and table disagree: `ask` raises,
                `resume` continues from the table's mark, `start-over` starts from scratch,
                `reload` reloads mirrored tables that lost rows.

        Raises:
            IcestreamError: the pipeline failed.
        """
        running = self._launch(name, once=once, beginning=beginning)
        running.wait()
        return running

    def start(self, name: str, *, beginning: Choice = "ask") -> Pipeline:
        """Run in the background until `stop`, and return the running pipeline."""
        return self._launch(name, once=False, beginning=beginning)

    def wait(self) -> None:
        """Block until a started pipeline ends.

        Raises:
            IcestreamError: the pipeline failed.
        """
        run = self._require_started().run
        run.wait()
        for runner in run.runners:
            if runner.error is not None:
                raise runner.error

    def stop(self) -> None:
        """Finish the current batch, and block until the pipeline has ended."""
        self._require_started().run.stop()
        self.wait()

    def status(self) -> dict[str, Any]:
        """Return the state, rows, lag and last commit of a started pipeline."""
        return self._require_started().run.runners[0].progress.to_json()

    def metrics(self) -> SinkMetrics:
        """Return the counters of a started pipeline, summed over its tables."""
        live = self._require_started()
        runner = live.run.runners[0]
        return live.metrics.sink(runner.plan.name, runner.plan.sink.identity())

    def _with(self, name: str, value: object) -> Pipeline:
        kind = registry.find("transforms", name)
        options = validated(kind.options_type, value, f"Pipeline.{name}")
        transform: Transform[Any] = kind(options)
        return replace(self, transforms=(*self.transforms, transform))

    def _require_started(self) -> _RunningPipeline:
        if self._live is None:
            raise PlanError("the pipeline was not started", todo="Call `run` or `start` first.")
        return self._live

    def _launch(self, name: str, *, once: bool, beginning: Choice) -> Pipeline:
        from icestream.engine.recovery.reconcile import Choice
        from icestream.engine.run import Run, RunChoices
        from icestream.metrics.registry import PipelineMetrics
        from icestream.plan.plan import refuse_endless

        if self.sink is None:
            raise PlanError("the pipeline has no sink", todo="Call `to_sink` first.")
        if beginning not in get_args(Choice):
            choices = ", ".join(map(repr, get_args(Choice)))
            raise PlanError(
                f"`beginning` is {beginning!r}, not one of {choices}",
                where=f"pipeline {name!r}",
                todo=did_you_mean(str(beginning), get_args(Choice)).rstrip(),
            )
        validate_pipeline(
            name,
            self.sink.options,
            changes=self.source.traits.changes,
            transforms=self.transforms,
        )
        metrics = PipelineMetrics()
        plan = build_plan(self.settings, self.sink.catalog, self._plan(name, self.sink))
        refuse_endless(plan.pipelines[0], once=once)
        observe = _count_as_one_table(metrics, plan.pipelines[0].sink.identity())
        run = Run(plan, RunChoices(once=once, recovery=beginning), observe)
        run.start()
        return replace(self, _live=_RunningPipeline(run, metrics))

    def _plan(self, name: str, sink: IcebergSink) -> PipelinePlan:
        from icestream.plan.plan import PipelinePlan, RestartPolicy
        from icestream.plan.spark_settings import batching_for

        options = sink.options
        return PipelinePlan(
            name=name,
            source_name=type(self.source).__name__,
            source=self.source,
            sink_name=sink.name,
            sink=sink.for_pipeline(changes=self.source.traits.changes),
            batching=batching_for(options, self.settings.conf),
            restart=RestartPolicy(),
            on_error=options.on_error,
            dead_letter=sink.dead_letters(),
            transforms=self.transforms,
        )


def _count_as_one_table(metrics: PipelineMetrics, table: str) -> Callable[[Event], None]:
    """Return an observer that counts the events of all tables of a pipeline as one table's."""

    def observe(event: Any) -> None:
        has_table = any(attribute.name == "table" for attribute in fields(event))
        metrics.observe(replace(event, table=table) if has_table else event)

    return observe


@dataclass(frozen=True)
class _RunningPipeline:
    run: Run
    metrics: PipelineMetrics
