"""Spark's settings and jars, as the file's parts ask for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from icestream.contracts.jars import iceberg_runtime_for
from icestream.contracts.options import yaml_key
from icestream.contracts.secrets import HIDDEN, is_secret
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icestream.config import Config
    from icestream.config.yaml_tree import Path
    from icestream.contracts.catalog import Catalog

CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
SHORTEST_PART = 6
# Settings of the resolver inside Spark, which we don't use: it checks no checksums.
UNSUPPORTED = {
    "spark.jars.repositories": "Describe the repositories in an Ivy settings file, and name that "
    "file in `spark.jars.ivySettings`.",
    "spark.jars.excludes": "Name the jars that you need in `spark.jars`, in place of packages.",
}
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@dataclass
class SparkSettings:
    """Settings for Spark, and how those of them that are secret are shown."""

    conf: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)


def settings_for(config: Config, catalogs: Mapping[str, Catalog[Any]]) -> SparkSettings:
    """Return the user's settings joined with those of every catalog.

    Raises:
        PlanError: a setting is not supported.
    """
    user = config.block.spark.conf
    refuse_unsupported(user, lambda key: config.tree.where(("spark", "conf", key)))
    settings = SparkSettings({**user, "spark.sql.extensions": _extensions(user)})
    references = dict(_secrets(config))
    for name, catalog in catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        settings.conf[prefix] = CATALOG_CLASS
        # Each session caches tables for itself: a reader would not see what another committed.
        own = {"cache-enabled": "false", **catalog.spark_settings()}
        settings.conf |= {f"{prefix}.{key}": value for key, value in own.items()}
    for key, value in settings.conf.items():
        reference = config.tree.references.get(("spark", "conf", key))
        secret = next((text for text in references if _holds(value, text)), None)
        if reference is not None:
            settings.shown[key] = reference
        elif secret is not None:
            settings.shown[key] = references[secret]
        elif is_secret(key, value):
            settings.shown[key] = HIDDEN
    return settings


def refuse_unsupported(conf: Mapping[str, str], where: Callable[[str], str]) -> None:
    """Refuse settings of Spark that would have no effect.

    Raises:
        PlanError: one of them is given.
    """
    for key, instead in UNSUPPORTED.items():
        if key in conf:
            raise PlanError(f"{key!r} is not supported", where=where(key), todo=instead)


def _holds(value: str, secret: str) -> bool:
    # A short secret is found inside many an innocent value; there only the whole of it counts.
    return value == secret or (len(secret) >= SHORTEST_PART and secret in value)


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
    for parts in (config.catalogs, config.sinks, config.sources):
        for part in parts.values():
            yield from _secrets_in(config, part.options, part.path)
            if part.catalog is not None and not isinstance(part.catalog, str):
                yield from _secrets_in(config, part.catalog.options, part.catalog.path)


def _secrets_in(config: Config, options: BaseModel, path: Path) -> Iterator[tuple[str, str]]:
    for name, field_info in type(options).model_fields.items():
        value, inner = getattr(options, name), (*path, yaml_key(name, field_info))
        if isinstance(value, BaseModel):
            yield from _secrets_in(config, value, inner)
        items = value.items() if isinstance(value, dict) else ((None, value),)
        for key, item in items:
            if isinstance(item, SecretStr):
                place = inner if key is None else (*inner, key)
                yield item.get_secret_value(), config.tree.references.get(place, HIDDEN)
