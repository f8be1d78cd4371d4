"""Looks at what is written around a source of changes: which of it changes can't go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import PlanError
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.config import Config, Part

CHANGE_CONNECTORS = ("postgres-cdc",)
CHANGE_FORMATS = ("debezium-json", "debezium-avro")


def reads_changes(part: Part) -> bool:
    """Tell whether a source gives changes, with tables and keys of their own."""
    return (
        part.connector in CHANGE_CONNECTORS
        or getattr(part.options, "format", None) in CHANGE_FORMATS
    )


def mirror_problems(config: Config) -> Iterator[PlanError]:
    """Yield what is wrong with the pipelines of sources of changes."""
    for name, pipeline in config.pipelines.items():
        source, sink = config.sources[pipeline.source], config.sinks[pipeline.sink]
        if not reads_changes(source):
            continue
        if config.transforms.get(name):
            yield PlanError(
                "transforms see the rows of one stream, and a source of changes has many tables",
                where=config.tree.where(("pipelines", name, "transforms"), key=True),
                todo="Take them out, and transform the mirrored tables where they are read.",
            )
        if isinstance(sink.options, IcebergOptions):
            yield from _sink_problems(config, sink, sink.options)


def _sink_problems(config: Config, part: Part, options: IcebergOptions) -> Iterator[PlanError]:
    given = options.model_fields_set
    if "commit_mode" in given and options.commit_mode not in ("append", "upsert"):
        yield PlanError(
            f"commit_mode {options.commit_mode!r} would lose what earlier changes left",
            where=config.tree.where((*part.path, "commit_mode")),
            todo="Leave it out: changes are then applied by key. `append` keeps every change as a "
            "row.",
        )
    for field, why in (
        ("expect", "conditions are looked at row by row, and these rows are of many tables"),
        ("route_by", "each change names its table already"),
    ):
        if field in given:
            yield PlanError(
                f"`{field}` can't be used with a source of changes: {why}",
                where=config.tree.where((*part.path, field), key=True),
                todo="Take it out.",
            )
