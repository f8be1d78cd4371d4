"""What Nessie keeps under a key, and the operations of a commit, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from icestream.catalogs.nessie_api import Content, Found, Key

TABLE, NAMESPACE, VIEW = "ICEBERG_TABLE", "NAMESPACE", "ICEBERG_VIEW"


def is_kind(content: Content | None, kind: str) -> bool:
    """Tell whether there is something of that kind."""
    return content is not None and content["type"] == kind


def require_table(key: Key, found: Found) -> Content:
    """Return the table that a key stands for, which must be there."""
    content = found.contents.get(key)
    if content is None or not is_kind(content, TABLE):
        raise NoSuchTableError(f"table {shown(key)} does not exist")
    return content


def refuse_taken(key: Key, found: Found) -> None:
    """Refuse to make something whose name is taken, or that would lie nowhere."""
    if key in found.contents:
        raise TableAlreadyExistsError(f"table {shown(key)} already exists")
    if not is_kind(found.contents.get(key[:-1]), NAMESPACE):
        raise NoSuchNamespaceError(f"namespace {shown(key[:-1])} does not exist")


def table_content(metadata: TableMetadata, location: str) -> Content:
    """Return what Nessie keeps of a table; Java's client goes by every one of the numbers."""
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
    """Return what Nessie keeps of a namespace."""
    return {"type": NAMESPACE, "elements": list(key), "properties": properties}


def putting(key: Key, content: Content) -> dict[str, Any]:
    """Return the operation that puts something under a key."""
    return {"type": "PUT", "key": {"elements": list(key)}, "content": content}


def deletion(key: Key) -> dict[str, Any]:
    """Return the operation that takes away what lies under a key."""
    return {"type": "DELETE", "key": {"elements": list(key)}}


def shown(key: Key) -> str:
    """Return a key for messages."""
    return repr(".".join(key))
