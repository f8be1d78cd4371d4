"""Reads a configuration file and reports everything that is wrong with it at once."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from icestream.config import connectors, yaml
from icestream.config.interpolate import interpolate
from icestream.config.messages import (
    ValidationFault,
    describe_value,
    is_misspelt,
    misplaced_section,
    misplaced_section_problem,
    model_at,
    problem_for,
    split_value_problem,
    unknown_key_problem,
    validation_faults,
)
from icestream.config.model import Component, Config, FileBlock
from icestream.contracts.option_errors import value_at
from icestream.contracts.options import Options, yaml_key
from icestream.contracts.registry import did_you_mean
from icestream.errors import ConfigError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from icestream.config.yaml import KeyPath, Tree


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_components(tree: Tree, path: FilePath, folder: FilePath) -> Config:
    """Return the configuration, without whatever has mistakes; its problems list those.

    Raises:
        ConfigError: the file is not a mapping.
    """
    if tree.data is None:
        tree.data = {}
    if not isinstance(tree.data, dict):
        problem = IcestreamError(
            f"expected a mapping of keys, found {describe_value((), tree)}",
            where=tree.where(()),
            todo="Start with a top-level key such as `sources:`.",
        )
        raise ConfigError([*tree.problems, problem])
    _normalise(tree)
    reader = _ConfigReader(tree)
    block = reader.file_block()
    catalogs = {name: reader.catalog(name, ("catalogs", name)) for name in _names(tree, "catalogs")}
    sources = {name: reader.connector("sources", name) for name in _names(tree, "sources")}
    sinks = {name: reader.connector("sinks", name) for name in _names(tree, "sinks")}
    pipelines = [("pipelines", name) for name in _names(tree, "pipelines")]
    transforms = {path[1]: reader.transforms((*path, "transforms")) for path in pipelines}
    table_transforms = {
        path[1]: {
            table: reader.transforms((*path, "tables", table, "transforms"))
            for table in _keys(value_at(tree.data, (*path, "tables")))
        }
        for path in pipelines
    }
    reader.check_references()
    good_catalogs = _usable(catalogs, catalogs)
    return Config(
        path=path,
        folder=folder,
        block=block,
        tree=tree,
        catalogs=good_catalogs,
        sources={
            name: part
            for name, part in _usable(sources, block.sources, good_catalogs).items()
            if part.is_whole and part.has_catalog
        },
        sinks=_usable(sinks, block.sinks, good_catalogs),
        transforms={name: transforms[name] for name in block.pipelines},
        table_transforms={name: table_transforms[name] for name in block.pipelines},
        problems=in_file_order(tree.problems),
    )


def _normalise(tree: Tree) -> None:
    """Drop empty sections, and accept a version without quotes."""
    for key in [key for key, value in tree.data.items() if value is None]:
        if key in FileBlock.model_fields:
            del tree.data[key]
    version = tree.data.pop("version", "1.0")
    if str(version) not in ("1", "1.0"):
        tree.problems.append(
            IcestreamError(
                f"{str(version)!r} is not a version of this file format",
                where=tree.where(("version",)),
                todo='Write `version: "1.0"`, or leave it out.',
            )
        )
    if not tree.problems and all(
        key in FileBlock.model_fields and value == {} for key, value in tree.data.items()
    ):
        tree.problems.append(
            IcestreamError(
                "the file has no sources, sinks or pipelines",
                where=tree.name,
                todo="Add them, or let `icestream init --force` write a file to start from.",
            )
        )


def _names(tree: Tree, section: str) -> list[str]:
    return _keys(tree.data.get(section))


def _keys(found: Any) -> list[str]:
    return list(found) if isinstance(found, dict) else []


def _usable(
    parts: dict[str, Component | None],
    names: Collection[str],
    catalogs: Collection[str] | None = None,
) -> dict[str, Component]:
    """Return the components that could be read, of those whose block is well-formed.

    Args:
        parts: the components.
        names: those whose block is well-formed.
        catalogs: the catalogs that could be read; a component with another one has none.
    """
    usable = {name: part for name, part in parts.items() if part is not None and name in names}
    for name, part in usable.items():
        if catalogs is not None and isinstance(part.catalog, str) and part.catalog not in catalogs:
            usable[name] = replace(part, has_catalog=False)
    return usable


class _ConfigReader:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def file_block(self) -> FileBlock:
        """Read the file as a model; report what is wrong, and leave it out."""
        data = self.tree.data
        try:
            return FileBlock.model_validate(data)
        except ValidationError as exc:
            faults = validation_faults(exc, self.tree, ())
            self._report(faults)
        wrong = {fault.path[:2] for fault in faults}
        pruned = {
            name: {key: value for key, value in section.items() if (name, key) not in wrong}
            if isinstance(section, dict)
            else section
            for name, section in data.items()
            if (name,) not in wrong
        }
        return FileBlock.model_validate(pruned)

    def model(self, kind: type[ModelT], data: Any, base: KeyPath) -> ModelT | None:
        """Check one block; report what is wrong and return None, or return the model."""
        model, is_whole = self.partial_model(kind, data, base)
        return model if is_whole else None

    def partial_model(
        self, kind: type[ModelT], data: Any, base: KeyPath
    ) -> tuple[ModelT | None, bool]:
        """Check one block; report what is wrong.

        Returns:
            The model, and whether it has everything that the block has. If not, options with
            mistakes are missing; None if there is no model without them.
        """
        self._join_expressions(kind, data, base)
        try:
            model = kind.model_validate(data)
        except ValidationError as exc:
            faults = validation_faults(exc, self.tree, base)
            self._report(faults)
            return _without_faults(kind, data, faults, base), False
        except IcestreamError as exc:
            self.tree.problems.append(exc.at(self.tree.where(base)))
            return None, False
        return model, self._check_booleans(model, base)

    def _join_expressions(self, kind: type[BaseModel], data: Any, base: KeyPath) -> None:
        """Join what YAML has split at commas, in every option that is a list of expressions."""
        for name, field in kind.model_fields.items():
            extra = field.json_schema_extra
            if not isinstance(extra, dict) or not extra.get("expressions"):
                continue
            key = yaml_key(name, field)
            if isinstance(data, dict) and isinstance(data.get(key), list):
                self.tree.join_expressions(data[key], (*base, key))
            elif isinstance(data, list) and getattr(kind, "shorthand", None) == name:
                self.tree.join_expressions(data, base)

    def _report(self, faults: list[ValidationFault]) -> None:
        for section in dict.fromkeys(misplaced_section(fault.path, self.tree) for fault in faults):
            if section is not None:
                self.tree.problems.append(misplaced_section_problem(section, self.tree))
        faults = [
            fault
            for fault in faults
            if misplaced_section(fault.path, self.tree) is None
            and fault.path not in self.tree.unresolved
            and not is_misspelt(fault, faults)
        ]
        ordered = sorted(faults, key=lambda fault: [str(part) for part in fault.path])
        for path, group in groupby(ordered, key=lambda fault: fault.path):
            same = list(group)
            if same[0].kind == "extra_forbidden":
                problem = unknown_key_problem(path, self.tree)
                # The parts of a split value are all keys that are not known, for one reason.
                if str(problem) not in map(str, self.tree.problems):
                    self.tree.problems.append(problem)
                continue
            model = model_at(path[:-1], self.tree)
            fields = model.model_fields if model else {}
            descriptions = {
                yaml_key(name, field): field.description or "" for name, field in fields.items()
            }
            self.tree.problems.append(problem_for(same, self.tree, descriptions))

    def _check_booleans(self, model: BaseModel, base: KeyPath) -> bool:
        """Refuse `batch_size: true`: like Python, pydantic accepts a boolean as a number."""
        good = True
        for name, field in type(model).model_fields.items():
            path = (*base, yaml_key(name, field))
            value, given = getattr(model, name), value_at(self.tree.data, path)
            if isinstance(value, BaseModel):
                good &= self._check_booleans(value, path)
            elif isinstance(given, bool | int) and isinstance(value, bool | int | float):
                if isinstance(given, bool) == isinstance(value, bool):
                    continue
                good = False
                expected = "true or false" if isinstance(value, bool) else "a number"
                found = describe_value(path, self.tree)
                self._problem(path, f"expected {expected}, found {found}")
        return good

    def connector(self, section: str, name: str) -> Component | None:
        """Read a source or a sink."""
        path = (section, name)
        block = value_at(self.tree.data, path)
        connector = block.get("connector") if isinstance(block, dict) else None
        if not isinstance(connector, str) or (*path, "connector") in self.tree.unresolved:
            return None
        kind = self._options_type(section, connector, (*path, "connector"))
        data = block.get("config", {})
        if kind is None or not isinstance(data, dict):
            return None
        base = (*path, "config")
        if section == "sources" and block.get("streams"):
            if "streams" not in kind.model_fields:
                self._problem(
                    (*path, "streams"),
                    f"the connector {connector!r} does not support `streams`",
                    "Remove `streams`; `config` defines what is read.",
                )
                return None
            data = {**data, "streams": block["streams"]}
        catalog: str | Component | None = None
        has_catalog = True
        if "catalog" in kind.model_fields:
            catalog = data.get("catalog")
            if isinstance(catalog, dict):
                catalog = self.catalog(name, (*base, "catalog"))
                has_catalog = catalog is not None
                data = {key: value for key, value in data.items() if key != "catalog"}
            elif not isinstance(catalog, str | None):
                catalog, has_catalog = None, False
        options, is_whole = self.partial_model(kind, data, base)
        if options is None:
            return None
        is_whole = is_whole and not self._has_unresolved(base)
        return Component(name, connector, options, base, catalog, is_whole, has_catalog)

    def _has_unresolved(self, base: KeyPath) -> bool:
        """Tell whether a reference such as `${NAME}` in a block has no value."""
        return any(path[: len(base)] == base for path in self.tree.unresolved)

    def catalog(self, name: str, path: KeyPath) -> Component | None:
        """Read a catalog block."""
        data = value_at(self.tree.data, path)
        if not isinstance(data, dict):
            return None
        connector = data.get("type")
        if (*path, "type") in self.tree.unresolved:
            return None
        if not isinstance(connector, str):
            types = ", ".join(connectors.connector_names("catalogs"))
            found = describe_value((*path, "type"), self.tree)
            self._problem(
                (*path, "type"),
                "'type' is missing" if connector is None else f"expected a text, found {found}",
                f"Set e.g. `type: jdbc`. Available: {types}.",
            )
            return None
        kind = self._options_type("catalogs", connector, (*path, "type"))
        options = self.model(kind, data, path) if kind else None
        return None if options is None else Component(name, connector, options, path)

    def transforms(self, path: KeyPath) -> tuple[Component, ...]:
        """Read the transforms of a pipeline, or of one of its tables; some may not be whole."""
        steps = value_at(self.tree.data, path)
        return tuple(
            self._transform((*path, number), step)
            for number, step in enumerate(steps if isinstance(steps, list) else [])
            if isinstance(step, dict)
        )

    def _transform(self, path: KeyPath, step: dict[str, Any]) -> Component:
        split = split_value_problem(path, self.tree)
        if split is not None or len(step) != 1:
            self.tree.problems.append(
                split
                or IcestreamError(
                    f"a transform has one key, its kind; found {len(step)}",
                    where=self.tree.where(path),
                    todo="Start each transform with `-`.",
                )
            )
            return Component("", "", Options(), path, is_whole=False)
        ((name, value),) = step.items()
        base = (*path, name)
        kind = self._options_type("transforms", name, base, key=True)
        options = self.model(kind, value, base) if kind else None
        is_whole = options is not None and not self._has_unresolved(base)
        return Component(name, name, options or Options(), base, is_whole=is_whole)

    def check_references(self) -> None:
        """Report references to sources, sinks and catalogs that do not exist."""
        for pipeline in _names(self.tree, "pipelines"):
            for role in ("source", "sink"):
                self._check_reference(("pipelines", pipeline, role), f"{role}s", role)
        for section in ("sources", "sinks"):
            for name in _names(self.tree, section):
                self._check_reference((section, name, "config", "catalog"), "catalogs", "catalog")

    def _check_reference(self, path: KeyPath, section: str, role: str) -> None:
        name = value_at(self.tree.data, path)
        names = _names(self.tree, section)
        if not isinstance(name, str) or name in names or path in self.tree.unresolved:
            return
        rest = f"Named under `{section}`: {', '.join(names)}." if names else ""
        add = "" if names else f"Add it under `{section}`."
        self._problem(
            path,
            f"no {role} is named {name!r}",
            f"{did_you_mean(name, names)}{rest}{add}",
        )

    def _options_type(
        self, role: str, name: str, path: KeyPath, *, key: bool = False
    ) -> type[Options] | None:
        try:
            return connectors.options_type(role, name)
        except IcestreamError as exc:
            self.tree.problems.append(exc.at(self.tree.where(path, key=key)))
            return None

    def _problem(self, path: KeyPath, what: str, todo: str = "") -> None:
        self.tree.problems.append(IcestreamError(what, where=self.tree.where(path), todo=todo))


def _without_faults(
    kind: type[ModelT], data: Any, faults: list[ValidationFault], base: KeyPath
) -> ModelT | None:
    """Return the model of a block without the keys that have faults; None if it needs them."""
    if not isinstance(data, dict):
        return None
    wrong = {fault.path[len(base)] for fault in faults if len(fault.path) > len(base)}
    try:
        return kind.model_validate({key: data[key] for key in data if key not in wrong})
    except (ValidationError, IcestreamError):
        return None


LINE_AND_COLUMN = re.compile(r":(\d+):(\d+)( |$)")


def load(path: str | FilePath, *, environment: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: the file.
        environment: the variables for `${NAME}`; those of the process if absent.

    Raises:
        ConfigError: the file cannot be read or is wrong; it holds every problem found.
    """
    config = read(path, environment=environment)
    if config.problems:
        raise ConfigError(config.problems)
    return config


