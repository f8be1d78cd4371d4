"""A PyIceberg catalog over Nessie's own API.

PyIceberg has none, and the Iceberg REST endpoint of a Nessie server shows only one snapshot of a
table.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import EMPTY_DICT

from icestream.catalogs.nessie_api import BranchContents, ConflictError, Key, NessieApi

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.view import View

    from icestream.catalogs.nessie_api import BranchContents, Content, Key


TABLE, NAMESPACE, VIEW = "ICEBERG_TABLE", "NAMESPACE", "ICEBERG_VIEW"


def is_kind(content: Content | None, kind: str) -> bool:
    """Tell whether a content exists and is of that kind."""
    return content is not None and content["type"] == kind


def require_table(key: Key, branch: BranchContents) -> Content:
    """Return the content of a table; raise `NoSuchTableError` if it does not exist."""
    content = branch.contents.get(key)
    if content is None or not is_kind(content, TABLE):
        raise NoSuchTableError(f"table {quote_key(key)} does not exist")
    return content


def require_free_key(key: Key, branch: BranchContents) -> None:
    """Refuse a key that is in use, or whose namespace does not exist."""
    if key in branch.contents:
        raise TableAlreadyExistsError(f"table {quote_key(key)} already exists")
    if not is_kind(branch.contents.get(key[:-1]), NAMESPACE):
        raise NoSuchNamespaceError(f"namespace {quote_key(key[:-1])} does not exist")


def table_content(metadata: TableMetadata, location: str) -> Content:
    """Return what Nessie stores about a table; Java's client relies on all of the ids."""
    snapshot = metadata.current_snapshot_id
    return {
        "type": TABLE,
        "metadataLocation": location,
        "snapshotId": -1 if snapshot is None else snapshot,
        "schemaId": metadata.current_schema_id,
        "specId": metadata.default_spec_id,
        "sortOrderId": metadata.default_sort_order_id,
    }


def namespace_content(key: Key, properties: dict[str, str]) -> Content:
    """Return what Nessie stores about a namespace."""
    return {"type": NAMESPACE, "elements": list(key), "properties": properties}


def put_operation(key: Key, content: Content) -> dict[str, Any]:
    """Return the operation that stores a content under a key."""
    return {"type": "PUT", "key": {"elements": list(key)}, "content": content}


def delete_operation(key: Key) -> dict[str, Any]:
    """Return the operation that deletes a key."""
    return {"type": "DELETE", "key": {"elements": list(key)}}


def quote_key(key: Key) -> str:
    """Return a key for messages."""
    return repr(".".join(key))


Name = str | tuple[str, ...]
# Another branch may still use a dropped table or an expired snapshot.
DEFAULT_PROPERTIES = {"gc.enabled": "false"}


