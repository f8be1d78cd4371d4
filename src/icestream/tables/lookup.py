"""Finds a table by the name that a user typed, in the catalogs of a file."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from icestream.errors import ConnectorError
from icestream.plan.pipeline_tables import is_missing_catalog_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog
    from icestream.plan.pipeline_tables import PipelineTable

MAX_SHOWN_NAMES = 10


@dataclass(frozen=True)
class NamedTable:
    """A table and its full name, which starts with the catalog."""

    catalog: str
    identifier: tuple[str, ...]
    table: Table

    @property
    def name(self) -> str:
        return ".".join((self.catalog, *self.identifier))


def find_table(
    parts: Sequence[str],
    catalogs: Mapping[str, Catalog[Any]],
    known: Callable[[], Iterable[PipelineTable]] = tuple,
) -> NamedTable:
    """Return the table that `parts` name: namespace and table, or catalog, namespace and table.

    Args:
        parts: the name.
        catalogs: the catalogs to look in.
        known: returns the tables of the file's pipelines, for suggestions by their source's names.

    Raises:
        ConnectorError: no catalog has such a table, or several have one.
    """
    matches = [
        NamedTable(catalog, identifier, table)
        for catalog, identifier in _interpretations(tuple(parts), catalogs)
        if (table := load_table((catalog, *identifier), catalogs)) is not None
    ]
    if len(matches) == 1:
        return matches[0]
    name = ".".join(parts)
    if not matches:
        todo = _suggest(name, catalogs, known())
        raise ConnectorError(f"no table is called {name!r}", todo=todo)
    names = ", ".join(match.name for match in matches)
    raise ConnectorError(
        f"{len(matches)} catalogs have a table called {name!r}",
        todo=f"Include the catalog's name: {names}.",
    )


def load_table(parts: Sequence[str], catalogs: Mapping[str, Catalog[Any]]) -> Table | None:
    """Return a table by its full name, which starts with the catalog; None if there is none."""
    catalog = catalogs[parts[0]]
    return None if is_missing_catalog_file(catalog) else catalog.find_table(tuple(parts[1:]))


def table_names(catalogs: Mapping[str, Catalog[Any]]) -> list[str]:
    """Return the full name of every table of the catalogs, sorted."""
    return sorted(
        ".".join((name, *identifier))
        for name, catalog in catalogs.items()
        if not is_missing_catalog_file(catalog)
        for identifier in _tables(catalog.client())
    )


def _interpretations(
    parts: tuple[str, ...], catalogs: Mapping[str, Catalog[Any]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    if len(parts) > 2 and parts[0] in catalogs:
        yield parts[0], parts[1:]
    if len(parts) > 1:
        for catalog in catalogs:
            yield catalog, parts


def _tables(client: PyIcebergCatalog) -> Iterator[tuple[str, ...]]:
    queue = list(client.list_namespaces())
    seen = set(queue)
    while queue:
        namespace = queue.pop()
        yield from client.list_tables(namespace)
        for inner in client.list_namespaces(namespace):
            # Some catalogs return the full name of inner namespaces, some only the last part.
            full = inner if inner[: len(namespace)] == namespace else (*namespace, *inner)
            if full not in seen:
                seen.add(full)
                queue.append(full)


def _suggest(
    name: str, catalogs: Mapping[str, Catalog[Any]], known: Iterable[PipelineTable]
) -> str:
    names = table_names(catalogs)
    if not names:
        return "There are no tables yet. `icestream run` creates those that the file names."
    # With the catalog, without it, and the last part alone.
    short_names = [full.partition(".")[2] for full in names]
    by_name = {short: short for short in short_names} | {full: full for full in names}
    by_name |= {short.rpartition(".")[2]: short for short in short_names}
    for one in known:
        if one.source is not None:
            by_name.setdefault(".".join(one.source), ".".join(one.identifier))
    close = get_close_matches(name, by_name, n=1)
    hint = f"Did you mean {by_name[close[0]]!r}? " if close else ""
    more = f", and {len(names) - MAX_SHOWN_NAMES} more" if len(names) > MAX_SHOWN_NAMES else ""
    return f"{hint}Available: {', '.join(names[:MAX_SHOWN_NAMES])}{more}."
