"""Checks the transforms and expectations of pipelines with CDC sources, and of their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.config.connectors import is_available
from icestream.contracts import registry
from icestream.contracts.registry import did_you_mean
from icestream.errors import IcestreamError, PlanError
from icestream.plan.sources import build_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.config import Component, Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.expectation import Expectation


USABLE = "`filter`, `select`, `compute`, `rename`, `cast` and `drop`"


def table_expectations(config: Config, sink: str) -> Iterator[Expectation]:
    """Yield the expectations of single tables that are written to a sink."""
    for pipeline in config.pipelines.values():
        if pipeline.sink == sink:
            for block in pipeline.tables.values():
                yield from block.expect


def rule_problems(config: Config) -> Iterator[IcestreamError]:
    """Yield what is wrong with the transforms of changes, and with the rules of single tables."""
    for name, pipeline in config.pipelines.items():
        try:
            source = build_source(config, config.sources[pipeline.source])
            sink = config.sinks[pipeline.sink]
        except (KeyError, IcestreamError):
            continue  # reported on its own
        path: KeyPath = ("pipelines", name)
        if not source.traits.changes:
            if pipeline.tables:
                yield PlanError(
                    f"source {pipeline.source!r} has one stream of rows, and no tables",
                    where=config.tree.where((*path, "tables"), key=True),
                    todo="`tables` is for CDC sources. Move the steps to `transforms`, and the "
                    "conditions to the sink's `expect`.",
                )
            continue
        steps = [*config.transforms.get(name, ())]
        for own in config.table_transforms.get(name, {}).values():
            steps += own
        for step in steps:
            yield from _step_problems(config, step)
        yield from _missing_field_problems(config, sink, steps)
        yield from _delete_mode_problems(config, sink, steps)
        for table in pipeline.tables:
            yield from _name_problems(config, name, table)
        yield from _expectation_problems(config, name)


def unusable_step_problem(name: str, where: str) -> PlanError:
    """Say that changes can't go through a transform."""
    return PlanError(
        f"transform {name!r} can't be used with a CDC source: it does not work row by row",
        where=where,
        todo=f"Use {USABLE}, or transform the mirrored tables where they are read.",
    )


def _step_problems(config: Config, step: Component) -> Iterator[PlanError]:
    if not step.is_whole or not is_available("transforms", step.connector):
        return  # reported on its own, or as planned
    if not registry.find("transforms", step.connector).is_row_by_row:
        yield unusable_step_problem(step.name, config.tree.where(step.path, key=True))


def _missing_field_problems(
    config: Config, sink: Component, steps: list[Component]
) -> Iterator[PlanError]:
    if getattr(sink.options, "missing_fields", None) != "keep":
        return
    names = [step.name for step in steps]
    if getattr(sink.options, "expect", ()) or any(table_expectations(config, sink.name)):
        names.append("expect")
    if names:
        yield PlanError(
            f"'keep' can't be combined with `{names[0]}` of a CDC source: a row may lack the "
            "values that it needs",
            where=config.tree.where((*sink.path, "missing_fields")),
            todo="Take `missing_fields` or the transforms out.",
        )


def _delete_mode_problems(
    config: Config, sink: Component, steps: list[Component]
) -> Iterator[PlanError]:
    """Report a sink that would keep the old version of a row that is left out."""
    mode = getattr(sink.options, "delete_mode", "hard")
    if mode == "hard":
        return
    expectations = (*getattr(sink.options, "expect", ()), *table_expectations(config, sink.name))
    causes = [f"`{step.name}`" for step in steps if step.name == "filter"]
    causes += [f"expectation {one.name!r}" for one in expectations if one.on_fail != "fail"]
    if steps and getattr(sink.options, "on_error", "fail") != "fail":
        causes.append("`on_error`")
    if causes:
        yield PlanError(
            f"delete_mode {mode!r} can't be combined with {causes[0]} of a CDC source: the old "
            "version of a row that is left out would stay in the table",
            where=config.tree.where((*sink.path, "delete_mode")),
            todo="Use `delete_mode: hard`.",
        )


def _name_problems(config: Config, pipeline: str, table: str) -> Iterator[PlanError]:
    """Report a table that the source does not read, as far as its options tell."""
    source = build_source(config, config.sources[config.pipelines[pipeline].source])
    if set("*?[") & set(table) or source.may_read(tuple(table.split("."))) is not False:
        return
    names = [".".join(each) for each in source.named_tables()]
    known = f"It reads: {', '.join(names)}." if names else "Write its name as `schema.table`."
    yield PlanError(
        f"source {config.pipelines[pipeline].source!r} does not read a table {table!r}",
        where=config.tree.where(("pipelines", pipeline, "tables", table), key=True),
        todo=f"{did_you_mean(table, names)}{known}",
    )


def _expectation_problems(config: Config, pipeline: str) -> Iterator[IcestreamError]:
    from icestream.plan.checks import expectation_problems

    block = config.pipelines[pipeline]
    shared = getattr(config.sinks[block.sink].options, "expect", ())
    owners = {one.name: "the sink" for one in shared}
    for table, rules in block.tables.items():
        path = ("pipelines", pipeline, "tables", table)
        yield from expectation_problems(config, path, rules.expect)
        for number, one in enumerate(rules.expect):
            owner = owners.setdefault(one.name, f"table {table!r}")
            if owner != f"table {table!r}":
                yield PlanError(
                    f"duplicate expectation name {one.name!r}, which {owner} has too",
                    where=config.tree.where((*path, "expect", number, "name")),
                    todo="Expectations are counted by name: give each its own.",
                )
