"""Spark's settings and jars, as the file's components ask for them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from icestream.contracts.jars import iceberg_runtime_for
from icestream.contracts.options import yaml_key
from icestream.contracts.secrets import HIDDEN, is_secret
from icestream.errors import PlanError
from icestream.plan.plan import Batching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icestream.config import Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.catalog import Catalog


UNITS = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"^\s*(\d+)\s*([kmgt]?)(b?)\s*$", re.IGNORECASE)
DEFAULT_DRIVER_BYTES = 2 << 30
ROWS_PER_GIB = 1_000_000
# All together, and of one among many: smaller batches would cost more in commits than they save.
MIN_ROWS, MIN_SHARED_ROWS, MAX_ROWS = 500_000, 50_000, 5_000_000
# How much more memory a row takes with `missing_fields: keep`.
KEEP_FACTOR = 4


def batching_for(options: Any, spark_conf: Mapping[str, str], pipelines: int = 1) -> Batching:
    """Return when the batches of a sink begin and where they end.

    Args:
        options: those of the sink.
        spark_conf: as given, which tells the driver's memory.
        pipelines: how many pipelines the plan runs, which share that memory.
    """
    size: int = options.batch_size

    def max_rows_for(running: int) -> int:
        rows = max_batch_rows(spark_conf, running)
        if getattr(options, "missing_fields", None) == "keep":
            rows //= KEEP_FACTOR
        return max(rows, size)

    given: int | None = options.max_batch_rows
    return Batching(
        batch_size=size,
        flush_interval_secs=options.flush_interval_secs,
        max_batch_rows=given or max_rows_for(pipelines),
        max_rows_for=None if given else max_rows_for,
    )


def max_batch_rows(spark_conf: Mapping[str, str], pipelines: int = 1) -> int:
    """Return the most rows of a batch: a million for each GiB of the driver, within bounds.

    The pipelines of a process divide them among themselves.
    """
    driver = parse_size(spark_conf.get("spark.driver.memory", "")) or DEFAULT_DRIVER_BYTES
    usable = min(driver, physical_memory() // 2)
    together = max(MIN_ROWS, min(MAX_ROWS * pipelines, usable * ROWS_PER_GIB >> 30))
    return max(MIN_SHARED_ROWS, min(MAX_ROWS, together // pipelines))


def parse_size(text: str) -> int | None:
    """Read a size as Spark writes it, such as `2g`; None if it is not one."""
    found = SIZE.match(text)
    if found is None:
        return None
    unit = found[2].lower() or ("b" if found[3] else "")
    return int(found[1]) * UNITS[unit]


def physical_memory() -> int:
    """Return the bytes of memory of this machine, or a guess where it cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


MASTER = "spark.master"
MASTER_URL = re.compile(
    r"^(local(\[ *(\d+|\*) *(, *\d+ *)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://\S+)$"
)
# The launcher passes it to Java as it is, and Java takes no other units.
HEAP_SIZE = re.compile(r"^\d+[kmgt]$", re.IGNORECASE)
MEMORY_SETTINGS = {
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.driver.maxResultSize",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.pyspark.memory",
    "spark.memory.offHeap.size",
}

CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
MIN_SECRET_LENGTH = 6
# Settings of the resolver inside Spark, which we don't use: it checks no checksums.
UNSUPPORTED = {
    "spark.jars.repositories": "Describe the repositories in an Ivy settings file, and name that "
    "file in `spark.jars.ivySettings`.",
    "spark.jars.excludes": "Name the jars that you need in `spark.jars`, in place of packages.",
}
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@dataclass
class SparkSettings:
    """Settings for Spark, how secret ones are shown, and where the file has the user's."""

    conf: dict[str, str] = field(default_factory=dict)
    displayed_secrets: dict[str, str] = field(default_factory=dict)
    locations: dict[str, str] = field(default_factory=dict)


