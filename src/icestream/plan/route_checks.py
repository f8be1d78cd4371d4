"""Looks at `route_by` as far as its words tell, before there are rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.config import Config, Part
    from icestream.sinks.iceberg.options import IcebergOptions

EXAMPLE = "Write a column, e.g. `route_by: kind`, or SQL that gives text: `lower(kind)`."


def route_problems(config: Config, part: Part, options: IcebergOptions) -> Iterator[PlanError]:
    """Yield what is wrong with the `route_by` of a sink."""
    if options.route_by is None:
        if "allowed_tables" in options.model_fields_set:
            yield PlanError(
                "without `route_by` the sink writes to one table, and ignores 'allowed_tables'",
                where=config.tree.where((*part.path, "allowed_tables")),
                todo="Take it out, or add `route_by`.",
            )
        return
    tree, path = config.tree, (*part.path, "route_by")
    if options.table:
        yield PlanError(
            f"`table` names one table, {options.table!r}, and `route_by` another for each row",
            where=tree.where((*part.path, "table")),
            todo="Take one of them out.",
        )
    if not options.namespace:
        yield PlanError(
            "'namespace' is required, and not given",
            where=tree.where((*part.path, "namespace"), key=True, at=path),
            todo="Add e.g. `namespace: analytics`: tables without one of their own go there.",
        )
    if not _is_expression(options.route_by):
        yield PlanError(
            f"neither a column nor an expression in SQL: {options.route_by!r}",
            where=tree.where(path),
            todo=EXAMPLE,
        )


def _is_expression(text: str) -> bool:
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        found = sqlglot.parse(text, dialect="spark")
    except SqlglotError:
        return False
    return len(found) == 1 and isinstance(found[0], exp.Condition)
