"""Runs a plan: one Spark session, and a thread and a streaming query per pipeline."""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.engine.runner import PipelineRunner
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from pyspark.sql import SparkSession

    from icestream.contracts.sink import Sink
    from icestream.engine.recovery.reconcile import Choice
    from icestream.metrics.events import Event
    from icestream.plan.plan import Plan


@dataclass(frozen=True)
class RunChoices:
    """The user's choices for a run.

    Attributes:
        once: read up to the current end of the source, then stop.
        take_over: continue although another process holds the pipeline.
        recovery: what to do if checkpoint and table disagree.
    """

    once: bool = False
    take_over: bool = False
    recovery: Choice = "ask"


logger = logging.getLogger(__name__)


class Run:
    """Runs every pipeline of a plan in parallel; one that fails does not stop the others.

    Args:
        plan: the plan.
        choices: the user's choices.
        emit: receives every event, from several threads.
    """

    def __init__(
        self, plan: Plan, choices: RunChoices, emit: Callable[[Event], None] = lambda _: None
    ) -> None:
        self.plan = plan
        self.runners: list[PipelineRunner] = []
        self._choices = choices
        self._emit = emit
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start Spark and every pipeline; returns once they run."""
        spark = open_plan_session(self.plan)
        _warm_workers(spark, self.plan)
        names = {*self.plan.names, *(pipeline.name for pipeline in self.plan.pipelines)}
        for pipeline in self.plan.pipelines:
            runner = PipelineRunner(
                pipeline,
                spark=spark,
                state_root=self.plan.state,
                emit=self._emit,
                choices=self._choices,
                pipelines=names,
            )
            thread = _inheriting_thread(runner)
            self.runners.append(runner)
            self._threads.append(thread)
            thread.start()
        if self._stopping.is_set():
            self.stop()

    def stop(self) -> None:
        """Ask every pipeline to finish its current batch and stop."""
        self._stopping.set()
        for runner in self.runners:
            runner.stop()

    def wait(self, tick: Callable[[], None] = lambda: None, every_secs: float = 0.5) -> None:
        """Block until every pipeline has ended, calling `tick` regularly."""
        while any(thread.is_alive() for thread in self._threads):
            tick()
            for thread in self._threads:
                if thread.is_alive():
                    thread.join(every_secs)
                    break
        tick()

    def stop_on_signals(self) -> None:
        """Stop cleanly on SIGTERM and Ctrl-C; a second one ends the run at once."""

        def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self._stopping.is_set():
                raise KeyboardInterrupt
            logger.info("finishing the current batch; signal again to stop at once")
            self.stop()

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)

    def exit_code(self) -> int:
        """Return 0 if no pipeline failed, else the exit code of the most severe failure."""
        codes = [
            error.exit_code if isinstance(error, IcestreamError) else 1
            for runner in self.runners
            if (error := runner.error) is not None
        ]
        return max(codes, default=0)


def open_plan_session(plan: Plan, sinks: Iterable[Sink[Any]] = ()) -> SparkSession:
    """Start Spark with the jars and settings of a plan.

    Args:
        plan: the plan.
        sinks: sinks that are not part of the plan, and write in the session.
    """
    from icestream.plan.stores import resolve_stores
    from icestream.spark import jars
    from icestream.spark.class_archive import add_archived_jars
    from icestream.spark.session import can_use_class_path, open_session

    plan.export_environment()  # before the JVM starts: it and its Python workers inherit it
    plan = resolve_stores(plan, sinks, create=True)
    executors = {f"spark.executorEnv.{name}": value for name, value in plan.environment.items()}
    conf = {**executors, **plan.spark_conf}
    # Spark's own resolver would load whatever a repository serves.
    configured = conf.pop("spark.jars.packages", "").split(",")
    extra = (package.strip() for package in configured if package.strip())
    packages = [*jars.user_packages(plan.jars), *extra]
    log = plan.state / "spark.log"
    light = not any(one.uses_spark_sql() or one.sink.audits() for one in plan.pipelines)
    coordinates = (
        add_archived_jars(plan.jars) if can_use_class_path(plan.master, conf) else plan.jars
    )
    settings = jars.ivy_settings(conf)
    files = [
        *jars.resolve(coordinates, settings),
        *jars.resolve_packages(packages, plan.state, settings),
    ]
    return open_session(
        plan.master,
        conf,
        files,
        log,
        secrets=plan.secret_keys,
        light=light,
        locations=plan.spark_locations,
    )


def _inheriting_thread(runner: PipelineRunner) -> threading.Thread:
    def body() -> None:
        try:
            runner.run()
        except BaseException as exc:
            if not isinstance(exc, IcestreamError):
                logger.debug("pipeline %s", runner.plan.name, exc_info=exc)

    return threading.Thread(target=body, name=f"pipeline {runner.plan.name}", daemon=True)


def _warm_workers(spark: SparkSession, plan: Plan) -> None:
    """Start Python workers with our modules loaded, while the driver prepares the first batch."""
    sources = [pipeline.source for pipeline in plan.pipelines]
    modules = [module for pipeline in plan.pipelines for module in pipeline.sink.task_modules]
    slots = spark.sparkContext.defaultParallelism

    def body() -> None:
        from icestream.spark.workers import WorkerWarmUp

        task = WorkerWarmUp(sources, modules)
        try:
            spark.range(0, slots, 1, slots).mapInArrow(task, "id long").count()
        except BaseException as exc:  # the first batch fails too, and reports it
            logger.debug("warming the workers", exc_info=exc)

    threading.Thread(target=body, name="warm workers", daemon=True).start()
