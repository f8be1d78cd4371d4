"""Looks at expectations as far as their words tell, before there are rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.expressions import Expr

    from icestream.config import Config, Part
    from icestream.contracts.source import Source
    from icestream.sinks.iceberg.options import Expectation

EXAMPLE = "Write something that is true or false, e.g. `amount > 0`."


def expectation_problems(
    config: Config, part: Part, expectations: Sequence[Expectation]
) -> Iterator[PlanError]:
    """Yield what is wrong with the expectations of a sink."""
    seen: set[str] = set()
    for number, one in enumerate(expectations):
        path = (*part.path, "expect", number)
        if one.name in seen:
            yield PlanError(
                f"two expectations are called {one.name!r}",
                where=config.tree.where((*path, "name")),
                todo="Each is counted by its name: give them different ones.",
            )
        seen.add(one.name)
        try:
            _parse(one.expr)
        except PlanError as exc:
            yield PlanError(
                exc.what, where=config.tree.where((*path, "expr")), todo=exc.todo or EXAMPLE
            )


def unknown_columns(
    config: Config, part: Part, expectations: Sequence[Expectation], source: Source[Any]
) -> Iterator[PlanError]:
    """Yield the columns that expectations name and a source with a given schema does not have.

    Only for a pipeline without transforms: what those make of the columns, Spark alone can tell.
    """
    if not expectations or getattr(source.options, "schema_text", None) is None:
        return
    schema = source.schema()
    if schema is None:
        return
    known = {name.lower() for name in schema.names}
    for number, one in enumerate(expectations):
        for name in _columns(_parse(one.expr)):
            if name.lower() not in known:
                yield PlanError(
                    f"the rows have no column {name!r}",
                    where=config.tree.where((*part.path, "expect", number, "expr")),
                    todo=f"They have: {', '.join(schema.names)}.",
                )


def _parse(expr: str) -> Expr:
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import ParseError, SqlglotError

    try:
        found = sqlglot.parse(expr, dialect="spark")
    except ParseError as exc:
        told = exc.errors[0] if exc.errors else {}
        place = f", near {told['highlight']!r} in column {told['col']}" if told else ""
        raise PlanError(f"not a condition in SQL{place}: {expr!r}") from exc
    except SqlglotError as exc:
        raise PlanError(f"not a condition in SQL: {expr!r}") from exc
    if len(found) != 1 or found[0] is None or not isinstance(found[0], exp.Condition):
        raise PlanError(f"not a condition in SQL: {expr!r}")
    return found[0]


def _columns(tree: Expr) -> list[str]:
    """Return the columns that an expression names, each once."""
    from sqlglot import expressions as exp

    return list(dict.fromkeys(column.parts[0].name for column in tree.find_all(exp.Column)))
