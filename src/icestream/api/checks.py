"""Holds what a script gives to the same rules as a file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from icestream.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from icestream.sinks.iceberg.options import IcebergOptions


def refuse_unfit(name: str, options: IcebergOptions) -> None:
    """Refuse a pipeline's name or a sink's options that a file would be refused for.

    Raises:
        PlanError: the first thing that does not fit together.
        UnavailableError: an option is not available in this version.
    """
    from icestream.config import parse
    from icestream.config.model import NAME_PATTERN
    from icestream.plan import build, refuse_planned

    if not re.match(NAME_PATTERN, name):
        raise PlanError(
            f"{name!r} is no name for a pipeline",
            todo="Begin with a letter, and go on with letters, digits, '_' and '-'.",
        )
    # The catalog is built already, and may hold secrets. A `$` is only text to a script.
    given = options.model_dump(mode="json", exclude_unset=True, exclude={"catalog"})
    sink = {"connector": "iceberg", "config": given}
    text = json.dumps({"sinks": {"python": sink}}).replace("${", "$ {")
    try:
        refuse_planned(build(parse(text, "script.yaml")))
    except ConfigError as exc:
        first = exc.problems[0]
        where = f"pipeline {name!r}, options of the sink"
        raise PlanError(first.what, where=where, todo=first.todo) from exc