def read(path: str | FilePath, *, environment: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file that may have problems, which `plan.build` reports with its own.

    Raises:
        ConfigError: the file cannot be read, or is not YAML.
    """
    path = FilePath(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(yaml.MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _file_error(
            path,
            "file not found",
            "Create one with `icestream init`, or pass yours with `--config FILE`.",
        ) from None
    except OSError as exc:
        raise _file_error(path, f"the file cannot be read: {exc.strerror}", "") from exc
    except UnicodeDecodeError as exc:
        raise _file_error(
            path, f"the file is not UTF-8 text, at byte {exc.start}", "Save it as UTF-8."
        ) from exc
    except ValueError as exc:
        raise _file_error(path, f"not a valid path: {exc}", "") from exc
    if len(content) > yaml.MAX_BYTES:
        raise _file_error(path, "the file is larger than 1 MiB", "Split it into several files.")
    return _read_text(text, path, environment)


def parse(
    text: str, path: str | FilePath, *, environment: Mapping[str, str] | None = None
) -> Config:
    """Read the text of a configuration file; `path` names it and gives its folder.

    Raises:
        ConfigError: it is wrong; it holds every problem found.
    """
    config = _read_text(text, FilePath(path), environment)
    if config.problems:
        raise ConfigError(config.problems)
    return config


def _read_text(text: str, path: FilePath, environment: Mapping[str, str] | None) -> Config:
    try:
        tree = yaml.read(text, str(path))
    except IcestreamError as exc:
        raise ConfigError([exc]) from exc
    folder = path.absolute().parent
    interpolate(tree, folder, environment)
    return read_components(tree, path, folder)


def _file_error(path: FilePath, what: str, todo: str) -> ConfigError:
    return ConfigError([IcestreamError(what, where=str(path), todo=todo)])


def in_file_order(problems: Iterable[IcestreamError]) -> tuple[IcestreamError, ...]:
    """Return problems by line and column, each once."""
    return tuple(sorted({str(one): one for one in problems}.values(), key=_line_and_column))


def _line_and_column(problem: IcestreamError) -> tuple[int, int]:
    found = LINE_AND_COLUMN.search(problem.where)
    return (int(found[1]), int(found[2])) if found else (0, 0)
