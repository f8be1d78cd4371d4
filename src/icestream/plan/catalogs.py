"""Gives every component of a file its catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.config.connectors import is_available
from icestream.contracts import registry
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan.planned import UnavailableCatalog
from icestream.plan.sources import absolute_path, resolve_paths
from icestream.storage.blocks import KINDS, StorageBlocks

if TYPE_CHECKING:
    from icestream.config import Component, Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.catalog import Catalog

DEFAULT_CATALOG = "lake"


class CatalogResolver:
    """Gives every component its catalog; equal blocks share one.

    In SQL, a catalog has its name under `catalogs`. The embedded catalog is named `lake`, and so
    is the first inline block of a sink if the name is free; further inline blocks have the name
    of their sink.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalogs: dict[str, Catalog[Any]] = {}
        self._files: dict[str, StorageBlocks | None] = {}
        self._paths: dict[str, KeyPath] = {}
        self._inline: list[tuple[Component, str]] = []
        self._embeds = any(
            component.catalog is None and hasattr(component.options, "catalog")
            for component in (*config.sinks.values(), *config.sources.values())
        )

    def add_named(self, name: str) -> None:
        """Take up a catalog of the file by name."""
        self._named(name)

    def environment(self) -> dict[str, str]:
        """Return the variables that the catalogs' libraries read; a process has one value of each.

        Raises:
            ConfigError: two catalogs would be asked as the same one, and are not to be.
        """
        owners: dict[str, tuple[str, str]] = {}
        for name, catalog in self.catalogs.items():
            for variable, value in catalog.environment().items():
                owner, known = owners.setdefault(variable, (name, value))
                if known != value:
                    raise self._conflict(
                        name,
                        f"the catalogs {owner!r} and {name!r} need different values of {variable}, "
                        "and a process has one",
                    )
        for name, catalog in self.catalogs.items():
            for variable in catalog.chain_variables():
                if variable in owners:
                    raise self._conflict(
                        name,
                        f"the catalog {name!r} has no credentials of its own, and would go by "
                        f"those of {owners[variable][0]!r}: a process has one {variable}",
                    )
        return {variable: value for variable, (_, value) in owners.items()}

    def _conflict(self, name: str, what: str) -> ConfigError:
        where = self.config.tree.where(self._paths[name], key=True)
        todo = "Run their pipelines by two files, or give one of them keys of its own."
        return ConfigError([PlanError(what, where=where, todo=todo)])

    def catalog_of(self, component: Component) -> Catalog[Any] | None:
        """Return the catalog of a sink or source; None for one that uses no catalog."""
        if not hasattr(component.options, "catalog"):
            return None
        files = _storage_block(component, self.config.folder)
        if component.catalog is None:
            return self._embedded(component, files)
        if isinstance(component.catalog, str):
            return self._named(component.catalog, component, files)
        return self._inlined(component.catalog, component, files)

    def _named(
        self, name: str, user: Component | None = None, files: StorageBlocks | None = None
    ) -> Catalog[Any]:
        if name not in self.catalogs:
            self.catalogs[name] = _build_catalog(
                name, self.config.catalogs[name], self.config, files
            )
            self._files[name] = files
            self._paths[name] = self.config.catalogs[name].path
        elif user is not None:
            self._refuse_other_files(name, user, files)
        return self.catalogs[name]

    def _refuse_other_files(self, name: str, user: Component, files: StorageBlocks | None) -> None:
        """Refuse a second sink that says of the same catalog that its files lie elsewhere."""
        if files == self._files[name]:
            return
        kinds = [kind for kind in KINDS if files is not None and getattr(files, kind) is not None]
        path = (*user.path, *kinds)
        raise ConfigError(
            [
                PlanError(
                    f"sinks of the catalog {name!r} differ in where its files lie",
                    where=self.config.tree.where(path, key=True),
                    todo="Put the storage block into the catalog's own block, and take it out of "
                    "the sinks; or give the sinks catalogs of their own.",
                )
            ]
        )

    def _inlined(
        self, block: Component, user: Component, files: StorageBlocks | None
    ) -> Catalog[Any]:
        sink = user.name
        for known, name in self._inline:
            same = known.connector == block.connector and known.options == block.options
            if same and files == self._files[name]:
                return self.catalogs[name]
        taken = {*self.config.catalogs, *(name for _, name in self._inline)}
        if self._embeds:
            taken.add(DEFAULT_CATALOG)
        name = DEFAULT_CATALOG if DEFAULT_CATALOG not in taken else sink
        while name in taken:
            name = f"{name}_catalog"
        self.catalogs[name] = _build_catalog(name, block, self.config, files)
        self._inline.append((block, name))
        self._files[name] = files
        self._paths[name] = block.path
        return self.catalogs[name]

    def _embedded(self, user: Component, files: StorageBlocks | None) -> Catalog[Any]:
        name = (
            DEFAULT_CATALOG
            if DEFAULT_CATALOG not in self.config.catalogs
            else f"{DEFAULT_CATALOG}_embedded"
        )
        if name not in self.catalogs:
            from icestream.catalogs import jdbc

            state = absolute_path(self.config.block.state.path, self.config.folder)
            folder = _embedded_folder(state, self.config.folder)
            storage = files.configured_storage() if files else None
            try:
                self.catalogs[name] = jdbc.embedded(folder, name, storage)
            except PlanError as exc:
                where = self.config.tree.where(user.path, key=True)
                raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc
            self._files[name] = files
            self._paths[name] = user.path
        else:
            self._refuse_other_files(name, user, files)
        return self.catalogs[name]


def _embedded_folder(state: str, folder: Path) -> Path:
    """Return the folder of the embedded catalog: next to the state, or to the file if remote."""
    return (folder if "://" in state else Path(state).parent) / DEFAULT_CATALOG


def _storage_block(component: Component, folder: Path) -> StorageBlocks | None:
    """Return the storage block of a sink; None if it has none."""
    if not isinstance(component.options, StorageBlocks):
        return None
    options = resolve_paths(component.options, folder)
    given = {kind: getattr(options, kind) for kind in KINDS if getattr(options, kind) is not None}
    return StorageBlocks.model_validate(given) if given else None


def _build_catalog(
    name: str, component: Component, config: Config, files: StorageBlocks | None = None
) -> Catalog[Any]:
    """Build a catalog; the storage block of the sink that uses it wins over its own."""
    options = resolve_paths(component.options, config.folder)
    storage = files.configured_storage() if files else None
    if not is_available("catalogs", component.connector):
        return UnavailableCatalog(component.connector, name, options)
    kind = registry.find("catalogs", component.connector)
    try:
        built: Catalog[Any] = kind(name, options, storage)
    except UnavailableError:
        return UnavailableCatalog(component.connector, name, options)
    except PlanError as exc:
        where = config.tree.where(component.path, key=True)
        raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc
    return built
