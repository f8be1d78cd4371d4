"""Reads YAML 1.2 as plain data, and records the position of every key and value.

YAML is data here: no tags, no second document, bounded size, depth and number of values, so that
neither deep nesting nor aliases of aliases can exhaust the machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_BYTES = 1 << 20
MAX_DEPTH = 40
MAX_VALUES = 50_000

KeyPath: TypeAlias = tuple[str | int, ...]

INT = re.compile(r"^[-+]?[0-9]+$")
FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
NULLS = ("", "~", "null", "Null", "NULL")
QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@dataclass(frozen=True)
class LineColumn:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass
class Tree:
    """A YAML file as plain data, with the line and column of every key and value.

    Attributes:
        data: mappings, lists, texts, numbers, booleans and None.
        keys: the location of each path's key; items of a list have none.
        values: the location of each path's value.
        plain_texts: the text of each value that was written as a number, a boolean or nothing.
        references: the text of each value that contained `${...}`, before interpolation.
        unresolved: the paths of references that could not be resolved.
        problems: faults of the YAML other than its syntax.
    """

    name: str
    data: Any = None
    keys: dict[KeyPath, LineColumn] = field(default_factory=dict)
    values: dict[KeyPath, LineColumn] = field(default_factory=dict)
    plain_texts: dict[KeyPath, str] = field(default_factory=dict)
    references: dict[KeyPath, str] = field(default_factory=dict)
    unresolved: set[KeyPath] = field(default_factory=set)
    problems: list[IcestreamError] = field(default_factory=list)

    def where(self, path: KeyPath, *, key: bool = False, at: KeyPath | None = None) -> str:
        """Return `FILE:LINE:COL dotted.path`, using the nearest location in the file.

        Args:
            path: the path to report.
            key: point at its key instead of its value.
            at: point at this path instead, for a path that the file does not have.
        """
        location = self._location(path if at is None else at, key=key)
        return f"{self.name}:{location.line}:{location.column} {dotted(path)}".rstrip()

    def position(self, path: KeyPath) -> tuple[int, int]:
        """Return line and column of the nearest location in the file."""
        location = self._location(path, key=True)
        return location.line, location.column

    def source_value(self, path: KeyPath) -> Any:
        """Return the value at an existing path, before interpolation."""
        value = self.data
        for part in path:
            value = value[part]
        return self._source_value(value, path)

    def join_expressions(self, items: list[Any], path: KeyPath) -> None:
        """Join the items of a list of SQL expressions that YAML has split at a comma, in place.

        `[days(ts), bucket(4, id)]` without quotes is a list of three texts: `days(ts)`, `bucket(4`
        and `id)`. No expression has unbalanced parentheses, so an item that leaves one open goes on
        until the item that closes it. A parenthesis that is never closed is left as it is.
        """
        texts = [self._item_text(item, (*path, n)) for n, item in enumerate(items)]
        groups = _balanced_groups(texts)
        if len(groups) == len(items):
            return
        locations = [self.values[(*path, n)] for n in range(len(items))]
        references = [self.references.pop((*path, n), None) for n in range(len(items))]
        joined = []
        for index, group in enumerate(groups):
            first = items[group[0]]
            joined.append(first if len(group) == 1 else ", ".join(texts[n] or "" for n in group))
            self.values[(*path, index)] = locations[group[0]]
            if any(references[n] for n in group):
                sources = (references[n] or texts[n] or "" for n in group)
                self.references[(*path, index)] = ", ".join(sources)
        items[:] = joined

    def _item_text(self, item: Any, path: KeyPath) -> str | None:
        """Return an item of a list as it is written; None for a list or a mapping."""
        return item if isinstance(item, str) else self.plain_texts.get(path)

    def _source_value(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: self._source_value(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._source_value(item, (*path, n)) for n, item in enumerate(value)]
        return self.references.get(path, value)

    def _location(self, path: KeyPath, *, key: bool) -> LineColumn:
        for end in range(len(path), 0, -1):
            known = path[:end]
            # Report a missing key at the key of the block that should contain it.
            first, second = (
                (self.keys, self.values)
                if key or end < len(path)
                else (
                    self.values,
                    self.keys,
                )
            )
            if known in first or known in second:
                return first.get(known) or second[known]
        return LineColumn(1, 1)


def _balanced_groups(texts: list[str | None]) -> list[list[int]]:
    """Group the indices of texts whose parentheses balance only when they are joined."""
    groups: list[list[int]] = []
    index = 0
    while index < len(texts):
        depth, end = open_parentheses(texts[index] or ""), index + 1
        while depth > 0 and end < len(texts) and texts[end] is not None:
            depth += open_parentheses(texts[end] or "")
            end += 1
        if depth != 0:
            end = index + 1
        groups.append(list(range(index, end)))
        index = end
    return groups


def open_parentheses(text: str) -> int:
    """Return how many parentheses a text opens and does not close; negative if it closes more."""
    bare = QUOTED.sub("", text)
    return bare.count("(") - bare.count(")")


def dotted(path: KeyPath) -> str:
    """Write a path as `sinks.lake.config.key_fields[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def resolve_plain(text: str) -> Any:
    """Return what an unquoted scalar means in YAML 1.2's core schema; dates stay text."""
    if text in NULLS:
        return None
    if text in BOOLS:
        return BOOLS[text]
    if INT.match(text):
        return int(text) if len(text) < 100 else text
    return float(text) if FLOAT.match(text) else text


def read(text: str, name: str) -> Tree:
    """Read a YAML text. Syntax errors are raised; other faults are listed in the tree.

    Raises:
        IcestreamError: invalid or unsupported YAML.
    """
    tree = Tree(name)
    yaml = YAML(typ="safe", pure=True)
    try:
        _Builder(tree).build(yaml.parse(text))
    except MarkedYAMLError as exc:
        raise _syntax_error(exc, name, text) from exc
    except YAMLError as exc:
        raise IcestreamError(f"invalid YAML: {str(exc).splitlines()[0]}", where=name) from exc
    return tree


def _syntax_error(exc: MarkedYAMLError, name: str, text: str) -> IcestreamError:
    mark = exc.problem_mark or exc.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    problem = str(exc.problem or exc.context)
    if r"'\t'" in problem:
        return IcestreamError(
            "tab character where YAML allows only spaces",
            where=where,
            todo="Indent with spaces, e.g. two per level.",
        )
    context = f" ({exc.context})" if exc.context and exc.problem else ""
    lines = text.splitlines()
    todo = "Check this line and the one before it: indentation, colons, quotes, brackets."
    if mark and mark.line < len(lines) and "${" in lines[mark.line] and "flow" in context:
        todo = "Inside `[...]` and `{...}`, put `${NAME}` in quotes."
    elif mark and mark.line < len(lines) and "(" in lines[mark.line] and "flow" in context:
        todo = (
            "Inside `[...]` and `{...}`, put an expression that contains quotes in double quotes."
        )
    return IcestreamError(f"invalid YAML: {problem}{context}", where=where, todo=todo)


class _Anchored(NamedTuple):
    """A value that is used in several places, and the path at which it was written."""

    value: Any
    path: KeyPath


def _items(value: Any) -> Iterable[tuple[str | int, Any]]:
    """Return the parts of a mapping or a list, each with its key or index."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _merged_mappings(value: Any) -> dict[KeyPath, dict[str, Any]] | None:
    """Return the mappings that `<<` merges, each with its path in the value; None if not any."""
    if isinstance(value, dict):
        return {(): value}
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return {(number,): item for number, item in enumerate(value)}
    return None


class _Builder:
    """Turns YAML events into data; recursion is bounded by `MAX_DEPTH`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.anchors: dict[str, _Anchored] = {}
        self.count = 0

    def build(self, events: Iterator[Any]) -> None:
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refuse(event, "the file holds more than one YAML document")
            elif isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent):
                self.tree.data = self._node(event, events, ())

    def _node(self, event: Any, events: Iterator[Any], path: KeyPath) -> Any:
        self._count(event, path)
        self.tree.values[path] = _location(event)
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        if event.tag is not None and str(event.tag) != "!":
            raise self._refuse(event, f"the YAML tag {str(event.tag)!r} is not allowed here")
        value: Any
        if isinstance(event, ScalarEvent):
            plain = event.implicit[0] and event.style is None
            value = resolve_plain(event.value) if plain else event.value
            if not isinstance(value, str):
                self.tree.plain_texts[path] = event.value
        elif isinstance(event, SequenceStartEvent):
            value = self._sequence(events, path)
        else:
            value = self._mapping(events, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(value, path)
        return value

    def _count(self, event: Any, path: KeyPath) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise self._refuse(event, f"the file holds more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            raise self._refuse(event, f"the file is nested more than {MAX_DEPTH} levels deep")

    def _sequence(self, events: Iterator[Any], path: KeyPath) -> list[Any]:
        items: list[Any] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            items.append(self._node(event, events, (*path, len(items))))
        return items

    def _mapping(self, events: Iterator[Any], path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, _Anchored] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            if not isinstance(event, ScalarEvent):
                raise self._refuse(event, "a key must be a text, not a list, mapping or alias")
            key = event.value
            inner = (*path, key)
            first = self.tree.keys.get(inner)
            if first is None:
                self.tree.keys[inner] = _location(event)
            value = self._node(next(events), events, inner)
            mappings = _merged_mappings(value) if key == "<<" and event.style is None else None
            if mappings is not None:
                for place, mapping in mappings.items():
                    for name, item in mapping.items():
                        merged.setdefault(name, _Anchored(item, (*inner, *place, name)))
                continue
            if key in found and first is not None:
                self._report_duplicate(event, inner, first)
                continue
            found[key] = value
        for name in merged.keys() - found.keys():
            self._place(merged[name].value, (*path, name), merged[name].path)
        return {name: one.value for name, one in merged.items()} | found

    def _place(self, value: Any, path: KeyPath, origin: KeyPath) -> None:
        """Record for a merged value what is recorded for the value that it was merged from."""
        self.tree.values[path] = self.tree.values[origin]
        if origin in self.tree.plain_texts:
            self.tree.plain_texts[path] = self.tree.plain_texts[origin]
        for part, item in _items(value):
            self._place(item, (*path, part), (*origin, part))

    def _alias(self, event: AliasEvent, path: KeyPath) -> Any:
        name = event.anchor
        if name not in self.anchors:
            raise self._refuse(event, f"the alias '*{name}' has no anchor before it")
        return self._copy(*self.anchors[name], event, path)

    def _copy(self, value: Any, origin: KeyPath, event: Any, path: KeyPath) -> Any:
        """Expand an alias value by value, so that the bounds hold for what it expands to."""
        self._count(event, path)
        self.tree.values.setdefault(path, _location(event))
        if origin in self.tree.plain_texts:
            self.tree.plain_texts[path] = self.tree.plain_texts[origin]
        copies = {
            part: self._copy(item, (*origin, part), event, (*path, part))
            for part, item in _items(value)
        }
        if isinstance(value, list):
            return list(copies.values())
        return copies if isinstance(value, dict) else value

    def _report_duplicate(self, event: Any, path: KeyPath, first: LineColumn) -> None:
        location = _location(event)
        self.tree.problems.append(
            IcestreamError(
                f"duplicate key {path[-1]!r}",
                where=f"{self.tree.name}:{location.line}:{location.column} {dotted(path)}",
                todo=f"It is also at line {first.line}; keep one of them.",
            )
        )

    def _refuse(self, event: Any, what: str) -> IcestreamError:
        location = _location(event)
        return IcestreamError(what, where=f"{self.tree.name}:{location.line}:{location.column}")


def _location(event: Any) -> LineColumn:
    return LineColumn(event.start_mark.line + 1, event.start_mark.column + 1)
