"""What a run will do, decided before Spark starts: frozen and printable."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from icestream.contracts.columns import UNKNOWN_COLUMNS
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pydantic import SecretStr

    from icestream.config import Config
    from icestream.contracts.catalog import Catalog
    from icestream.contracts.columns import Columns
    from icestream.contracts.sink import RowExpectation, Sink
    from icestream.contracts.source import Source
    from icestream.contracts.transform import Transform
    from icestream.sinks.iceberg.options import IcebergOptions


# In the folder of a pipeline: what its sink keeps there.
SINK_CACHE = "cache"


def pipeline_folder(state: Path, pipeline: str) -> Path:
    """Return the folder of a pipeline in the state folder of the file."""
    return state / "pipelines" / pipeline


@dataclass(frozen=True)
class Batching:
    """When a batch is committed: `batch_size` rows wait, or the oldest waited long enough.

    Attributes:
        max_batch_rows: the maximum number of rows of a batch if only the plan's pipelines run.
        max_rows_for: returns the maximum number of rows of a batch while that many pipelines run
            in the process; None if the configuration sets the number of rows.
    """

    batch_size: int
    flush_interval_secs: float
    max_batch_rows: int
    max_rows_for: Callable[[int], int] | None = field(default=None, compare=False, repr=False)

    def max_rows(self, running: int) -> int:
        """Return the maximum rows of a batch while `running` pipelines share the memory."""
        if self.max_rows_for is None:
            return self.max_batch_rows
        return min(self.max_batch_rows, self.max_rows_for(running))


@dataclass(frozen=True)
class RestartPolicy:
    """How often, and after which pause, a pipeline is restarted after a passing fault."""

    max: int = 5
    backoff_secs: float = 1.0


@dataclass(frozen=True)
class PlannedFeature:
    """Something that the file names and this version does not have yet."""

    where: str
    name: str

    @property
    def message(self) -> str:
        """What is wrong, for an error."""
        return f"{self.name!r} is not available in this version"


@dataclass(frozen=True)
class TableRules:
    """What happens to the changes of some tables of a change source.

    Attributes:
        pattern: the source's name of a table, or a pattern such as `public.*`.
        transforms: applied after those of the pipeline.
        steps: the transforms in the words of the file.
        expectations: conditions that the rows should meet, after the transforms.
    """

    pattern: str
    transforms: tuple[Transform[Any], ...] = ()
    steps: tuple[str, ...] = ()
    expectations: tuple[RowExpectation, ...] = ()

    def matches(self, table: tuple[str, ...]) -> bool:
        """Tell whether a table, by the source's names of it, is one of these."""
        return fnmatchcase(".".join(table), self.pattern)


@dataclass(frozen=True)
class PipelinePlan:
    """One pipeline with its parts built, none of them connected.

    Attributes:
        steps: the transforms, in the words of the file.
        columns: the columns of the table that the sink creates, as far as the file tells them.
        tables: the rules of single tables of a change source.
    """

    name: str
    source_name: str
    source: Source[Any]
    sink_name: str
    sink: Sink[IcebergOptions]
    batching: Batching
    restart: RestartPolicy
    on_error: str
    dead_letter: Sink[Any] | None = None
    transforms: tuple[Transform[Any], ...] = ()
    steps: tuple[str, ...] = ()
    columns: Columns = UNKNOWN_COLUMNS
    tables: tuple[TableRules, ...] = ()

    def all_steps(self) -> list[str]:
        """Return the transforms in the words of the file, those of single tables last."""
        own = [f"{rules.pattern}: {step}" for rules in self.tables for step in rules.steps]
        return [*self.steps, *own]

    def expectations(self) -> tuple[RowExpectation, ...]:
        """Return every condition that rows should meet."""
        own = (one for rules in self.tables for one in rules.expectations)
        return (*self.sink.expectations(), *own)

    def transforms_rows(self) -> bool:
        """Tell whether rows go through transforms or expectations."""
        own = any(rules.transforms for rules in self.tables)
        return bool(self.transforms or own or self.expectations())

    def transforms_table(self, table: tuple[str, ...]) -> bool:
        """Tell whether a table of a change source, by the source's names of it, is transformed."""
        own = (rules for rules in self.tables if rules.matches(table))
        return bool(self.transforms) or any(rules.transforms for rules in own)

    def uses_spark_sql(self) -> bool:
        """Tell whether rows pass through Spark SQL, or stay in Arrow from source to file."""
        if self.sink.is_mirror:
            return self.transforms_rows()
        needed = self.transforms_rows() or self.sink.computed_columns()
        return bool(needed) or self.sink.sorts()


