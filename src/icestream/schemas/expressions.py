"""Binds Spark SQL expressions to columns without a JVM, as far as that is certain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from icestream.contracts.columns import Columns, ColumnType, unknown_column
from icestream.contracts.registry import did_you_mean
from icestream.errors import PlanError
from icestream.schemas.spark_types import parse_spark_type, sql_type
from icestream.schemas.sql_syntax import parse_expression, parse_query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from sqlglot.expressions import Expr

# Names that Spark takes for a function if there is no column of that name.
_LITERAL_FUNCTIONS = re.compile(
    r"current_(?:catalog|database|date|schema|time|timestamp|user)"
    r"|grouping__id|localtimestamp|session_user|user",
    re.IGNORECASE,
)
# Units of time, which some functions take as bare words: `timediff(hour, a, b)`.
_UNITS = re.compile(
    r"(?:year|quarter|month|week|day|hour|minute|second|millisecond|microsecond|nanosecond)s?"
    r"|dayofyear",
    re.IGNORECASE,
)
_PLUS_SIGN = re.compile(r"(?:^|[(,])\s*\+")
_ALIAS = re.compile(r"\bAS\s+`?(\w+)`?\s*$", re.IGNORECASE)
CONDITION_EXAMPLE = "Write a boolean expression, e.g. `amount > 0`."
QUERY_EXAMPLE = "Write e.g. `SELECT * FROM rows WHERE id IS NULL`."
ITEM_EXAMPLE = "Write a column or an expression with a name, e.g. `price * 2 AS double_price`."


class SqlProblem(NamedTuple):
    """What Spark would refuse in an expression, and what to do about it."""

    what: str
    todo: str


class _Reference(NamedTuple):
    """A column that an expression names, and the members after it: `order.customer.name`.

    `is_all` tells that a star follows, as in `customer.*`.
    """

    name: str
    members: tuple[str, ...]
    is_all: bool = False


@dataclass(frozen=True)
class BoundExpression:
    """What is known about an expression without Spark.

    Attributes:
        problems: what Spark would refuse.
        outputs: the columns that it gives in a `SELECT`; None if their names are not known.
        type: its type; None if it is not known.
    """

    problems: tuple[SqlProblem, ...] = ()
    outputs: tuple[ColumnType, ...] | None = None
    type: pa.DataType | None = None


def bind_condition(
    text: str, columns: Columns, aliases: Sequence[ColumnType] = ()
) -> list[SqlProblem]:
    """Return why Spark would refuse a condition for rows with these columns.

    Args:
        text: the condition.
        columns: the columns of the rows.
        aliases: further names that it may use.
    """
    import pyarrow as pa

    bound = _bind(text, columns, "condition", CONDITION_EXAMPLE, aliases)
    if bound.type is None or bound.problems or pa.types.is_boolean(bound.type):
        return list(bound.problems)
    what = f"a condition must be true or false, found {type_text(bound.type)}: {text!r}"
    return [SqlProblem(what, CONDITION_EXAMPLE)]


def bind_filter(text: str, columns: Columns) -> list[SqlProblem]:
    """Return why Spark would refuse a filter, which may use columns that were removed before."""
    return bind_condition(text, columns, [ColumnType(name) for name in columns.removed])


def bind_expression(text: str, columns: Columns) -> list[SqlProblem]:
    """Return why Spark would refuse an expression for rows with these columns."""
    return list(_bind(text, columns, "expression", ITEM_EXAMPLE).problems)


def bind_items(
    texts: Sequence[str], columns: Columns, given: Sequence[ColumnType] = ()
) -> tuple[list[tuple[int, SqlProblem]], Columns]:
    """Bind the items of a `SELECT`.

    Args:
        texts: the items.
        columns: the columns of the rows.
        given: the aliases of items before these.

    Returns:
        The problems, each with the number of its item, and the columns of the result.
    """
    problems: list[tuple[int, SqlProblem]] = []
    outputs: list[ColumnType] = []
    aliases: tuple[ColumnType, ...] | None = tuple(given)
    for number, text in enumerate(texts):
        bound = _bind(text, columns, "expression", ITEM_EXAMPLE, aliases)
        problems += [(number, problem) for problem in bound.problems]
        if bound.problems and bound.outputs is None:
            # What the item would give is clear enough not to hide the problems of later steps.
            alias = _ALIAS.search(text)
            bound = BoundExpression(outputs=(ColumnType(alias[1]),) if alias else ())
        outputs += bound.outputs or ()
        # An item may use the alias of an item before it.
        aliases = None if aliases is None or bound.outputs is None else (*aliases, *bound.outputs)
    return problems, columns.replace(outputs, is_complete=aliases is not None)


def bind_query(text: str, table: str, columns: Columns) -> list[SqlProblem]:
    """Return why Spark would refuse a query of one table, with these columns.

    A query of several tables, or with queries in it, is left to Spark.
    """
    try:
        tree = parse_query(text)
    except PlanError as exc:
        return [SqlProblem(exc.what, QUERY_EXAMPLE)]
    source = None if tree is None or _is_opaque(tree) else _single_table(tree)
    if tree is None or source is None or source.name.lower() != table or source.args.get("db"):
        return []
    aliases = [ColumnType(item.alias) for item in tree.selects if item.alias]
    visible = Columns((*columns.known, *aliases), columns.is_complete)
    qualifiers = {table, source.alias_or_name.lower()}
    problems = []
    for child in tree.iter_expressions():
        for name, members, is_all in _references(child):
            is_qualified = (members or is_all) and name.lower() in qualifiers
            path = members if is_qualified else (name, *members)
            if not path:
                continue  # all columns of the table
            problem = _reference_problem(_Reference(path[0], path[1:]), visible)
            problems += [] if problem is None or problem in problems else [problem]
    return problems


def _single_table(tree: Any) -> Any:
    """Return the table of a query that reads nothing else; None if it reads more."""
    from sqlglot import expressions as exp

    simple = {
        "expressions", "from_", "where", "group", "having", "order", "limit", "distinct", "kind",
    }  # fmt: skip
    given = {name for name, value in tree.args.items() if value}
    if not given <= simple or len(list(tree.find_all(exp.Query))) != 1:
        return None
    tables = list(tree.find_all(exp.Table))
    return tables[0] if len(tables) == 1 and isinstance(tables[0].this, exp.Identifier) else None


def type_text(kind: pa.DataType) -> str:
    """Return a type in the words of Spark SQL, with its article."""
    name = sql_type(kind)
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def _bind(
    text: str,
    columns: Columns,
    noun: str,
    example: str,
    aliases: Sequence[ColumnType] | None = (),
) -> BoundExpression:
    """Bind an expression to columns.

    Args:
        text: the expression.
        columns: the columns of the rows.
        noun: what the text should be.
        example: what to do about an error of syntax.
        aliases: further names that it may use; None if any name may be one.
    """
    try:
        tree = parse_expression(text, columns, noun)
    except PlanError as exc:
        return BoundExpression((SqlProblem(exc.what, exc.todo or example),))
    if tree is None or _is_opaque(tree):
        return BoundExpression()
    own = Columns(columns.known, columns.is_complete and aliases is not None)
    names = {alias.name.lower() for alias in aliases or ()}
    problems = [
        problem
        for reference in dict.fromkeys(_references(tree))
        if own.find(reference.name) is not None or reference.name.lower() not in names
        if (problem := _reference_problem(reference, own)) is not None
    ]
    # sqlglot leaves a plus sign out, which is an operator in Spark.
    if _PLUS_SIGN.search(text):
        return BoundExpression(tuple(problems))
    return BoundExpression(tuple(problems), _outputs(tree, columns), _type(tree, columns))


def _is_opaque(tree: Expr) -> bool:
    """Tell whether sqlglot reads something into the text that Spark may not."""
    from sqlglot import expressions as exp

    return tree.find(exp.Placeholder, exp.Parameter, exp.Command) is not None


def _references(node: Expr, bound: frozenset[str] = frozenset()) -> Iterator[_Reference]:
    """Yield the columns that an expression names, without the variables of lambda functions."""
    from sqlglot import expressions as exp

    if isinstance(node, exp.Query):
        return  # its columns may belong to its own tables
    if isinstance(node, exp.DataType):
        return  # the collation of `string COLLATE unicode` looks like a column
    if isinstance(node, exp.Lambda):
        bound |= {parameter.name.lower() for parameter in node.expressions}
    if isinstance(node, exp.Column):
        reference = _reference(node)
        if reference.name.lower() not in bound and not _is_word(node, reference):
            yield reference
        return
    for child in node.iter_expressions():
        yield from _references(child, bound)


def _reference(column: Any) -> _Reference:
    from sqlglot import expressions as exp

    first, *members = [part.name for part in column.parts if not isinstance(part, exp.Star)]
    return _Reference(first, tuple(members), isinstance(column.this, exp.Star))


def _is_word(column: Any, reference: _Reference) -> bool:
    """Tell whether Spark may take a name for something else than a column."""
    from sqlglot import expressions as exp

    if reference.members or column.this.args.get("quoted"):
        return False
    is_unit = _UNITS.fullmatch(reference.name) and isinstance(column.parent, exp.Func)
    return bool(is_unit or _LITERAL_FUNCTIONS.fullmatch(reference.name))


def _reference_problem(reference: _Reference, columns: Columns) -> SqlProblem | None:
    if columns.lacks(reference.name):
        return SqlProblem(*unknown_column(reference.name, columns.names))
    column = columns.find(reference.name)
    kind = column.type if column is not None else None
    path = reference.name
    for member in reference.members:
        if kind is None:
            return None
        names = member_names(kind)
        if names is None:
            what = f"{path!r} is {type_text(kind)}, and has no field {member!r}"
            return SqlProblem(what, "Only a struct, or an array of structs, has fields.")
        if names and member.lower() not in {name.lower() for name in names}:
            hint = did_you_mean(member, names)
            what = f"{path!r} has no field {member!r}"
            return SqlProblem(what, f"{hint}It has: {', '.join(names)}.")
        kind, path = member_type(kind, member), f"{path}.{member}"
    return None


def member_names(kind: pa.DataType) -> list[str] | None:
    """Return the fields that `.` reaches in a type: empty for any name, None for none."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return [kind.field(index).name for index in range(kind.num_fields)]
    return [] if pa.types.is_map(kind) else None


