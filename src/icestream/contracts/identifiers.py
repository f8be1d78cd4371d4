"""Identifiers: every name of a table, namespace or column is validated and quoted here.

Names come from the configuration file, from rows (`route_by`), from Debezium records and from
databases. A catalog makes a table's location out of its name, so each name is validated before
anything is created, whoever sent it.
"""

from __future__ import annotations

import re
from typing import TypeAlias
from urllib.parse import quote

Identifier: TypeAlias = tuple[str, ...]
"""A table's full name from the outside in: the levels of its namespace, then the table."""

# The longest file name of most file systems, and the longest name that a SQL catalog stores.
MAX_NAME_BYTES = 255
_PROBLEMS = (
    (re.compile(r"\A\Z"), "it is empty"),
    (re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]"), "it contains a control character"),
    (re.compile(r"[/\\]"), "it contains a path separator"),
    # Java takes a location literally, while PyIceberg parses it as a URL: behind one of these
    # characters the two would read different paths.
    (re.compile(r"[?#]"), "it contains '?' or '#', which cannot be part of a file location"),
    (re.compile(r"\A\s|\s\Z"), "it begins or ends with a space"),
    # Also `.` and `..`; and Azure drops dots at the end of a folder's name.
    (re.compile(r"\.\Z"), "it ends with a dot"),
)


def name_problem(name: str) -> str | None:
    """Say why a table or namespace can't have a name; None if it can.

    Args:
        name: one level of an identifier.
    """
    for pattern, problem in _PROBLEMS:
        if pattern.search(name):
            return problem
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"it is longer than {MAX_NAME_BYTES} bytes"
    return None


def shorten(name: str) -> str:
    """Return a name for a message, at most 60 characters of it."""
    return name if len(name) <= 60 else name[:57] + "..."


def folder_name(identifier: Identifier) -> str:
    """Return the name of a local folder for what is kept about a table, one for each table."""
    from hashlib import sha256

    # A dot can be part of a name, this separator can't.
    text = quote("\x1f".join(identifier), safe="")
    if len(text) <= MAX_NAME_BYTES // 2:
        return text
    return f"{text[:80]}-{sha256(text.encode()).hexdigest()[:32]}"


def quote_for_spark(*parts: str) -> str:
    """Return a name for Spark SQL, also for `DataFrame` lookups, where a dot leads into a struct.

    Args:
        *parts: the name from the outside in, e.g. catalog, namespace and table.
    """
    return _quoted(parts, "`")


def quote_for_duckdb(*parts: str) -> str:
    """Return a name for DuckDB, and for every other SQL that keeps to the standard's quotes.

    Args:
        *parts: the name from the outside in, e.g. database, schema and table.
    """
    return _quoted(parts, '"')


def _quoted(parts: tuple[str, ...], mark: str) -> str:
    return ".".join(mark + part.replace(mark, mark * 2) + mark for part in parts)