def settings_for(config: Config, catalogs: Mapping[str, Catalog[Any]]) -> SparkSettings:
    """Return the user's settings joined with those of every catalog."""
    user = config.block.spark.conf
    settings = SparkSettings({**user, "spark.sql.extensions": _extensions(user)})
    settings.locations = {key: config.tree.where(("spark", "conf", key)) for key in user}
    settings.locations.setdefault("spark.master", config.tree.where(("spark", "master")))
    references = dict(_secrets(config))
    for name, catalog in catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        settings.conf[prefix] = CATALOG_CLASS
        # Each session caches tables for itself: a reader would not see what another committed.
        own = {"cache-enabled": "false", **catalog.spark_settings()}
        settings.conf |= {f"{prefix}.{key}": value for key, value in own.items()}
    for key, value in settings.conf.items():
        reference = config.tree.references.get(("spark", "conf", key))
        secret = next((text for text in references if _contains_secret(value, text)), None)
        if reference is not None:
            settings.displayed_secrets[key] = reference
        elif secret is not None:
            settings.displayed_secrets[key] = references[secret]
        elif is_secret(key, value):
            settings.displayed_secrets[key] = HIDDEN
    return settings


def spark_problems(
    master: str, conf: Mapping[str, str], where: Callable[..., str]
) -> Iterator[PlanError]:
    """Yield the settings that Spark would refuse, or that would have no effect.

    Args:
        master: where Spark runs.
        conf: the settings, as given.
        where: returns the location of `master`, or of `conf` and a key in it.
    """
    for text, path in ((master, ("master",)), (conf.get(MASTER), ("conf", MASTER))):
        if text is not None and not MASTER_URL.match(text):
            yield PlanError(
                f"{text!r} is not a Spark master",
                where=where(*path),
                todo="Write e.g. `local[*]`, `local[4]`, `spark://host:7077`, `yarn` or "
                "`k8s://https://host:443`.",
            )
    for key, value in conf.items():
        pattern = HEAP_SIZE if key == "spark.driver.memory" else SIZE
        if key in MEMORY_SETTINGS and not pattern.match(value):
            yield PlanError(
                f"{value!r} is not an amount of memory",
                where=where("conf", key),
                todo="Write a whole number and a unit, e.g. `512m` or `2g`.",
            )
        if key in UNSUPPORTED:
            yield PlanError(
                f"{key!r} is not supported", where=where("conf", key), todo=UNSUPPORTED[key]
            )


def _contains_secret(value: str, secret: str) -> bool:
    # A short secret is found inside many an innocent value; there only the whole of it counts.
    return value == secret or (len(secret) >= MIN_SECRET_LENGTH and secret in value)


def jars_for(config: Config, catalogs: Iterable[Catalog[Any]]) -> tuple[str, ...]:
    """Return the Maven coordinates that Spark must load, each once."""
    jars = [iceberg_runtime_for(_spark_minor())]
    for catalog in catalogs:
        jars += catalog.jars()
    return tuple(dict.fromkeys([*jars, *config.block.spark.packages]))


def _spark_minor() -> str:
    # Asked of the installed package: importing pyspark takes longer than the whole plan.
    return ".".join(metadata.version("pyspark").split(".")[:2])


def _extensions(user: Mapping[str, str]) -> str:
    given = user.get("spark.sql.extensions", "").split(",")
    return ",".join(dict.fromkeys(name for name in (*given, EXTENSIONS) if name))


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    """Yield every secret of the file with what may be shown in its place."""
    for components in (config.catalogs, config.sinks, config.sources):
        for component in components.values():
            yield from _secrets_in(config, component.options, component.path)
            if component.catalog is not None and not isinstance(component.catalog, str):
                yield from _secrets_in(config, component.catalog.options, component.catalog.path)


def _secrets_in(config: Config, options: BaseModel, path: KeyPath) -> Iterator[tuple[str, str]]:
    for name, field_info in type(options).model_fields.items():
        value, inner = getattr(options, name), (*path, yaml_key(name, field_info))
        if isinstance(value, BaseModel):
            yield from _secrets_in(config, value, inner)
        items = value.items() if isinstance(value, dict) else ((None, value),)
        for key, item in items:
            if isinstance(item, SecretStr):
                secret_path = inner if key is None else (*inner, key)
                yield item.get_secret_value(), config.tree.references.get(secret_path, HIDDEN)
