"""What the configuration file may hold, and what it becomes when it is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, SecretStr, StringConstraints

from icestream.contracts.options import Options, PropertyText

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path as FilePath

    from icestream.config.yaml import Path, Tree

VERSION = "1.0"
NAME_PATTERN = "^[A-Za-z][A-Za-z0-9_-]{0,99}$"
Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


class StreamBlock(Options):
    """One table of a source that holds many."""

    name: Text = Field(description="Name of the table.")
    namespace: Text = Field("public", description="Schema of the table.")
    sync_mode: Literal["incremental", "full_refresh"] = Field(
        "incremental", description="First a snapshot, then changes; or read anew at each start."
    )


class SourceBlock(Options):
    """Something to read from."""

    connector: Text = Field(description="Kind of source.")
    config: dict[str, Any] = Field(default_factory=dict, description="Options of the source.")
    streams: tuple[StreamBlock, ...] = Field((), description="Tables to read.")


class SinkBlock(Options):
    """Something to write to."""

    connector: Text = Field(description="Kind of sink.")
    config: dict[str, Any] = Field(default_factory=dict, description="Options of the sink.")


class RestartBlock(Options):
    """What happens after a passing fault."""

    max: int = Field(5, ge=0, description="Restarts in a row before the pipeline fails.")
    backoff_secs: float = Field(
        1,
        ge=0,
        description="Pause before the first restart; three times as long before each further one.",
    )


class PipelineBlock(Options):
    """A source, transforms and a sink."""

    source: Text = Field(description="Name of a source.")
    sink: Text = Field(description="Name of a sink.")
    enabled: bool = Field(True, description="Whether `run` runs it.")
    transforms: tuple[dict[str, Any], ...] = Field(
        (), description='Steps in order, each one key: `filter: "amount > 0"`.'
    )
    restart: RestartBlock = Field(
        default_factory=lambda: RestartBlock(max=5, backoff_secs=1),
        description="What happens after a passing fault.",
    )


class ViewBlock(Options):
    """An aggregate table kept current from the changes of its source."""

    source: Text = Field(description="Table whose changes are followed.")
    target: Text = Field(description="Table that holds the result.")
    sql: str | None = Field(None, description="Query; or use `group_by` and `aggregates`.")
    group_by: tuple[Text, ...] = Field((), description="Columns or windows to group by.")
    aggregates: dict[str, str] = Field(
        default_factory=dict, description="New column to SQL aggregate."
    )
    flush_interval_secs: float = Field(60, gt=0, description="The longest the view lags.")


class SparkBlock(Options):
    """Where Spark runs, and its settings."""

    master: Text = Field("local[*]", description="Spark master, e.g. `spark://host:7077`.")
    conf: dict[Text, PropertyText] = Field(
        default_factory=dict, description="Spark settings, passed untouched."
    )
    packages: tuple[Text, ...] = Field(
        (),
        description="Further Maven coordinates, `group:artifact:version`, loaded with everything "
        "they depend on. Their checksums are recorded at the first start and compared at every "
        "later one.",
    )


class StateBlock(Options):
    """Where checkpoints and our own state are kept."""

    path: Text = Field(
        ".icestream",
        description="A local folder, or a Hadoop path (s3a, abfs, gs).",
        json_schema_extra={"path": True},
    )


class MetricsBlock(Options):
    """The endpoint for Prometheus, on while `run` runs."""

    host: Text = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(9108, ge=0, le=65_535, description="Port; 0 turns the endpoint off.")
    token: SecretStr | None = Field(
        None,
        description="What a scraper sends as `Authorization: Bearer`; needed for every `host` but "
        "loopback.",
    )


class FileBlock(Options):
    """The whole file. Every key may be absent."""

    version: Literal["1.0"] = Field("1.0", description="Version of this file format.")
    catalogs: dict[Name, dict[str, Any]] = Field(
        default_factory=dict, description="Catalogs by name, used as `catalog: NAME`."
    )
    sources: dict[Name, SourceBlock] = Field(default_factory=dict, description="What is read.")
    sinks: dict[Name, SinkBlock] = Field(default_factory=dict, description="What is written.")
    pipelines: dict[Name, PipelineBlock] = Field(
        default_factory=dict, description="What runs: a source, transforms and a sink each."
    )
    views: dict[Name, ViewBlock] = Field(
        default_factory=dict,
        description="Aggregate tables kept up to date.",
        json_schema_extra={"planned": True},
    )
    spark: SparkBlock = Field(
        default_factory=lambda: SparkBlock.model_validate({}),
        description="Where Spark runs, and its settings.",
    )
    state: StateBlock = Field(
        default_factory=lambda: StateBlock.model_validate({}),
        description="Where checkpoints and our own state are kept.",
    )
    metrics: MetricsBlock = Field(
        default_factory=lambda: MetricsBlock.model_validate({}),
        description="The endpoint for Prometheus.",
    )


@dataclass(frozen=True)
class Component:
    """A source, sink, catalog or transform of the file, with its options checked.

    Attributes:
        name: its name in the file; for a transform, the kind.
        connector: the kind of connector.
        options: its options; relative paths are still relative.
        path: where its options stand in the file.
        catalog: the catalog it names or holds inline, if it is a part that uses one.
    """

    name: str
    connector: str
    options: Options
    path: Path
    catalog: str | Component | None = None


@dataclass(frozen=True)
class Config:
    """A configuration file whose parts are all well-formed and known by name.

    Attributes:
        path: the file, as it was named.
        folder: the file's folder, which relative paths in it start from.
        block: the file as a model.
        tree: where everything stands in the file, for messages.
    """

    path: FilePath
    folder: FilePath
    block: FileBlock = field(repr=False)
    tree: Tree = field(repr=False)
    catalogs: Mapping[str, Component] = field(default_factory=dict)
    sources: Mapping[str, Component] = field(default_factory=dict)
    sinks: Mapping[str, Component] = field(default_factory=dict)
    transforms: Mapping[str, tuple[Component, ...]] = field(default_factory=dict)

    @property
    def pipelines(self) -> Mapping[str, PipelineBlock]:
        """The pipelines by name, in the order of the file."""
        return self.block.pipelines