class NessieClient(MetastoreCatalog):
    """The tables and namespaces of one branch."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._api = NessieApi(properties["uri"], properties["ref"], properties.get("token"))

    def ping(self) -> None:
        """Check that the server answers and has the branch."""
        self._api.head()

    def close(self) -> None:
        self._api.close()

    def create_table(
        self,
        identifier: Name,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, str] = EMPTY_DICT,
    ) -> Table:
        key = self.identifier_to_tuple(identifier)
        branch = self._api.contents(key, key[:-1])
        require_free_key(key, branch)
        staged = self._create_staged_table(
            key, schema, location, partition_spec, sort_order, properties
        )
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._put_table(key, staged.metadata, staged.metadata_location, branch)
        return self.load_table(key)

    def register_table(
        self, identifier: Name, metadata_location: str, overwrite: bool = False
    ) -> Table:
        key = self.identifier_to_tuple(identifier)
        branch = self._api.contents(key, key[:-1])
        if not (overwrite and is_kind(branch.contents.get(key), TABLE)):
            require_free_key(key, branch)
        metadata = self._read_metadata(metadata_location)
        self._put_table(key, metadata, metadata_location, branch)
        return self.load_table(key)

    def load_table(self, identifier: Name) -> Table:
        key = self.identifier_to_tuple(identifier)
        return self._table(key, self._api.contents(key))

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        key = table.name()
        branch = self._api.contents(key)
        current = self._table(key, branch) if is_kind(branch.contents.get(key), TABLE) else None
        staged = self._update_and_stage_table(current, key, requirements, updates)
        if current is None or staged.metadata != current.metadata:
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            self._put_table(key, staged.metadata, staged.metadata_location, branch)
        else:
            staged = StagedTable(key, current.metadata, current.metadata_location, current.io, self)
        return CommitTableResponse(
            metadata=staged.metadata, metadata_location=staged.metadata_location
        )

    def drop_table(self, identifier: Name) -> None:
        key = self.identifier_to_tuple(identifier)
        branch = self._api.contents(key)
        require_table(key, branch)
        with _as_commit_failure():
            self._api.commit(f"drop table {quote_key(key)}", [delete_operation(key)], branch.commit)

    def rename_table(self, from_identifier: Name, to_identifier: Name) -> Table:
        old, new = (
            self.identifier_to_tuple(from_identifier),
            self.identifier_to_tuple(to_identifier),
        )
        branch = self._api.contents(old, new, new[:-1])
        require_table(old, branch)
        require_free_key(new, branch)
        changes = [delete_operation(old), put_operation(new, branch.contents[old])]
        with _as_commit_failure():
            self._api.commit(
                f"rename table {quote_key(old)} to {quote_key(new)}", changes, branch.commit
            )
        return self.load_table(new)

    def list_tables(self, namespace: Name) -> list[Key]:
        return self._list(TABLE, namespace)

    def list_views(self, namespace: Name) -> list[Key]:
        return self._list(VIEW, namespace)

    def view_exists(self, identifier: Name) -> bool:
        key = self.identifier_to_tuple(identifier)
        return is_kind(self._api.contents(key).contents.get(key), VIEW)

    def create_namespace(self, namespace: Name, properties: dict[str, str] = EMPTY_DICT) -> None:
        """Create a namespace and its missing parents."""
        key = self.identifier_to_tuple(namespace)
        levels = [key[:depth] for depth in range(1, len(key) + 1)]
        branch = self._api.contents(*levels)
        if key in branch.contents:
            raise NamespaceAlreadyExistsError(f"namespace {quote_key(key)} already exists")
        contents = {
            level: namespace_content(level, {}) for level in levels if level not in branch.contents
        }
        contents[key] = namespace_content(key, dict(properties))
        changes = [put_operation(level, content) for level, content in contents.items()]
        try:
            self._api.commit(f"create namespace {quote_key(key)}", changes, branch.commit)
        except ConflictError as exc:
            if "KEY_EXISTS" in exc.kinds:
                raise NamespaceAlreadyExistsError(
                    f"namespace {quote_key(key)} already exists"
                ) from exc
            raise CommitFailedException(str(exc)) from exc

    def drop_namespace(self, namespace: Name) -> None:
        key = self.identifier_to_tuple(namespace)
        branch = self._namespaces(key)
        try:
            self._api.commit(
                f"drop namespace {quote_key(key)}", [delete_operation(key)], branch.commit
            )
        except ConflictError as exc:
            if "NAMESPACE_NOT_EMPTY" in exc.kinds:
                raise NamespaceNotEmptyError(f"namespace {quote_key(key)} is not empty") from exc
            raise CommitFailedException(str(exc)) from exc

    def list_namespaces(self, namespace: Name = ()) -> list[Key]:
        return self._list(NAMESPACE, namespace)

    def load_namespace_properties(self, namespace: Name) -> dict[str, str]:
        key = self.identifier_to_tuple(namespace)
        return dict(self._namespaces(key).contents[key].get("properties") or {})

    def update_namespace_properties(
        self,
        namespace: Name,
        removals: set[str] | None = None,
        updates: dict[str, str] = EMPTY_DICT,
    ) -> PropertiesUpdateSummary:
        key = self.identifier_to_tuple(namespace)
        branch = self._namespaces(key)
        old = branch.contents[key]
        summary, properties = self._get_updated_props_and_update_summary(
            old.get("properties") or {}, removals, updates
        )
        change = put_operation(key, {**old, "properties": properties})
        with _as_commit_failure():
            self._api.commit(f"update namespace {quote_key(key)}", [change], branch.commit)
        return summary

    def purge_table(self, identifier: Name) -> NoReturn:
        raise NotImplementedError(
            "files of a table in Nessie may be in use on another branch; drop the table, and let "
            "Nessie's GC tool remove them"
        )

    def register_view(self, identifier: Name, metadata_location: str) -> NoReturn:
        raise NotImplementedError("only Spark creates views in Nessie")

    def load_view(self, identifier: Name) -> View:
        raise NotImplementedError("only Spark loads views of Nessie")

    def drop_view(self, identifier: Name) -> None:
        raise NotImplementedError("only Spark drops views of Nessie")

    def _create_staged_table(
        self,
        identifier: Name,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, str] = EMPTY_DICT,
    ) -> StagedTable:
        """Return a table that is not in the catalog yet; PyIceberg's method allows no nesting."""
        key = self.identifier_to_tuple(identifier)
        version: Any = int(properties.get("format-version", "2"))
        location = (location or self._default_location(key)).rstrip("/")
        metadata = new_table_metadata(
            location=location,
            schema=self._convert_schema_if_needed(schema, version),
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties={**DEFAULT_PROPERTIES, **properties},
        )
        provider = load_location_provider(location, properties)
        metadata_location = provider.new_table_metadata_file_location()
        return StagedTable(
            key,
            metadata,
            metadata_location,
            self._load_file_io(properties, metadata_location),
            self,
        )

    def _default_location(self, key: Key) -> str:
        # Two branches may have different tables of one name, and a name may be reused after a drop.
        warehouse = self.properties["warehouse"].rstrip("/")
        return f"{warehouse}/{'/'.join(key)}_{uuid.uuid4()}"

    def _put_table(
        self, key: Key, metadata: TableMetadata, location: str, branch: BranchContents
    ) -> None:
        """Make a metadata file the newest one of a table, which is new or in `branch`."""
        content = table_content(metadata, location)
        if key in branch.contents:
            content["id"] = branch.contents[key]["id"]
        try:
            self._api.commit(
                f"change table {quote_key(key)}", [put_operation(key, content)], branch.commit
            )
        except ConflictError as exc:
            if "KEY_EXISTS" in exc.kinds and key not in branch.contents:
                raise TableAlreadyExistsError(f"table {quote_key(key)} already exists") from exc
            if "NAMESPACE_ABSENT" in exc.kinds:
                raise NoSuchNamespaceError(
                    f"namespace {quote_key(key[:-1])} does not exist"
                ) from exc
            raise CommitFailedException(str(exc)) from exc

    def _table(self, key: Key, branch: BranchContents) -> Table:
        location: str = require_table(key, branch)["metadataLocation"]
        metadata = self._read_metadata(location)
        io = self._load_file_io(metadata.properties, location)
        return Table(key, metadata, location, io, self)

    def _read_metadata(self, location: str) -> TableMetadata:
        io = self._load_file_io(location=location)
        return FromInputFile.table_metadata(io.new_input(location))

    def _namespaces(self, key: Key) -> BranchContents:
        branch = self._api.contents(key)
        if not is_kind(branch.contents.get(key), NAMESPACE):
            raise NoSuchNamespaceError(f"namespace {quote_key(key)} does not exist")
        return branch

    def _list(self, kind: str, namespace: Name) -> list[Key]:
        key = self.identifier_to_tuple(namespace)
        if key:
            self._namespaces(key)
        return sorted(self._api.names(kind, key))


@contextmanager
def _as_commit_failure() -> Iterator[None]:
    try:
        yield
    except ConflictError as exc:
        raise CommitFailedException(str(exc)) from exc
