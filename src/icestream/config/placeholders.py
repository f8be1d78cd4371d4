"""Loads a file whose secrets and addresses are not set, for what needs none of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from icestream.config.interpolate import environment_with, unset_references
from icestream.config.loader import load
from icestream.errors import ConfigError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icestream.config.model import Config

# What a reference without a value may have to be: text, a number, an address, a URL or a location.
PLACEHOLDERS = (
    "placeholder",
    "1",
    "localhost:1",
    "http://localhost:1",
    "s3://placeholder/placeholder",
)


def load_with_placeholders(
    path: str | FilePath,
    variables: Mapping[str, str],
    validate: Callable[[Config], object] = lambda _: None,
) -> Config:
    """Read a configuration file, with something in place of each reference that is not set.

    For each of them, the first of a few texts is taken that the file accepts.

    Args:
        path: the file.
        variables: values of `${NAME}`, before those of the process.
        validate: raises an error for a configuration that can't be used.

    Raises:
        ConfigError: the file is wrong.
    """
    path = FilePath(path)
    environment = environment_with(variables)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""  # `load` says what is wrong
    unset = unset_references(text, path.absolute().parent, environment)
    chosen = dict.fromkeys(unset, PLACEHOLDERS[0])

    def badness(values: Mapping[str, str]) -> tuple[int, int]:
        """Return how far the file is from being accepted: by which step, and how many problems."""
        step = 2
        try:
            config = load(path, environment={**environment, **values})
            step = 1
            validate(config)
        except ConfigError as exc:
            return step, len(exc.problems)
        except IcestreamError:
            return step, 1
        return 0, 0

    best, before = badness(chosen), (3, 0)
    while (0, 0) < best < before:  # one problem may hide another
        before = best
        for name, placeholder in product(unset, PLACEHOLDERS[1:]):
            trial = {**chosen, name: placeholder}
            found = badness(trial) if best > (0, 0) else best
            if found < best:
                chosen, best = trial, found
    try:
        config = load(path, environment={**environment, **chosen})
        validate(config)
    except ConfigError as exc:
        raise ConfigError([*exc.problems, *_unset_problems(exc, chosen, path)]) from exc
    return config


def _unset_problems(
    error: ConfigError, chosen: Mapping[str, str], path: FilePath
) -> Iterator[IcestreamError]:
    """Yield a problem that explains the placeholders, if the error is about one of them."""
    if chosen and ("${" in str(error) or any(text in str(error) for text in chosen.values())):
        names = ", ".join(f"${{{name}}}" for name in chosen)
        yield IcestreamError(
            f"placeholders stand for what is not set: {names}",
            where=str(path),
            todo="Set what the pipeline depends on: in the environment, or under `environment` of "
            "the test file.",
        )
