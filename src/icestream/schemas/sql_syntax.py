"""Parses Spark SQL expressions without a JVM, and tells which are certainly broken.

sqlglot's grammar is not Spark's: Spark takes keywords as names of columns, and knows syntax that
sqlglot does not. So an expression that sqlglot refuses counts as broken only for a reason that
holds in Spark as well, see `_Tokens.fault`. Otherwise nothing is known about it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from icestream.errors import PlanError
from icestream.schemas.spark_types import is_type_name, unknown_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.errors import ParseError
    from sqlglot.expressions import Expr

    from icestream.contracts.columns import Columns

_HEAD = "SELECT\n"
SPLIT = "Write one expression; in a list, each is an item of its own."

# Token types of sqlglot, by what may stand next to them.
_BINARY = {
    "EQ", "NEQ", "NULLSAFE_EQ", "LT", "LTE", "GT", "GTE", "SLASH", "MOD", "CARET", "AMP", "PIPE",
    "DPIPE",
}  # fmt: skip
_SIGNS = {"PLUS", "DASH"}
_OPERANDS = {"VAR", "IDENTIFIER", "NUMBER", "STRING"}
_CONSTANTS = {"NULL", "TRUE", "FALSE"}
_KEYWORDS = {
    "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "CASE", "WHEN", "THEN", "ELSE", "END",
    "ALIAS", *_CONSTANTS,
}  # fmt: skip
_STARTS = {*_OPERANDS, *_CONSTANTS, "L_PAREN", "NOT", "CASE"}
_PAIRS = {"L_PAREN": "R_PAREN", "L_BRACKET": "R_BRACKET"}
_CLOSERS = set(_PAIRS.values())
_SIMPLE = {
    *_BINARY, *_SIGNS, *_OPERANDS, *_KEYWORDS, *_PAIRS, *_CLOSERS,
    "COMMA", "DOT", "STAR", "FARROW", "DAMP", "TILDE",
}  # fmt: skip
# Where the angle brackets of a type, such as `array<int>`, may look like operators.
_GENERICS = {"ARRAY", "MAP", "STRUCT"}
# Words of Spark's grammar for expressions that sqlglot takes for names.
_GRAMMAR_WORDS = re.compile(
    r"(?:year|month|week|day|hour|minute|second|millisecond|microsecond|nanosecond)s?"
    r"|any_value|at|both|by|cast|cluster|collation|current|date_?add|date_?diff|dayofyear"
    r"|distribute|escaped|exclude|extract|following|group|grouping|identifier|if|ignore|last"
    r"|leading|nulls|of|order|overlay|placing|position|preceding|quarter|respect|sort|struct"
    r"|substr|substring|timediff|timestampadd|timestampdiff|to|trailing|trim|try_cast|unbounded"
    r"|version|within|zone",
    re.IGNORECASE,
)


def parse_expression(text: str, columns: Columns, noun: str = "expression") -> Expr | None:
    """Return the syntax tree of an expression; None if only Spark can parse it.

    Args:
        text: the expression, perhaps with an alias.
        columns: the columns of the rows; a keyword may be the name of one.
        noun: what the text should be, for the message.

    Raises:
        PlanError: Spark would refuse it.
    """
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import ParseError, SqlglotError, TokenError

    try:
        tokens = _Tokens(text, sqlglot.tokenize(text, dialect="spark"))
    except TokenError as exc:
        # The cause names the quote or comment that does not end.
        if "Missing" in str(exc.__cause__ or exc):
            raise PlanError(f"not a SQL {noun}, a quote is not closed: {text!r}") from exc
        return None
    try:
        found = sqlglot.parse(_HEAD + text + "\n", dialect="spark")
    except ParseError as exc:
        fault = tokens.fault(columns, exc) or _bad_type(exc)
        if isinstance(fault, PlanError):
            raise fault from exc
        if fault is not None:
            todo = SPLIT if fault == tokens.split_fault() else ""
            raise PlanError(f"not a SQL {noun}, {fault}: {text!r}", todo=todo) from exc
        return None
    except (SqlglotError, RecursionError):
        return None
    fault = tokens.split_fault() or tokens.statement() if tokens.tokens else "it is empty"
    if fault is not None:
        todo = SPLIT if fault == tokens.split_fault() else ""
        raise PlanError(f"not a SQL {noun}, {fault}: {text!r}", todo=todo)
    tree = found[0] if len(found) == 1 else None
    if not isinstance(tree, exp.Select):
        return None
    given = {name for name, value in tree.args.items() if value}
    return tree.selects[0] if given == {"expressions"} and len(tree.selects) == 1 else None


def parse_query(text: str) -> Any:
    """Return the syntax tree of a `SELECT`; None if only Spark can parse it.

    Raises:
        PlanError: Spark would refuse it, because a quote or a bracket is not closed.
    """
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError, TokenError

    try:
        tokens = _Tokens(text, sqlglot.tokenize(text, dialect="spark"))
        fault = tokens.unbalanced()
    except TokenError as exc:
        fault = "a quote is not closed" if "Missing" in str(exc.__cause__ or exc) else None
    if fault is not None:
        raise PlanError(f"not a SQL query, {fault}: {text!r}")
    try:
        found = sqlglot.parse(text, dialect="spark")
    except (SqlglotError, RecursionError):
        return None
    return found[0] if len(found) == 1 and isinstance(found[0], exp.Select) else None


def _bad_type(exc: Any) -> PlanError | None:
    """Return the problem of a word after `CAST(... AS` that is not a type."""
    error = exc.errors[0] if exc.errors else {}
    word = str(error.get("highlight", ""))
    if not str(error.get("description", "")).startswith("Expected TYPE"):
        return None
    if not word.isidentifier() or is_type_name(word):
        return None
    what, todo = unknown_type(word)
    return PlanError(what, todo=todo)


class _Tokens:
    """The tokens of a text that sqlglot refuses."""

    def __init__(self, text: str, tokens: Sequence[Any]) -> None:
        self.text = text
        self.tokens = tokens
        self.kinds = [token.token_type.name for token in tokens]

    def fault(self, columns: Columns, refusal: ParseError) -> str | None:
        """Return why the text can't be an expression of Spark; None if it may be one.

        Args:
            columns: the columns of the rows.
            refusal: why sqlglot refuses the text.
        """
        return (
            self.unbalanced()
            or self.split_fault()
            or self.statement()
            or self._misplaced_operator()
            or self._strange_words(columns, refusal)
        )

    def split_fault(self) -> str | None:
        """Return where the text is cut into several expressions."""
        depth = 0
        for index, kind in enumerate(self.kinds):
            depth += (kind in _PAIRS) - (kind in _CLOSERS)
            if kind == "SEMICOLON" or (kind == "COMMA" and not depth):
                return self._at(index)
        return None

    def statement(self) -> str | None:
        """Return the word that starts a query or its condition."""
        first, second = [*self.kinds, "", ""][:2]
        if first not in ("SELECT", "WHERE") or second not in _OPERANDS:
            return None
        is_alias = len(self.kinds) == 2 and second in ("VAR", "IDENTIFIER")
        return None if is_alias else self._at(0)

    def _at(self, index: int) -> str:
        return f"near {self.tokens[index].text!r} in column {self._column(index)}"

    def _column(self, index: int) -> int:
        """Return the column of a token, from 1, in its line."""
        start = int(self.tokens[index].start)
        return start - self.text.rfind("\n", 0, start)

    def unbalanced(self) -> str | None:
        """Return the bracket that has no partner."""
        open_brackets: list[int] = []
        for index, kind in enumerate(self.kinds):
            if kind in _PAIRS:
                open_brackets.append(index)
            elif kind in _CLOSERS and (
                not open_brackets or _PAIRS[self.kinds[open_brackets.pop()]] != kind
            ):
                return self._at(index)
        if not open_brackets:
            return None
        index = open_brackets[-1]
        return f"{self.tokens[index].text!r} in column {self._column(index)} is not closed"

    def _misplaced_operator(self) -> str | None:
        """Return where an operator has no operand."""
        if _GENERICS & set(self.kinds):
            return None
        kinds = ["", *self.kinds, ""]
        for index, (before, kind, after) in enumerate(
            zip(kinds, kinds[1:], kinds[2:], strict=False)
        ):
            is_first = before in ("", "L_PAREN", "L_BRACKET", "COMMA")
            is_last = after in ("", "COMMA", *_CLOSERS)
            if kind in _BINARY and is_first:
                return self._at(index)
            if kind in _BINARY | _SIGNS and is_last:
                return self._at(index)
            if kind in _BINARY | _SIGNS and after in _BINARY and {kind, after} != {"GT"}:
                return self._at(index + 1)
        return None

    def _is_about_arguments(self, refusal: str) -> bool:
        """Tell whether sqlglot counts the arguments of a function, which it may not know well."""
        calls = any(pair == ("VAR", "L_PAREN") for pair in pairwise(self.kinds))
        return "provided arguments" in refusal or (calls and "missing for" in refusal)

    def _strange_words(self, columns: Columns, refusal: ParseError) -> str | None:
        """Return where simple words do not make an expression.

        Only for a text of names, literals, operators and the most common keywords, none of which
        may be meant as a name: sqlglot and Spark agree on those.
        """
        if self._is_about_arguments(str(refusal)):
            return None
        if not self.kinds or any(
            kind not in _SIMPLE or (kind == "VAR" and _GRAMMAR_WORDS.fullmatch(token.text))
            for kind, token in zip(self.kinds, self.tokens, strict=True)
        ):
            return None
        # `>>>`, `!<` and `!>` are operators of Spark.
        spark_only = {("GT", "GT"), ("NOT", "LT"), ("NOT", "GT")}
        if spark_only & set(pairwise(self.kinds)):
            return None
        if any(self._may_be_name(index, columns) for index in range(len(self.kinds))):
            return None
        return self._first_strange(refusal)

    def _may_be_name(self, index: int, columns: Columns) -> bool:
        """Tell whether Spark may take a word for a name where sqlglot does not."""
        kinds = ["", *self.kinds, ""]
        before, kind, after = kinds[index : index + 3]
        ends = after in ("", "COMMA", *_CLOSERS)
        follows_operand = before in _OPERANDS | _CLOSERS | _CONSTANTS | {"END"}
        if kind in ("VAR", "IDENTIFIER"):
            # An alias in brackets, as in `struct(a b)`, which sqlglot does not know.
            return ends and (follows_operand or before == "STAR") and after != ""
        if kind not in _KEYWORDS:
            return False
        if kind in _CONSTANTS | {"END"} and before not in ("DOT", "ALIAS"):
            return ends and (follows_operand or kind == "END")
        if before in ("DOT", "ALIAS") or ends:
            return True
        if follows_operand or (kind == "NOT" and after in _STARTS):
            return False
        # Spark has functions called `and` and `when`.
        return after == "L_PAREN" or not columns.lacks(self.tokens[index].text)

    def _first_strange(self, refusal: ParseError) -> str:
        """Return the first place at which a word follows an operand, or where sqlglot stops."""
        kinds = self.kinds
        for index in range(1, len(kinds)):
            if kinds[index] in _OPERANDS and kinds[index - 1] in _OPERANDS | _CLOSERS:
                return self._at(index)
        word = refusal.errors[0].get("highlight") if refusal.errors else None
        found = [index for index, token in enumerate(self.tokens) if token.text == word]
        return self._at(found[-1] if found else len(kinds) - 1)
