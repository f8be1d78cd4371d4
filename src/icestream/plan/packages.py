"""Packages that the components of a plan lack: shown by `plan`, refused by `run` and `check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icestream.contracts.packages import missing_package_error, missing_packages
from icestream.errors import DependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.config import Component, Config
    from icestream.config.yaml import KeyPath
    from icestream.plan.plan import Plan


@dataclass(frozen=True)
class MissingPackage:
    """A package that is not installed, and the component that needs it."""

    where: str
    component: str
    package: str
    install: str

    def to_json(self) -> dict[str, str]:
        """Return it as a JSON document."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        return f"{self.where}: {self.component} needs {self.package}: pip install '{self.install}'"


def find_missing_packages(plan: Plan, config: Config) -> list[MissingPackage]:
    """Return the packages that a run of a plan needs and that are not installed.

    Of those that one installation brings, the first is listed, for the first component of its kind.
    """
    found: dict[tuple[str, str], MissingPackage] = {}
    for path, component, required in _requirements(plan, config):
        for package, install in missing_packages(required).items():
            missing = MissingPackage(config.tree.where(path), component, package, install)
            found.setdefault((component, install), missing)
    return list(found.values())


def _requirements(plan: Plan, config: Config) -> Iterator[tuple[KeyPath, str, dict[str, str]]]:
    """Yield the key, the name and the packages of each component."""
    for name, source in plan.sources.items():
        part = config.sources[name]
        path = (*part.path[:-1], "connector")
        yield path, f"source {part.connector!r}", source.required_packages()
    for name, sink in plan.sinks.items():
        part = config.sinks[name]
        path, component = _catalog_of(part, config)
        yield path, component, sink.catalog.required_packages()


def _catalog_of(sink: Component, config: Config) -> tuple[KeyPath, str]:
    block = sink.catalog
    if isinstance(block, str):
        block = config.catalogs[block]
    if block is None:
        return (*sink.path[:-1], "connector"), f"sink {sink.connector!r}"
    return (*block.path, "type"), f"catalog {block.connector!r}"


def refuse_missing_packages(plan: Plan, config: Config) -> None:
    """Refuse a plan that needs packages which are not installed.

    Raises:
        DependencyError: it does; each of them is named.
    """
    errors = [
        missing_package_error(each.component, each.package, each.install, each.where)
        for each in find_missing_packages(plan, config)
    ]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise DependencyError("\n".join(map(str, errors)))
