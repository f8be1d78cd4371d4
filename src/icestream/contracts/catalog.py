"""The catalog contract: one block of YAML that configures both Spark and PyIceberg."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from icestream.contracts.source import OptionsT
from icestream.contracts.storage import installed_stores, store_of_scheme
from icestream.errors import IcestreamError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyiceberg.table import Table

    from icestream.contracts.faults import CheckStep
    from icestream.contracts.options import Options
    from icestream.contracts.storage import Storage


ResultT = TypeVar("ResultT")
Identifier: TypeAlias = tuple[str, ...]
"""A table's full name from the outside in: the levels of its namespace, then the table."""

# The longest file name of most file systems, and the longest name that a SQL catalog stores.
MAX_NAME_BYTES = 255
_INVALID_NAMES = (
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
    """Return why a name is invalid for a table or namespace; None if it is valid.

    Args:
        name: one level of an identifier.
    """
    for pattern, problem in _INVALID_NAMES:
        if pattern.search(name):
            return problem
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"it is longer than {MAX_NAME_BYTES} bytes"
    return None


def shorten(name: str) -> str:
    """Return a name for a message, at most 60 characters of it."""
    return name if len(name) <= 60 else name[:57] + "..."


def folder_name(identifier: Identifier) -> str:
    """Return the name of a table's own local folder."""
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
    return _quote(parts, "`")


def quote_for_duckdb(*parts: str) -> str:
    """Return a name for DuckDB, and for every other SQL that keeps to the standard's quotes.

    Args:
        *parts: the name from the outside in, e.g. database, schema and table.
    """
    return _quote(parts, '"')


def _quote(parts: tuple[str, ...], mark: str) -> str:
    return ".".join(mark + part.replace(mark, mark * 2) + mark for part in parts)


class PicklableLock:
    """A lock that pickles as a new one, held while pipelines of one process create a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return (PicklableLock, ())


@dataclass(frozen=True)
class Abilities:
    """What a kind of catalog can do beyond keeping tables by name.

    Attributes:
        nested_namespaces: namespaces may contain namespaces.
        catalog_branches: it has branches and tags that span all its tables.
        vends_credentials: it can hand out short-lived credentials for a table's files.
        case_sensitive: names that differ only in case are different names.
    """

    nested_namespaces: bool = False
    catalog_branches: bool = False
    vends_credentials: bool = False
    case_sensitive: bool = True

    def stored_name(self, identifier: Identifier) -> Identifier:
        """Return an identifier as the catalog stores it: in lower case where it ignores case."""
        return identifier if self.case_sensitive else tuple(part.lower() for part in identifier)


class Catalog(ABC, Generic[OptionsT]):
    """Finds tables by name.

    Building a catalog opens no file and no connection; `client` connects. Spark and PyIceberg use
    the same `name`, since the SQL catalogs store it with each table.

    Args:
        name: the catalog's name in SQL and in the store itself.
        options: the catalog block of the file.
        storage: the store of its tables' files; None if only the catalog knows it.
    """

    options_type: ClassVar[type[Options]]
    abilities: ClassVar[Abilities] = Abilities()

    def __init__(self, name: str, options: OptionsT, storage: Storage | None = None) -> None:
        self.name = name
        self.options = options
        self.storage = storage
        # One lock per catalog: a server that hangs must not block the others.
        self._client_lock = PicklableLock()

    @abstractmethod
    def identity(self) -> str:
        """Name the catalog for messages, free of secrets: `jdbc sqlite lake/catalog.db`."""

    @abstractmethod
    def jars(self) -> tuple[str, ...]:
        """Return the Maven coordinates that Spark must load, pinned in the jar lock."""

    @abstractmethod
    def spark_settings(self) -> dict[str, str]:
        """Return the Spark settings below `spark.sql.catalog.NAME.`, secrets included."""

    @abstractmethod
    def pyiceberg_properties(self) -> dict[str, str]:
        """Return PyIceberg's properties for the same catalog, storage included."""

    @abstractmethod
    def client(self) -> PyIcebergCatalog:
        """Return the PyIceberg catalog, created on first use and then reused.

        Raises:
            UnreachableError: the catalog does not answer.
            RefusedError: credentials or permissions were refused.
        """

    def table_identifier(self, namespace: tuple[str, ...], table: str) -> Identifier:
        """Return the identifier of a table, as this catalog stores it.

        Raises:
            PlanError: no table of this catalog can have that name.
        """
        self.validate_namespace(namespace)
        problem = name_problem(table)
        if problem is not None:
            raise PlanError(
                f"{shorten(table)!r} is not a valid table name: {problem}",
                todo="Choose another name.",
            )
        return self.abilities.stored_name((*namespace, table))

    def validate_namespace(self, namespace: tuple[str, ...]) -> None:
        """Refuse a namespace that this kind of catalog cannot have.

        Raises:
            PlanError: a level has an invalid name, or the namespace is nested and the catalog has
                only one level.
        """
        for level in namespace:
            problem = name_problem(level)
            if problem is not None:
                raise PlanError(
                    f"{shorten(level)!r} is not a valid namespace: {problem}",
                    todo="Choose another name.",
                )
        if len(namespace) > 1 and not self.abilities.nested_namespaces:
            raise PlanError(
                f"the namespace {'.'.join(namespace)!r} lies in another one, and the catalog "
                f"{self.name!r} ({self.identity()}) has one level of them",
                todo=f"Name it e.g. {'_'.join(namespace)!r}, or use another kind of catalog.",
            )

    def required_packages(self) -> dict[str, str]:
        """Return what to install for each package that `client` needs, by the name to import."""
        return {} if self.storage is None else self.storage.required_packages()

    def environment(self) -> dict[str, str]:
        """Return variables that libraries read from the process's environment."""
        return {} if self.storage is None else self.storage.environment()

    def chain_variables(self) -> tuple[str, ...]:
        """Return variables that would change the credentials of the catalog or its store."""
        return () if self.storage is None else self.storage.chain_variables()

    def call(self, request: Callable[[], ResultT]) -> ResultT:
        """Return the result of a request to `client`; raise its faults as icestream errors."""
        return request()

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        """Return a table for reading, or None if there is none of that name."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.client().load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def has_namespace(self, namespace: tuple[str, ...]) -> bool:
        """Tell whether a namespace exists."""
        return self.client().namespace_exists(namespace)

    def find_location(
        self,
        namespace: tuple[str, ...],  # noqa: ARG002
        table: str | None,  # noqa: ARG002
        *,
        create: bool,  # noqa: ARG002
    ) -> str | None:
        """Ask the catalog where a table's files are, or will be; None if it does not say.

        Called before Spark starts, for a catalog without `storage`: Spark loads a store's jars
        only then.

        Args:
            namespace: the table's namespace.
            table: its name; None if rows name the tables.
            create: whether a run that starts now may create the namespace.
        """
        return None

    def require_storage(self, location: str, where: str) -> None:
        """Refuse a location in another store than the catalog's: its jars are not loaded.

        Args:
            location: the location of a table.
            where: the table, for the message.

        Raises:
            PlanError: it is.
        """
        scheme = location.partition("://")[0].lower()
        store = store_of_scheme(scheme)
        if store is None or store.options_type is None:
            return
        block, known = store.kind, self.storage
        if known is not None and known.covers(location):
            return
        if known is None:
            raise PlanError(
                f"its files are in {scheme}://, which the catalog did not say before the table "
                "existed, so Spark runs without that store's jars",
                where=where,
                todo="Run again: the store is known now. To set it in the file, add "
                f"`{block}: {{}}` to the block of catalog {self.name!r}, with the keys that the "
                "store needs.",
            )
        raise PlanError(
            f"its files are in {scheme}://, but the store of catalog {self.name!r} is "
            f"{known.kind!r}",
            where=where,
            todo=f"A catalog has one store. Add `{block}: {{}}` to its block, in place of "
            f"`{known.kind}`, with the keys that the store needs.",
        )

    def explain(self, text: str, where: str) -> IcestreamError | None:
        """Turn a fault of the catalog or its store into an icestream error; None if it is unknown.

        Args:
            text: the fault and its causes, from `contracts.faults.exception_text`.
            where: the location, for the message.
        """
        for store in installed_stores().values():
            if store.missing_jars is not None and re.search(store.missing_jars, text):
                try:
                    self.require_storage(f"{store.schemes[0]}://", where)
                except PlanError as exc:
                    return exc
        return None if self.storage is None else self.storage.explain(text, where)

    def check(self) -> Iterator[CheckStep]:
        """Check that the catalog can be used, step by step."""
        yield from ()

    def checks_storage(self) -> bool:
        """Tell whether `check` tests the store; it can't if only the server knows the location."""
        return False

    def close(self) -> None:
        """Close the client's connections. May be called more than once."""
