"""Chooses the catalog of each sink, and its name in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.config.connectors import is_built
from icestream.contracts import registry
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan.paths import absolute, resolve
from icestream.plan.unbuilt import UnbuiltCatalog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.config import Config, Part
    from icestream.contracts.catalog import Catalog

DEFAULT = "lake"


class CatalogChooser:
    """Gives every part its catalog; equal blocks share one.

    In SQL a catalog goes by its name under `catalogs`. The embedded one is called `lake`, and so
    is the first block that stands inside a sink if nothing else has that name; further ones go
    by the name of their sink.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalogs: dict[str, Catalog[Any]] = {}
        self._inline: list[tuple[Part, str]] = []
        self._embeds = any(
            part.catalog is None and hasattr(part.options, "catalog")
            for part in (*config.sinks.values(), *config.sources.values())
        )

    def add_named(self, names: Iterable[str]) -> None:
        """Take up catalogs of the file by name."""
        for name in names:
            self._named(name)

    def catalog_of(self, part: Part) -> Catalog[Any] | None:
        """Return the catalog of a sink or source; None for one that uses no catalog."""
        if not hasattr(part.options, "catalog"):
            return None
        if part.catalog is None:
            return self._embedded()
        if isinstance(part.catalog, str):
            return self._named(part.catalog)
        return self._inlined(part.catalog, part.name)

    def _named(self, name: str) -> Catalog[Any]:
        if name not in self.catalogs:
            self.catalogs[name] = _build(name, self.config.catalogs[name], self.config)
        return self.catalogs[name]

    def _inlined(self, block: Part, sink: str) -> Catalog[Any]:
        for known, name in self._inline:
            if known.connector == block.connector and known.options == block.options:
                return self.catalogs[name]
        taken = {*self.config.catalogs, *(name for _, name in self._inline)}
        if self._embeds:
            taken.add(DEFAULT)
        name = DEFAULT if DEFAULT not in taken else sink
        while name in taken:
            name = f"{name}_catalog"
        self._inline.append((block, name))
        self.catalogs[name] = _build(name, block, self.config)
        return self.catalogs[name]

    def _embedded(self) -> Catalog[Any]:
        name = DEFAULT if DEFAULT not in self.config.catalogs else f"{DEFAULT}_embedded"
        if name not in self.catalogs:
            from icestream.catalogs import jdbc

            state = absolute(self.config.block.state.path, self.config.folder)
            self.catalogs[name] = jdbc.embedded(_beside(state, self.config.folder), name)
        return self.catalogs[name]


def _beside(state: str, folder: Path) -> Path:
    """Return the folder of the embedded catalog; a remote state has the file's folder beside it."""
    return (folder if "://" in state else Path(state).parent) / DEFAULT


def _build(name: str, part: Part, config: Config) -> Catalog[Any]:
    options = resolve(part.options, config.folder)
    if not is_built("catalogs", part.connector):
        return UnbuiltCatalog(part.connector, name, options)
    kind = registry.find("catalogs", part.connector)
    try:
        built: Catalog[Any] = kind(name, options)
    except UnavailableError:
        return UnbuiltCatalog(part.connector, name, options)
    except PlanError as exc:
        where = config.tree.where(part.path, key=True)
        raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc
    return built
