"""Refuses what only makes sense with an end: replacing a table by a stream that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from icestream.config import Config
    from icestream.plan.plan import PipelinePlan, Plan


def refuse_endless(plan: Plan, config: Config | None = None, *, once: bool) -> None:
    """Refuse to replace a table, batch for batch, by a source that does not end.

    Args:
        plan: what would run.
        config: the file, for places in it.
        once: whether the run goes up to where each source ends now.

    Raises:
        ConfigError: it would; it holds every such pipeline.
    """
    problems = [
        _problem(pipeline, config)
        for pipeline in plan.pipelines
        if not once and pipeline.sink.needs_end() and not pipeline.source.has_end()
    ]
    if problems:
        raise ConfigError(list(problems))


def _problem(pipeline: PipelinePlan, config: Config | None) -> PlanError:
    mode = getattr(getattr(pipeline.sink, "options", None), "commit_mode", "")
    where = f"pipeline {pipeline.name!r}"
    if config is not None:
        where = config.tree.where((*config.sinks[pipeline.sink_name].path, "commit_mode"))
    return PlanError(
        f"commit_mode {mode!r} in pipeline {pipeline.name!r}: the source "
        f"{pipeline.source_name!r} never ends, so that every batch would wipe what the last wrote",
        where=where,
        todo="Load up to where the source ends now, with `icestream run --once` (and "
        "`icestream check --once`), or use `commit_mode: append`, `overwrite` or `upsert`.",
    )
