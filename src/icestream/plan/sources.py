"""Builds the sources of a file, none of them connected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, SecretStr

from icestream.config.connectors import is_available
from icestream.contracts import registry
from icestream.errors import ConfigError, IcestreamError, PlanError, UnavailableError
from icestream.plan.planned import UnavailableSource

if TYPE_CHECKING:
    from icestream.config import Component, Config
    from icestream.contracts.source import Source


ModelT = TypeVar("ModelT", bound=BaseModel)
SQLITE = re.compile(r"^(?P<head>jdbc:sqlite:|sqlite(\+\w+)?:(///)?)(?P<file>[^?]*)(?P<tail>\?.*)?$")
FILE = re.compile(r"^(?P<head>file:(//)?)(?P<file>[^/].*)$")
SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:")
FILE_NAME = re.compile(r"^\S+\.[A-Za-z]+$")


def absolute_path(text: str, folder: Path) -> str:
    """Return a path or address with its local component made absolute; others as they are."""
    sqlite = SQLITE.match(text)
    if sqlite:
        file, tail = sqlite["file"], sqlite["tail"] or ""
        if file in ("", ":memory:") or file.startswith("file:"):
            return text
        return f"{sqlite['head']}{_join_path(file, folder)}{tail}"
    local = FILE.match(text)
    if local:
        return f"file://{_join_path(local['file'], folder)}"
    return text if SCHEME.match(text) else _join_path(text, folder)


def _join_path(text: str, folder: Path) -> str:
    try:
        return str(folder / Path(text).expanduser())
    except RuntimeError:
        return str(folder / text)  # an unknown user after `~`: such a folder does not exist


def resolve_paths(options: ModelT, folder: Path) -> ModelT:
    """Return options whose paths are absolute.

    A field is a path if its `json_schema_extra` says so: `{"path": True}`, or
    `{"path": "if_file"}` for one that holds either the name of a file or something else.
    """
    changed: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        extra = field.json_schema_extra
        mark = extra.get("path") if isinstance(extra, dict) else None
        if isinstance(value, BaseModel):
            changed[name] = resolve_paths(value, folder)
        elif isinstance(value, str) and (
            mark is True or (mark == "if_file" and FILE_NAME.match(value))
        ):
            changed[name] = absolute_path(value, folder)
        elif isinstance(value, SecretStr) and mark == "if_file":
            secret = value.get_secret_value()
            if FILE_NAME.match(secret):
                changed[name] = SecretStr(absolute_path(secret, folder))
    return options.model_copy(update=changed) if changed else options


def build_source(config: Config, component: Component) -> Source[Any]:
    """Return a source, or a stand-in for one that this version does not have.

    Raises:
        ConfigError: its options do not fit together.
    """
    options = resolve_paths(component.options, config.folder)
    built: Source[Any] = UnavailableSource(component.connector, options)
    if is_available("sources", component.connector):
        try:
            built = registry.find("sources", component.connector)(options)
            built.declared_schema()  # some sources parse it only when they need it
        except UnavailableError:
            pass  # listed among the planned features, with its own line
        except PlanError as exc:
            raise ConfigError([_at_option(config, component, exc)]) from exc
        except ConfigError as exc:
            problems = [_at_option(config, component, problem) for problem in exc.problems]
            raise ConfigError([*problems]) from exc
    return built


def _at_option(config: Config, component: Component, problem: IcestreamError) -> PlanError:
    """Return a problem with its place in the file: that of the option which it names, if any."""
    option = problem.where
    is_given = bool(option) and (*component.path, option) in config.tree.keys
    path = (*component.path, option) if is_given else component.path
    what = problem.what if is_given or not option else f"{option}: {problem.what}"
    return PlanError(what, where=config.tree.where(path, key=not is_given), todo=problem.todo)
