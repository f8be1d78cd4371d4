"""Python packages that a component needs to connect, and how to install those that are missing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from icestream.errors import DependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping


def missing_packages(required: Mapping[str, str]) -> dict[str, str]:
    """Return those of some packages that are not installed; importing none of them.

    Args:
        required: what to install for each, such as `icestream[kafka]`, by the name to import.
    """
    return {name: install for name, install in required.items() if find_spec(name) is None}


def missing_package_error(
    component: str, package: str, install: str, where: str
) -> DependencyError:
    """Return the error for a component that lacks a package.

    Args:
        component: the component, such as `source 'kafka'`; empty if `where` names it.
        package: the package's name, as it is imported.
        install: what to install.
        where: the place in the file, or the class.
    """
    return DependencyError(
        f"{component} needs the package {package}, which is not installed".lstrip(),
        where=where,
        todo=f"pip install '{install}'",
    )


def require_packages(required: Mapping[str, str], where: str) -> None:
    """Refuse a component that lacks a package.

    Raises:
        DependencyError: it does.
    """
    for package, install in missing_packages(required).items():
        raise missing_package_error("", package, install, where)
