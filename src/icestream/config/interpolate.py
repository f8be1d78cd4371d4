"""Interpolates `${NAME}`, `${NAME:-default}` and `${file:PATH}`.

This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from icestream.contracts.secrets import is_secret
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.config.yaml import KeyPath, Tree

REFERENCE = re.compile(r"\$\$|\$\{(?P<inside>[^{}]*)(?P<end>\}?)")
NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
MAX_FILE_BYTES = 1 << 20


def interpolate(tree: Tree, folder: FilePath, environment: Mapping[str, str] | None = None) -> None:
    """Interpolate every value of the tree in place; failures are added to its problems.

    `tree.references` keeps the original text, which is all that may be shown.

    Args:
        tree: the file.
        folder: what relative paths of `${file:PATH}` start from.
        environment: the variables; those of the process if absent.
    """
    variables = os.environ if environment is None else environment
    tree.data = _Interpolator(tree, folder, variables).interpolate(tree.data, ())


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the process, with others in their place."""
    return {**os.environ, **variables}


def unset_references(text: str, folder: FilePath, environment: Mapping[str, str]) -> list[str]:
    """Return the references in a file's text that have neither a value nor a default."""
    names = [found["inside"] or "" for found in REFERENCE.finditer(text) if found["end"]]
    return [
        name
        for name in dict.fromkeys(names)
        if (NAME.match(name) and name not in environment)
        or (name.startswith("file:") and not (folder / name.removeprefix("file:")).exists())
    ]


class _Interpolator:
    def __init__(self, tree: Tree, folder: FilePath, variables: Mapping[str, str]) -> None:
        self.tree = tree
        self.folder = folder
        self.variables = variables

    def interpolate(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: self.interpolate(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.interpolate(item, (*path, n)) for n, item in enumerate(value)]
        if isinstance(value, str) and "$" in value:
            return self._text(value, path)
        return value

    def _text(self, text: str, path: KeyPath) -> str:
        def replace(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            self.tree.references[path] = text
            if not found["end"]:
                self._report(path, "`${` is not closed by `}`", "Write `$$` for a plain `$`.")
                return ""
            return self._look_up(found["inside"], path)

        return REFERENCE.sub(replace, text)

    def _look_up(self, inside: str, path: KeyPath) -> str:
        if inside in self.variables and inside.startswith("file:"):
            return self.variables[inside]
        if inside.startswith("file:"):
            return self._file(inside.removeprefix("file:"), path)
        name, has_default, default = inside.partition(":-")
        if not NAME.match(name):
            self._report(
                path,
                f"'${{{inside}}}' does not name a variable",
                "Write `${NAME}`, `${NAME:-default}` or `${file:PATH}`; `$$` is a plain `$`.",
            )
            return ""
        value = self.variables.get(name)
        if has_default:
            return value or default
        if value is None:
            self._report(
                path,
                f"the environment variable {name!r} is not set",
                _how_to_set(name, path),
            )
            return ""
        return value

    def _file(self, given: str, path: KeyPath) -> str:
        try:
            file = self.folder / FilePath(given).expanduser()
            with file.open("rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                self._report(path, f"the file {given!r} is larger than 1 MiB", "")
            return content.decode().rstrip("\r\n")
        except OSError as exc:
            self._report(
                path,
                f"the file {given!r} cannot be read: {exc.strerror}",
                "A relative path starts from the folder of the configuration file.",
            )
        except UnicodeDecodeError:
            self._report(path, f"the file {given!r} is not UTF-8 text", "")
        except (RuntimeError, ValueError):
            # An unknown user after `~`, or a null character.
            self._report(path, f"{given!r} is not a valid path", "")
        return ""

    def _report(self, path: KeyPath, what: str, todo: str) -> None:
        self.tree.unresolved.add(path)
        self.tree.problems.append(IcestreamError(what, where=self.tree.where(path), todo=todo))


def _how_to_set(name: str, path: KeyPath) -> str:
    """Say how to give a variable its value; that of a secret never belongs in the file."""
    keys = [part for part in path if isinstance(part, str)]
    if is_secret(name) or (keys and is_secret(keys[-1])):
        return "Set it, or read the secret from a file: `${file:PATH}`."
    return f"Set it, or give a default: `${{{name}:-default}}`."
