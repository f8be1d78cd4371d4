"""What a mirrored table is like where the file does not say: by its own key and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.catalog import shorten
from icestream.contracts.changes import OP
from icestream.errors import SchemaMismatchError
from icestream.sinks.iceberg.fanout.naming import TableNaming

if TYPE_CHECKING:
    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.changes import Shape
    from icestream.sinks.iceberg.mirror.columns import Cover
    from icestream.sinks.iceberg.options import IcebergOptions

# What a change did, in a table that has a row of every change.
OP_NAME = "_op"


def identifier_of(options: IcebergOptions, shape: Shape, catalog: Catalog[Any]) -> Identifier:
    """Return the table that mirrors one of the source: its own names, unless the file says.

    Raises:
        SchemaMismatchError: there can't be a table of that name.
    """
    namespace = tuple(options.namespace) or shape.table[:-1]
    table = options.table or shape.table[-1]
    try:
        return TableNaming.of(options, catalog).identifier(namespace, table)
    except ValueError as exc:
        target = shorten(".".join((*namespace, table)))
        raise SchemaMismatchError(
            f"table {shorten('.'.join(shape.table))!r} of the source cannot be mirrored: "
            f"{target!r} {exc}",
            todo="Rename it at the source, or leave it out of the tables that the source reads. "
            "If it is the only one, name its target with `namespace` and `table`.",
        ) from None


def op_name_of(options: IcebergOptions) -> str | None:
    """Return the column that tells what a change did; None if rows are mirrored."""
    return OP_NAME if _given(options, "commit_mode") and options.commit_mode == "append" else None


def table_options(options: IcebergOptions, cover: Cover) -> IcebergOptions:
    """Return the options of one mirrored table.

    Raises:
        SchemaMismatchError: rows are to be upserted, and nothing tells them apart.
    """
    key = _key(options, cover.shape)
    given: dict[str, Any] = {"key_fields": key, "schema_evolution": _evolution(options)}
    if _commit_mode(options, key, cover.shape) == "upsert":
        given |= {"commit_mode": "upsert", "op_field": OP}
    else:
        given |= {"commit_mode": "append", "key_fields": ()}
    if isinstance(options.partitioning, str) and not options.partition_fields:
        given |= _partitioning(options, key, cover.columns)
    return options.model_copy(update=given)


def _key(options: IcebergOptions, shape: Shape) -> tuple[str, ...]:
    if options.key_fields and shape.key and set(options.key_fields) != set(shape.key):
        name = ".".join(shape.table)
        raise SchemaMismatchError(
            f"`key_fields` are {', '.join(options.key_fields)}, and the key of table {name!r} of "
            f"the source is {', '.join(shape.key)}: of a deleted row it tells nothing else",
            todo="Take `key_fields` out.",
        )
    return options.key_fields or shape.key


def _evolution(options: IcebergOptions) -> str:
    return options.schema_evolution if _given(options, "schema_evolution") else "full"


def _commit_mode(options: IcebergOptions, key: tuple[str, ...], shape: Shape) -> str:
    if _given(options, "commit_mode") and options.commit_mode == "append":
        return "append"
    if not key and _given(options, "commit_mode"):
        name = ".".join(shape.table)
        raise SchemaMismatchError(
            f"commit_mode 'upsert' needs a key, and table {name!r} of the source has none",
            todo=f"Give it a primary key, or `ALTER TABLE {name} REPLICA IDENTITY FULL`, or name "
            "the columns that tell its rows apart in `key_fields`. Without `commit_mode`, tables "
            "without a key are appended to.",
        )
    # Of a table without a key, a database only ever tells inserts.
    return "upsert" if key else "append"


def _partitioning(
    options: IcebergOptions, key: tuple[str, ...], columns: pa.Schema
) -> dict[str, Any]:
    if _given(options, "partitioning") and options.partitioning != "bucket":
        return {}
    for name in (name for name in key if name in columns.names):
        if _can_be_bucketed(columns.field(name).type):
            return {"partitioning": "bucket", "partition_fields": (name,)}
    return {"partitioning": "none"}


def _can_be_bucketed(kind: pa.DataType) -> bool:
    return not (pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _given(options: IcebergOptions, name: str) -> bool:
    return name in options.model_fields_set
