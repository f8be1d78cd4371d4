"""Builds the sources of a file, none of them connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.config.connectors import is_built
from icestream.contracts import registry
from icestream.errors import ConfigError, PlanError, UnavailableError
from icestream.plan.paths import resolve
from icestream.plan.unbuilt import UnbuiltSource

if TYPE_CHECKING:
    from icestream.config import Config, Part
    from icestream.contracts.source import Source


def build_source(config: Config, part: Part) -> Source[Any]:
    """Return a source, or a stand-in for one that this version does not have.

    Raises:
        ConfigError: its options do not fit together.
    """
    options = resolve(part.options, config.folder)
    built: Source[Any] = UnbuiltSource(part.connector, options)
    if is_built("sources", part.connector):
        try:
            built = registry.find("sources", part.connector)(options)
        except UnavailableError:
            pass  # listed among what is planned, by its own place in the file
        except PlanError as exc:
            where = config.tree.where(part.path, key=True)
            raise ConfigError([PlanError(exc.what, where=where, todo=exc.todo)]) from exc
    return built
