"""Reads test files: records given to a pipeline, and the rows and dead letters expected of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, model_validator

from icestream.config import yaml
from icestream.config.messages import describe_value, problem_for, validation_faults
from icestream.contracts.options import Options
from icestream.contracts.registry import did_you_mean
from icestream.errors import ConfigError, IcestreamError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.config.yaml import KeyPath, Tree

Row = dict[str, Any]


class ExpectedLetter(Options):
    """A dead letter that a test expects."""

    reason: str = Field(min_length=1, description="The reason, or a part of it.")
    record: Any = Field(None, description="The record, as under `given`; any if it is left out.")


class PipelineCase(Options):
    """One test: records given to a pipeline, and what becomes of them."""

    name: str = Field(min_length=1, description="What the test shows.")
    pipeline: str | None = Field(
        None, description="The pipeline; may be left out if the configuration has one."
    )
    given: list[Any] = Field(
        description="The records: a mapping is encoded in the source's format, a text is the "
        "record itself, and null a record without a value."
    )
    expect: list[Row] | dict[str, list[Row]] | None = Field(
        None, description="The rows, or the rows of each table by its name."
    )
    dead_letters: list[ExpectedLetter] = Field(
        default_factory=list, description="The dead letters; none if it is left out."
    )
    error: str | None = Field(
        None, min_length=1, description="The message with which the batch fails, or a part of it."
    )
    in_order: bool = Field(False, description="Whether the order of the rows counts.")

    @model_validator(mode="after")
    def _refuse_no_outcome(self) -> PipelineCase:
        if self.error is not None and (self.expect or self.dead_letters):
            raise ValueError("a batch that fails writes nothing; remove `expect`, or `error`")
        if self.expect is None and not self.dead_letters and self.error is None:
            raise ValueError("needs `expect`, `dead_letters` or `error`")
        return self


class CaseFile(Options):
    """A test file."""

    config: str = Field(
        "icestream.yaml", min_length=1, description="The configuration, relative to this file."
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Values of `${NAME}` in the configuration; any that is not set here or in the "
        "environment has a placeholder.",
    )
    tests: list[PipelineCase] = Field(min_length=1, description="The tests.")


@dataclass(frozen=True)
class LoadedCases:
    """A test file that is well-formed.

    Attributes:
        path: the file, as it was named.
        block: its content.
        tree: its data, with lines and columns for messages.
    """

    path: Path
    block: CaseFile
    tree: Tree

    @property
    def config_path(self) -> Path:
        return self.path.parent / self.block.config

    def problem(self, path: KeyPath, what: str, todo: str = "") -> ConfigError:
        """Return the error of a value in the file."""
        error = IcestreamError(what, where=self.tree.where(path), todo=todo)
        return ConfigError([error])


def load_cases(path: Path) -> LoadedCases:
    """Read a test file.

    Raises:
        ConfigError: it can't be read, or is wrong; it holds every problem found.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        what = f"the file cannot be read: {(exc.strerror or str(exc)).lower()}"
        raise ConfigError([IcestreamError(what, where=str(path))]) from exc
    except UnicodeDecodeError as exc:
        what = f"the file is not UTF-8 text, at byte {exc.start}"
        raise ConfigError([IcestreamError(what, where=str(path))]) from exc
    try:
        tree = yaml.read(text, str(path))
    except IcestreamError as exc:
        raise ConfigError([exc]) from exc
    block = _validated(tree)
    if tree.problems or block is None:
        raise ConfigError(sorted(tree.problems, key=lambda problem: _line(problem.where)))
    return LoadedCases(path, block, tree)


def _validated(tree: Tree) -> CaseFile | None:
    if not isinstance(tree.data, dict):
        found = describe_value((), tree)
        tree.problems.append(
            IcestreamError(
                f"expected a mapping of keys, found {found}",
                where=tree.where(()),
                todo="Start with `tests:`.",
            )
        )
        return None
    try:
        return CaseFile.model_validate(tree.data)
    except ValidationError as exc:
        faults = validation_faults(exc, tree, ())
    ordered = sorted(faults, key=lambda fault: [str(part) for part in fault.path])
    for path, group in groupby(ordered, key=lambda fault: fault.path):
        same = list(group)
        if same[0].kind == "extra_forbidden":
            tree.problems.append(_unknown_key(path, tree))
        else:
            fields = _model_at(path[:-1]).model_fields
            known = {name: field.description or "" for name, field in fields.items()}
            tree.problems.append(problem_for(same, tree, known))
    return None


def _unknown_key(path: KeyPath, tree: Tree) -> IcestreamError:
    names = list(_model_at(path[:-1]).model_fields)
    todo = did_you_mean(str(path[-1]), names).rstrip() or f"Valid keys: {', '.join(names)}."
    where = tree.where(path, key=True)
    return IcestreamError(f"unknown key {path[-1]!r}", where=where, todo=todo)


def _model_at(path: KeyPath) -> type[Options]:
    if "dead_letters" in path:
        return ExpectedLetter
    return PipelineCase if path else CaseFile


def _line(where: str) -> int:
    _, _, rest = where.partition(":")
    line = rest.partition(":")[0]
    return int(line) if line.isdigit() else 0
