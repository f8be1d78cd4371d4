"""Texts of whole rows as the blocks of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.sources.postgres_cdc.relation import Relation
    from icestream.sources.postgres_cdc.types import TypeCatalog


def snapshot_block(
    relation: Relation, types: TypeCatalog, texts: Sequence[pa.Array], *, first: bool = False
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Return a block of rows that were read as they are.

    Args:
        relation: the table.
        types: which knows the types of all its columns.
        texts: strings as PostgreSQL prints them, one array a column of the relation.
        first: whether they replace what the Iceberg table holds.

    Returns:
        The block with `block_columns(relation, types, snapshot=True, first=first)`, and how many
        values of which columns are null because Arrow's type can't hold them.
    """
    raise NotImplementedError


def row_keys(relation: Relation, texts: Sequence[pa.Array]) -> pa.Array:
    """Return a key for each row of a table without one: a hash over its values.

    A null adds nothing to it, so that a column that is added later leaves the keys of older rows
    as they are; so does renaming one.
    """
    raise NotImplementedError
