"""Change rows: the columns that tell the sink what a row does, and that it does not store.

A change source, or a field named by `op_field`, marks the rows that are deletes. A source that
receives a row without some of its columns (PostgreSQL omits large values that did not change)
lists them, so that the table keeps its values.

A source of changes to many tables yields blocks: record batches of one table each, in the order in
which the changes happened. The metadata of a block's Arrow schema holds its `ChangeSchema`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from icestream.contracts.decoder import Records
    from icestream.contracts.sink import WrittenFile

# What a change does, as text: one of `DELETES`, or `TOMBSTONE`, deletes the row with its key;
# `TRUNCATE` deletes every row of the table and carries no values; anything else inserts or updates.
OP = "__op"
TRUNCATE = "t"

# A list of column names: those that the row was sent without. Absent or empty for a whole row.
# With `missing_fields: keep`, rows of plain streams have it too.
UNCHANGED_COLUMNS = "__unsent"

# The values of `op_field` that delete a row, in any case.
DELETES = ("d", "delete", "deleted")

# The `OP` of a record without a value: it deletes the row of its key if that is still there, and is
# never a row of its own, since the delete has mostly come before it. Only in blocks of a change
# source, and not one of `DELETES`: in a field of `op_field`, it means nothing.
TOMBSTONE = "__tombstone"

# Metadata of an Arrow field: the source's permanent id of the column, whatever its name.
COLUMN_ID = b"icestream.id"
_CHANGE_SCHEMA = b"icestream.shape"
_NULLED = b"icestream.nulled"


@dataclass(frozen=True)
class ChangeSchema:
    """The table, key and kind of the rows in a block of changes.

    Attributes:
        table: the source's own names, outermost first: `("public", "orders")`.
        key: the columns that identify a row; empty for an append-only table.
        is_snapshot: the rows come from a snapshot, not from the log: no key occurs twice, no row
            is a delete, and none is in the table yet. Such a block has neither `OP` nor
            `UNCHANGED_COLUMNS`.
        is_first: these are the first rows of a snapshot, which replaces the rows of the table.
        is_whole: the list of columns is complete, so a column that is missing was dropped. Only for
            a source that yields the changes of a table in one order.
        version: of two schemas of a table, the one with the greater version is newer.
        is_tombstones: all rows are tombstones, which mean nothing to a table that does not exist.
        source_bytes: about how large the table is in the source, for the first rows of a snapshot:
            a sink may partition a large table when it creates it. None if it is unknown.
        is_filtered: rows of the source may be missing from the table because a transform or an
            expectation left them out. A change of such a row must have all of its values.
    """

    table: tuple[str, ...]
    key: tuple[str, ...] = ()
    is_snapshot: bool = False
    is_first: bool = False
    is_whole: bool = True
    version: int = 0
    is_tombstones: bool = False
    source_bytes: int | None = None
    is_filtered: bool = False

    def on(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns with this schema in their metadata."""
        metadata = {**(columns.metadata or {}), _CHANGE_SCHEMA: json.dumps(asdict(self)).encode()}
        return columns.with_metadata(metadata)


def change_schema_of(columns: pa.Schema) -> ChangeSchema:
    """Return the change schema in the metadata of a block's columns."""
    stored = json.loads((columns.metadata or {})[_CHANGE_SCHEMA])
    return ChangeSchema(**{**stored, "table": tuple(stored["table"]), "key": tuple(stored["key"])})


def is_block(columns: pa.Schema) -> bool:
    """Tell whether columns are those of a block of changes."""
    return _CHANGE_SCHEMA in (columns.metadata or {})


def has_no_row(ops: pa.Array) -> pa.Array:
    """Tell for each value of `OP` whether the change carries no row: a delete or a truncate."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.array([*DELETES, TOMBSTONE, TRUNCATE])
    return pc.is_in(pc.utf8_lower(ops), value_set=kinds)


def unchanged_columns(absent: Mapping[str, npt.NDArray[np.bool_]], rows: int) -> pa.Array:
    """Return the column `UNCHANGED_COLUMNS`, from which rows lack which column."""
    import numpy as np
    import pyarrow as pa

    if not absent:
        return pa.nulls(rows, pa.list_(pa.string()))
    is_absent = np.stack(list(absent.values()), axis=1)
    counts = is_absent.sum(axis=1)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    names = pa.array(list(absent), pa.string()).take(pa.array(np.nonzero(is_absent)[1]))
    return pa.ListArray.from_arrays(offsets, names, mask=pa.array(counts == 0))


def with_nulled_counts(block: pa.RecordBatch, nulled: Mapping[str, int]) -> pa.RecordBatch:
    """Return a block that records how many values of each column no type could hold."""
    if not nulled:
        return block
    metadata = {**(block.schema.metadata or {}), _NULLED: json.dumps(dict(nulled)).encode()}
    return block.replace_schema_metadata(metadata)


def nulled_counts(columns: pa.Schema) -> dict[str, int]:
    """Return the counts that `with_nulled_counts` recorded for a block with these columns."""
    counts: dict[str, int] = json.loads((columns.metadata or {}).get(_NULLED, b"{}"))
    return counts


@dataclass(frozen=True)
class DecodedChanges:
    """The outcome of decoding records into changes.

    Attributes:
        blocks: the changes in their order, each block of one table.
        bad: index and reason of each record that could not be decoded.
        ignored: tombstones by topic that were left out because their table is unknown.
        records: for each block, the index of the record of each row; empty if that is unknown.
    """

    blocks: Sequence[pa.RecordBatch]
    bad: Sequence[tuple[int, str]] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    records: Sequence[npt.NDArray[np.int64]] = ()


class ChangeDecoder(ABC):
    """Turns encoded records into changes to many tables.

    Built on the driver, pickled, and used in many tasks at once; it holds options, never
    connections.

    Attributes:
        records_absent_fields: whether each row lists, in `UNCHANGED_COLUMNS`, the columns for which
            its record has no field. The engine sets it if the sink needs it.
    """

    records_absent_fields: bool = False

    @abstractmethod
    def decode_changes(self, records: Records) -> DecodedChanges:
        """Decode records into blocks. Never raises for what a record holds."""


class NewChangeSchemasError(IcestreamError):
    """Blocks arrived that their tables are not prepared for.

    Raised in a task by the sink's writer. The driver prepares the tables, and the batch is read
    again.

    Args:
        schemas: the columns of such blocks, in order of arrival.
        files: the files written until then, which are discarded.
    """

    def __init__(self, schemas: Sequence[pa.Schema], files: Sequence[WrittenFile] = ()) -> None:
        super().__init__(f"{len(schemas)} row schemas that the tables are not prepared for")
        self.schemas = tuple(schemas)
        self.files = tuple(files)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.schemas, self.files))