@dataclass(frozen=True)
class Plan:
    """Everything a run needs.

    Attributes:
        pipelines: the enabled pipelines, by their order in the file.
        catalogs: every catalog that a pipeline uses, by name in SQL.
        jars: Maven coordinates that Spark must load.
        spark_conf: Spark's settings, secrets included; print `visible_conf()` instead.
        secret_keys: the settings among them whose value must not be shown.
        names: every pipeline of the file, those that do not run now included.
        planned: what the file names and this version does not have; `run` refuses these.
        shown_secrets: what is shown for each secret setting, such as `${PG_PASSWORD}`.
        environment: variables that libraries of catalogs and stores read, such as AWS_PROFILE.
        sources: every source built, by name in the file.
        sinks: every sink built, by name in the file.
        spark_locations: where the file has each of the user's settings of Spark, for messages.
    """

    path: Path
    state: Path
    pipelines: tuple[PipelinePlan, ...]
    catalogs: Mapping[str, Catalog[Any]]
    jars: tuple[str, ...]
    master: str
    spark_conf: Mapping[str, str] = field(repr=False)
    secret_keys: frozenset[str] = frozenset()
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9108
    metrics_token: SecretStr | None = None
    names: tuple[str, ...] = ()
    planned: tuple[PlannedFeature, ...] = ()
    shown_secrets: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Source[Any]] = field(default_factory=dict)
    sinks: Mapping[str, Sink[Any]] = field(default_factory=dict)
    spark_locations: Mapping[str, str] = field(default_factory=dict)

    def export_environment(self) -> Plan:
        """Set the environment variables that client libraries read, before any connection.

        They apply to this process and its child processes.

        Raises:
            PlanError: the file names an AWS profile, and an environment variable would override it.
        """
        if "AWS_PROFILE" in self.environment and os.getenv("AWS_ACCESS_KEY_ID"):
            raise PlanError(
                f"the file asks for the profile {self.environment['AWS_PROFILE']!r}, and Amazon's "
                "libraries take the keys of the variable AWS_ACCESS_KEY_ID before any profile",
                where=str(self.path),
                todo="Take AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY out of the environment, or "
                "`profile` out of the file.",
            )
        os.environ.update(self.environment)
        return self

    def sink_cache(self, pipeline: str) -> Path:
        """Return the folder in which the sink of a pipeline keeps its tables and indexes."""
        return pipeline_folder(self.state, pipeline) / SINK_CACHE

    def visible_conf(self) -> dict[str, str]:
        """Return Spark's settings with each secret hidden, or shown as its reference."""
        return {
            key: self.shown_secrets.get(key, "(hidden)") if key in self.secret_keys else value
            for key, value in self.spark_conf.items()
        }


def endless_problems(
    pipelines: Iterable[PipelinePlan], config: Config, *, once: bool
) -> Iterator[PlanError]:
    """Yield the pipelines that would replace a table, batch for batch, by an endless source.

    Args:
        pipelines: what would run.
        config: the file, for places in it.
        once: whether the run goes up to where each source ends now.
    """
    for pipeline in pipelines:
        if not once and pipeline.sink.needs_end() and not pipeline.source.has_end():
            yield _endless_problem(
                pipeline,
                config.tree.where((*config.sinks[pipeline.sink_name].path, "commit_mode")),
            )


def refuse_endless(pipeline: PipelinePlan, *, once: bool) -> None:
    """Refuse a pipeline that would replace a table, batch for batch, by an endless source.

    Raises:
        PlanError: it would.
    """
    if not once and pipeline.sink.needs_end() and not pipeline.source.has_end():
        raise _endless_problem(pipeline, f"pipeline {pipeline.name!r}")


def _endless_problem(pipeline: PipelinePlan, where: str) -> PlanError:
    mode = pipeline.sink.options.commit_mode
    return PlanError(
        f"commit_mode {mode!r} in pipeline {pipeline.name!r}: the source "
        f"{pipeline.source_name!r} never ends, so that every batch would wipe what the last wrote",
        where=where,
        todo="Load up to where the source ends now, with `icestream run --once` (and "
        "`icestream check --once`), or use `commit_mode: append`, `overwrite` or `upsert`.",
    )
