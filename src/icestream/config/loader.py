"""Reads a configuration file and reports everything that is wrong with it at once."""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from icestream.config import yaml_tree
from icestream.config.interpolate import interpolate
from icestream.config.parts import read_parts
from icestream.errors import ConfigError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.config.model import Config

PLACE = re.compile(r":(\d+):(\d+)( |$)")


def load(path: str | FilePath, *, environment: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: the file.
        environment: the variables for `${NAME}`; those of the process if absent.

    Raises:
        ConfigError: the file cannot be read or is wrong; it holds every problem found.
    """
    path = FilePath(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(yaml_tree.MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _refusal(
            path,
            "there is no such file",
            "Make a starting file with `icestream init`, or name yours with `--config FILE`.",
        ) from None
    except OSError as exc:
        raise _refusal(path, f"the file cannot be read: {exc.strerror}", "") from exc
    except UnicodeDecodeError as exc:
        raise _refusal(
            path, f"the file is not UTF-8 text, at byte {exc.start}", "Save it as UTF-8."
        ) from exc
    if len(content) > yaml_tree.MAX_BYTES:
        raise _refusal(path, "the file is larger than 1 MiB", "Split it into several files.")
    return parse(text, path, environment=environment)


def parse(
    text: str, path: str | FilePath, *, environment: Mapping[str, str] | None = None
) -> Config:
    """Read the text of a configuration file; `path` names it and gives its folder.

    Raises:
        ConfigError: it is wrong; it holds every problem found.
    """
    path = FilePath(path)
    try:
        tree = yaml_tree.read(text, str(path))
    except IcestreamError as exc:
        raise ConfigError([exc]) from exc
    folder = path.absolute().parent
    interpolate(tree, folder, environment)
    config = read_parts(tree, path, folder)
    if tree.problems or config is None:
        raise ConfigError(sorted(tree.problems, key=_place))
    return config


def _refusal(path: FilePath, what: str, todo: str) -> ConfigError:
    return ConfigError([IcestreamError(what, where=str(path), todo=todo)])


def _place(problem: IcestreamError) -> tuple[int, int]:
    found = PLACE.search(problem.where)
    return (int(found[1]), int(found[2])) if found else (0, 0)
