"""Holds what a script gives to the same rules as a file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from icestream.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from icestream.sinks.iceberg.options import IcebergOptions


def refuse_unfit(
    name: str, options: IcebergOptions, *, changes: bool = False, transforms: int = 0
) -> None:
    """Refuse a pipeline that a file would be refused for.

    Args:
        name: the pipeline's.
        options: of the sink.
        changes: whether the source gives changes.
        transforms: how many the pipeline has.

    Raises:
        PlanError: the first thing that does not fit together.
        UnavailableError: an option is not available in this version.
    """
    from icestream.config import parse
    from icestream.config.model import NAME_PATTERN
    from icestream.plan import build, refuse_planned
    from icestream.plan.multi_table_checks import transforms_refused

    if not re.fullmatch(NAME_PATTERN, name):
        raise PlanError(
            f"{name!r} is no name for a pipeline",
            todo="Begin with a letter, and go on with letters, digits, '_' and '-'.",
        )
    if changes and transforms:
        raise transforms_refused(f"pipeline {name!r}")
    # The catalog is built already, and may hold secrets. A `$` is only text to a script.
    given = options.model_dump(mode="json", exclude_unset=True, exclude={"catalog"})
    sink = {"connector": "iceberg", "config": given}
    text = json.dumps({"sinks": {"python": sink}}).replace("${", "$ {")
    try:
        mirrored = ("python",) if changes else ()
        refuse_planned(build(parse(text, "script.yaml"), for_changes=mirrored))
    except ConfigError as exc:
        first = exc.problems[0]
        where = f"pipeline {name!r}, options of the sink"
        raise PlanError(first.what, where=where, todo=first.todo) from exc
