"""Where a pipeline built in Python keeps state and runs, with the defaults of a YAML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.contracts import registry
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
        state: folder of checkpoints and other state; the embedded catalog is next to it.
        master: Spark's master URL.
        conf: further Spark settings.
    """

    state: Path = field(default_factory=lambda: Path(".icestream"))
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


def build_catalog(options: IcebergOptions, settings: Settings) -> Catalog[Any]:
    """Return the catalog in a sink's options; the embedded one if there is none.

    Raises:
        PlanError: the options name a catalog of a file, and there is no file.
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
    kind = registry.find("catalogs", str(block.get("type")))
    catalog: Catalog[Any] = kind("lake", kind.options_type.model_validate(block))
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