def member_type(kind: pa.DataType, name: str) -> pa.DataType | None:
    """Return the type of a field that `.` reaches in a type; None if it is not certain."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        inner = member_type(kind.value_type, name)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(kind):
        return kind.item_type
    if not pa.types.is_struct(kind):
        return None
    fields = [kind.field(index) for index in range(kind.num_fields)]
    found = [field.type for field in fields if field.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def _outputs(tree: Expr, columns: Columns) -> tuple[ColumnType, ...] | None:
    """Return the columns that a `SELECT` item gives; None if a name is not certain."""
    from sqlglot import expressions as exp

    if isinstance(tree, exp.Star):
        return _star(tree, columns)
    if isinstance(tree, exp.Alias):
        return (ColumnType(tree.alias, _type(tree.this, columns)),)
    if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
        reference = _reference(tree)
        if _is_word(tree, reference):
            return None
        name = (reference.name, *reference.members)[-1]
        return (ColumnType(name, _type(tree, columns)),)
    return None


def _star(tree: Any, columns: Columns) -> tuple[ColumnType, ...] | None:
    left_out = tree.args.get("except_") or ()
    others = {name for name, value in tree.args.items() if value} - {"except_"}
    references = [_reference(column) for column in left_out]
    if others or not columns.is_complete or any(reference.members for reference in references):
        return None
    dropped = {reference.name.lower() for reference in references}
    return tuple(column for column in columns.known if column.name.lower() not in dropped)


def _type(node: Any, columns: Columns) -> pa.DataType | None:
    """Return the type of an expression, where it follows from the expression alone."""
    import pyarrow as pa
    from sqlglot import expressions as exp

    booleans = (
        exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.And, exp.Or, exp.Not, exp.Is, exp.In,
        exp.Between, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Boolean,
    )  # fmt: skip
    if isinstance(node, exp.Paren | exp.Alias):
        return _type(node.this, columns)
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return _column_type(_reference(node), columns)
    if isinstance(node, exp.Cast):
        return _cast_type(node)
    if isinstance(node, exp.Literal) and node.is_string:
        return pa.string()
    return pa.bool_() if isinstance(node, booleans) else None


def _column_type(reference: _Reference, columns: Columns) -> pa.DataType | None:
    column = columns.find(reference.name)
    kind = column.type if column is not None else None
    for member in reference.members:
        kind = None if kind is None else member_type(kind, member)
    return kind


def _cast_type(node: Any) -> pa.DataType | None:
    try:
        return parse_spark_type(node.to.sql("spark"))
    except PlanError:
        return None
