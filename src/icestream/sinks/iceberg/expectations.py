"""The expectations of a sink, as conditions over the rows of the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.changes import DELETES
from icestream.contracts.sink import Expectation

if TYPE_CHECKING:
    from icestream.sinks.iceberg.options import IcebergOptions


def expectations_of(options: IcebergOptions) -> tuple[Expectation, ...]:
    """Return what a sink expects of its rows.

    A delete carries little but its key, and what is expected of a row is not expected of it.
    """
    unless = ""
    if options.commit_mode == "upsert" and options.op_field is not None:
        said = f"lower(cast({quote_for_spark(options.op_field)} as string))"
        named = ", ".join(f"'{word}'" for word in DELETES)
        unless = f"coalesce({said} in ({named}), false) or "
    return tuple(
        Expectation(one.name, f"{unless}({one.expr})" if unless else one.expr, one.on_fail)
        for one in options.expect
    )
