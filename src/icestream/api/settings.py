"""Where a pipeline built in Python keeps state and runs, with the defaults of a YAML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.contracts import registry
from icestream.contracts.option_errors import validated
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.catalog import Catalog
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.sinks.iceberg.options import IcebergOptions


@dataclass(frozen=True)
class Settings:
    """Where state is kept and how Spark runs.

    Attributes:
        state: folder of checkpoints and other state, a path or its text; the embedded catalog is
            next to it.
        master: Spark's master URL.
        conf: further Spark settings.
    """

    state: Path = field(default_factory=lambda: Path(".icestream"))
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", Path(self.state))


def build_catalog(options: IcebergOptions, settings: Settings) -> Catalog[Any]:
    """Return the catalog in a sink's options; the embedded one if there is none.

    Raises:
        PlanError: the options name a catalog of a file, and there is no file.
        ConfigError: the catalog's block is wrong.
    """
    block = options.catalog
    if block is None:
        from icestream.catalogs.jdbc import embedded

        return embedded(settings.state.absolute().parent / "lake")
    if isinstance(block, str):
        raise PlanError(
            f"no catalog is called {block!r} here",
            where="IcebergOptions.catalog",
            todo="Pass the catalog's block itself, e.g. {'type': 'jdbc', 'jdbc': {...}}.",
        )
    if "type" not in block:
        raise PlanError(
            "'type' is missing",
            where="IcebergOptions.catalog",
            todo=f"Add e.g. 'type': 'jdbc'. Available: {', '.join(registry.names('catalogs'))}.",
        )
    try:
        kind = registry.find("catalogs", str(block["type"]))
    except PlanError as exc:
        raise exc.at("IcebergOptions.catalog.type") from None
    options = validated(kind.options_type, block, "IcebergOptions.catalog")
    catalog: Catalog[Any] = kind("lake", options)
    return catalog


def build_plan(settings: Settings, catalog: Catalog[Any], *pipelines: PipelinePlan) -> Plan:
    """Return a plan for pipelines built in Python."""
    from icestream.config.model import Config, FileBlock
    from icestream.config.yaml import Tree
    from icestream.plan.plan import Plan
    from icestream.plan.spark_settings import jars_for, settings_for, spark_problems

    for problem in spark_problems(
        settings.master, settings.conf, lambda name, *_: f"Settings.{name}"
    ):
        raise problem
    folder = settings.state.absolute().parent
    block, tree = FileBlock.model_validate({}), Tree("python")
    empty = Config(path=folder / "python", folder=folder, block=block, tree=tree)
    catalogs = {catalog.name: catalog}
    spark = settings_for(empty, catalogs)
    return Plan(
        path=empty.path,
        state=settings.state.absolute(),
        pipelines=pipelines,
        catalogs=catalogs,
        jars=jars_for(empty, catalogs.values()),
        master=settings.master,
        spark_conf={**spark.conf, **settings.conf},
        secret_keys=frozenset(spark.displayed_secrets),
        metrics_port=empty.block.metrics.port,
        environment=catalog.environment(),
    )
