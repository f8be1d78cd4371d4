"""Models of the configuration file, and the validated result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, SecretStr, StringConstraints

from icestream.contracts.expectation import Expectation
from icestream.contracts.options import Options, PropertyText

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path as FilePath

    from icestream.config.yaml import KeyPath, Tree
    from icestream.errors import IcestreamError

VERSION = "1.0"
NAME_PATTERN = "^[A-Za-z][A-Za-z0-9_-]{0,99}$"
Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


class StreamBlock(Options):
    """One table of a source that holds many."""

    name: Text = Field(description="Name of the table.")
    namespace: Text = Field("public", description="Schema of the table.")
    sync_mode: Literal["incremental", "full_refresh"] = Field(
        "incremental", description="A snapshot, then changes; or a full read at each start."
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
    """Restarts after a transient fault."""

    max: int = Field(5, ge=0, description="Restarts in a row before the pipeline fails.")
    backoff_secs: float = Field(
        1,
        ge=0,
        description="Pause before the first restart; tripled for each further one.",
    )


class TableBlock(Options):
    """What happens to the changes of one table of a CDC source."""

    transforms: tuple[dict[str, Any], ...] = Field(
        (), description="Steps in order, after those of the pipeline."
    )
    expect: tuple[Expectation, ...] = Field(
        (), max_length=60, description="Conditions that the rows should meet after the transforms."
    )


class PipelineBlock(Options):
    """A source, transforms and a sink."""

    source: Text = Field(description="Name of a source.")
    sink: Text = Field(description="Name of a sink.")
    enabled: bool = Field(True, description="Whether `run` runs it.")
    transforms: tuple[dict[str, Any], ...] = Field(
        (), description='Steps in order, each one key: `filter: "amount > 0"`.'
    )
    tables: dict[Text, TableBlock] = Field(
        default_factory=dict,
        description="Of a CDC source: transforms and conditions of single tables, by the source's "
        "name of the table or a pattern such as `public.*`.",
    )
    restart: RestartBlock = Field(
        default_factory=lambda: RestartBlock(max=5, backoff_secs=1),
        description="Restarts after a transient fault.",
    )


class ViewBlock(Options):
    """An aggregate table kept current from the changes of its source."""

    source: Text = Field(description="Table whose changes the view follows.")
    target: Text = Field(description="Table that holds the result.")
    sql: str | None = Field(None, description="Query; or use `group_by` and `aggregates`.")
    group_by: tuple[Text, ...] = Field((), description="Columns or windows to group by.")
    aggregates: dict[str, str] = Field(
        default_factory=dict, description="New column to SQL aggregate."
    )
    flush_interval_secs: float = Field(60, gt=0, description="Maximum lag of the view.")


class SparkBlock(Options):
    """Spark's master and settings."""

    master: Text = Field("local[*]", description="Spark master, e.g. `spark://host:7077`.")
    conf: dict[Text, PropertyText] = Field(
        default_factory=dict, description="Spark settings, passed unchanged."
    )
    packages: tuple[Text, ...] = Field(
        (),
        description="Further Maven coordinates, `group:artifact:version`, loaded with everything "
        "they depend on. Their checksums are recorded at the first start and compared at every "
        "later one.",
    )


class StateBlock(Options):
    """Where checkpoints and icestream's state are stored."""

    path: Text = Field(
        ".icestream",
        description="A local folder, or a Hadoop path (s3a, abfs, gs).",
        json_schema_extra={"path": True},
    )


class MetricsBlock(Options):
    """The Prometheus endpoint, served while `run` runs."""

    host: Text = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(9108, ge=0, le=65_535, description="Port; 0 disables the endpoint.")
    token: SecretStr | None = Field(
        None,
        description="Token that a scraper sends as `Authorization: Bearer`; required unless `host` "
        "is loopback.",
    )


class FileBlock(Options):
    """The whole file. Every key is optional."""

    version: Literal["1.0"] = Field("1.0", description="Version of this file format.")
    catalogs: dict[Name, dict[str, Any]] = Field(
        default_factory=dict, description="Catalogs by name, used as `catalog: NAME`."
    )
    sources: dict[Name, SourceBlock] = Field(default_factory=dict, description="Sources by name.")
    sinks: dict[Name, SinkBlock] = Field(default_factory=dict, description="Sinks by name.")
    pipelines: dict[Name, PipelineBlock] = Field(
        default_factory=dict, description="Pipelines by name: a source, transforms and a sink."
    )
    views: dict[Name, ViewBlock] = Field(
        default_factory=dict,
        description="Aggregate tables kept up to date.",
        json_schema_extra={"planned": True},
    )
    spark: SparkBlock = Field(
        default_factory=lambda: SparkBlock.model_validate({}),
        description="Spark's master and settings.",
    )
    state: StateBlock = Field(
        default_factory=lambda: StateBlock.model_validate({}),
        description="Where checkpoints and icestream's state are stored.",
    )
    metrics: MetricsBlock = Field(
        default_factory=lambda: MetricsBlock.model_validate({}),
        description="The Prometheus endpoint.",
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
        is_whole: false if options with mistakes are missing from `options`.
        has_catalog: false if the catalog that it names or holds could not be read.
    """

    name: str
    connector: str
    options: Options
    path: KeyPath
    catalog: str | Component | None = None
    is_whole: bool = True
    has_catalog: bool = True


@dataclass(frozen=True)
class Config:
    """A configuration file.

    If it has problems, it holds the rest of the file, so that the rest can be checked as well:
    sections and components with mistakes are missing, and a pipeline may refer to a missing one.

    Attributes:
        path: the file, as it was named.
        folder: the file's folder, which relative paths in it start from.
        block: the file as a model.
        tree: the file's data, with lines and columns for messages.
        transforms: the transforms of each pipeline.
        table_transforms: by pipeline and table, the transforms of single tables.
        problems: what is wrong with the file, in its order; empty unless it comes from `read`.
    """

    path: FilePath
    folder: FilePath
    block: FileBlock = field(repr=False)
    tree: Tree = field(repr=False)
    catalogs: Mapping[str, Component] = field(default_factory=dict)
    sources: Mapping[str, Component] = field(default_factory=dict)
    sinks: Mapping[str, Component] = field(default_factory=dict)
    transforms: Mapping[str, tuple[Component, ...]] = field(default_factory=dict)
    table_transforms: Mapping[str, Mapping[str, tuple[Component, ...]]] = field(
        default_factory=dict
    )
    problems: tuple[IcestreamError, ...] = ()

    @property
    def pipelines(self) -> Mapping[str, PipelineBlock]:
        """The pipelines by name, in the order of the file."""
        return self.block.pipelines
