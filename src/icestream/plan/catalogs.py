"""Chooses the catalog of each sink, and its name in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.config.connectors import is_built
from icestream.contracts import registry
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan.paths import absolute, resolve
from icestream.plan.unbuilt import UnbuiltCatalog
from icestream.storage.blocks import KINDS, StorageBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.config import Config, Part
    from icestream.config.yaml_tree import Path as Place
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
        self._files: dict[str, StorageBlocks | None] = {}
        self._paths: dict[str, Place] = {}
        self._inline: list[tuple[Part, str]] = []
        self._embeds = any(
            part.catalog is None and hasattr(part.options, "catalog")
            for part in (*config.sinks.values(), *config.sources.values())
        )

    def add_named(self, names: Iterable[str]) -> None:
        """Take up catalogs of the file by name."""
        for name in names:
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
                    raise self._as_one(
                        name,
                        f"the catalogs {owner!r} and {name!r} need different values of {variable}, "
                        "and a process has one",
                    )
        for name, catalog in self.catalogs.items():
            for variable in catalog.chain_variables():
                if variable in owners:
                    raise self._as_one(
                        name,
                        f"the catalog {name!r} has no credentials of its own, and would go by "
                        f"those of {owners[variable][0]!r}: a process has one {variable}",
                    )
        return {variable: value for variable, (_, value) in owners.items()}

    def _as_one(self, name: str, what: str) -> ConfigError:
        where = self.config.tree.where(self._paths[name], key=True)
        todo = "Run their pipelines by two files, or give one of them keys of its own."
        return ConfigError([PlanError(what, where=where, todo=todo)])

    def catalog_of(self, part: Part) -> Catalog[Any] | None:
        """Return the catalog of a sink or source; None for one that uses no catalog."""
        if not hasattr(part.options, "catalog"):
            return None
        files = _files(part, self.config.folder)
        if part.catalog is None:
            return self._embedded(part, files)
        if isinstance(part.catalog, str):
            return self._named(part.catalog, part, files)
        return self._inlined(part.catalog, part, files)

    def _named(
        self, name: str, user: Part | None = None, files: StorageBlocks | None = None
    ) -> Catalog[Any]:
        if name not in self.catalogs:
            self.catalogs[name] = _build(name, self.config.catalogs[name], self.config, files)
            self._files[name] = files
            self._paths[name] = self.config.catalogs[name].path
        elif user is not None:
            self._refuse_other_files(name, user, files)
        return self.catalogs[name]

    def _refuse_other_files(self, name: str, user: Part, files: StorageBlocks | None) -> None:
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

    def _inlined(self, block: Part, user: Part, files: StorageBlocks | None) -> Catalog[Any]:
        sink = user.name
        for known, name in self._inline:
            same = known.connector == block.connector and known.options == block.options
            if same and files == self._files[name]:
                return self.catalogs[name]
        taken = {*self.config.catalogs, *(name for _, name in self._inline)}
        if self._embeds:
            taken.add(DEFAULT)
        name = DEFAULT if DEFAULT not in taken else sink
        while name in taken:
            name = f"{name}_catalog"
        self._inline.append((block, name))
        self.catalogs[name] = _build(name, block, self.config, files)
        self._files[name] = files
        self._paths[name] = block.path
        return self.catalogs[name]

    def _embedded(self, user: Part, files: StorageBlocks | None) -> Catalog[Any]:
        name = DEFAULT if DEFAULT not in self.config.catalogs else f"{DEFAULT}_embedded"
        if name not in self.catalogs:
            from icestream.catalogs import jdbc

            state = absolute(self.config.block.state.path, self.config.folder)
            folder = _beside(state, self.config.folder)
            storage = files.given_storage() if files else None
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


def _beside(state: str, folder: Path) -> Path:
    """Return the folder of the embedded catalog; a remote state has the file's folder beside it."""
    return (folder if "://" in state else Path(state).parent) / DEFAULT


def _files(part: Part, folder: Path) -> StorageBlocks | None:
    """Return the storage block of a sink; None if it has none."""
    if not isinstance(part.options, StorageBlocks):
        return None
    options = resolve(part.options, folder)
    given = {kind: getattr(options, kind) for kind in KINDS if getattr(options, kind) is not None}
    return StorageBlocks.model_validate(given) if given else None


def _build(
    name: str, part: Part, config: Config, files: StorageBlocks | None = None
) -> Catalog[Any]:
    """Build a catalog; the storage block of the sink that uses it wins over its own."""
    options = resolve(part.options, config.folder)
    storage = files.given_storage() if files else None
    if not is_built("catalogs", part.connector):
        return UnbuiltCatalog(part.connector, name, options)
    kind = registry.find("catalogs", part.connector)
    try:
        built: Catalog[Any] = kind(name, options, storage)
    except UnavailableError:
        return UnbuiltCatalog(part.connector, name, options)
    except PlanError as exc:
        where = config.tree.where(part.path, key=True)
        raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc
    return built
