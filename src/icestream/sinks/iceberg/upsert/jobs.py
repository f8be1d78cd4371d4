"""Plans the match and write passes of an upsert on the driver, and runs each as a Spark job.

Their tasks are in `matching` and `writing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField

from icestream.contracts.reports import run_in_tasks
from icestream.errors import AttentionError
from icestream.sinks.iceberg.partition_terms import parse_sort
from icestream.sinks.iceberg.upsert.key_index import ROW_ID
from icestream.sinks.iceberg.upsert.latest_changes import FROM_TABLE, NOWHERE, OLDEST
from icestream.sinks.iceberg.upsert.matching import MatchTask, balance_files
from icestream.sinks.iceberg.upsert.writing import ROW_ID_NAME, ChunkRows, Donors, WriteTask
from icestream.sinks.iceberg.writer import map_concurrently

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.java import LiveFile
    from icestream.sinks.iceberg.table import TargetTable
    from icestream.sinks.iceberg.upsert.key_index import IndexSettings
    from icestream.sinks.iceberg.upsert.latest_changes import BatchKeys, LatestChanges
    from icestream.sinks.iceberg.upsert.matching import MatchResult
    from icestream.sinks.iceberg.upsert.staging import StagedChunk

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


RANGED = (IntegerType, LongType)


def prune_files(
    files: Sequence[LiveFile], batch: BatchKeys, index: IndexSettings, schema: Schema
) -> list[LiveFile]:
    """Return the files whose bounds include a key of the batch, or that have no bounds.

    Only for keys that are one integer: hashes have no order. With keys that grow over time, such
    as serial numbers, only the newest files remain.
    """
    kind = schema.find_field(index.key_ids[0]).field_type
    if batch.high is not None or not isinstance(kind, RANGED):
        return list(files)
    # As signed numbers: they are sorted as unsigned ones, where negative ones come last.
    keys = np.sort(batch.low.view(np.int64))
    return [file for file in files if _may_hold(file, keys, index.key_ids[0], kind)]


def _may_hold(file: LiveFile, keys: Ints, field: int, kind: IntegerType | LongType) -> bool:
    lower, upper = (_bound(file, side, field, kind) for side in ("lower-bounds", "upper-bounds"))
    if lower is None or upper is None:
        return True
    first = np.searchsorted(keys, lower, side="left")
    return bool(np.searchsorted(keys, upper, side="right") > first)


def _bound(file: LiveFile, side: str, field: int, kind: IntegerType | LongType) -> int | None:
    bounds = file.metadata.get(side)
    if bounds is None or field not in bounds["keys"]:
        return None
    raw = bytes.fromhex(bounds["values"][bounds["keys"].index(field)])
    # A file written before the column was widened has shorter bounds.
    stored = IntegerType() if len(raw) == 4 else kind
    return int(from_bytes(stored, raw))


def match_keys(
    target: TargetTable,
    batch: LatestChanges,
    files: Sequence[LiveFile],
    index: IndexSettings,
    folder: str,
) -> list[MatchResult]:
    """Find the batch's keys in the table, and write delete files for the rows that they replace.

    Args:
        target: the table.
        batch: the keys.
        files: the table's data files.
        index: how keys are looked up.
        folder: where the rows of the batch are staged.
    """
    from pyiceberg.io import load_file_io

    state = target.state
    keys = batch.keys()
    candidates = prune_files(files, keys, index, state.schema)
    missing = [state.schema.find_field(name) for name in batch.donors]
    task = MatchTask(
        batch=keys,
        index=index,
        location=state.location,
        format_version=state.format_version,
        folder=folder,
        missing_columns=Schema(*missing).model_dump_json() if missing else None,
    )
    slots = target.session.sparkContext.defaultParallelism
    parts = run_in_tasks(target.session, balance_files(candidates, slots), task)
    io = load_file_io(target.io_properties(), state.location)
    matched = map_concurrently(parts, lambda part: part.load(io))
    target.delete_files(part.arrays_path for part in parts if part.arrays_path is not None)
    return matched


def late_keys(batch: LatestChanges, matched: Sequence[MatchResult]) -> Flags:
    """Tell for which keys the table's row is newer than the change."""
    late = np.zeros(len(batch), np.bool_)
    for part in matched:
        late[part.late] = True
    return late


def write_rows(
    target: TargetTable,
    batch: LatestChanges,
    chunks: Sequence[StagedChunk],
    matched: Sequence[MatchResult],
    late: Flags,
    deleted: Ints | None = None,
    *,
    is_filtered: bool = False,
) -> tuple[list[WrittenFile], dict[str, int]]:
    """Write the rows of a batch that are neither deleted nor late.

    Args:
        target: the table.
        batch: the newest change of each key.
        chunks: the staged rows.
        matched: the matches of the keys in the table.
        late: keys whose change is older than the table's row.
        deleted: the sequence of the last delete of each key, if tombstones are kept.
        is_filtered: whether the table may lack rows of the source, see `ChangeSchema`.

    Returns:
        The files, and the number of rows per outcome.
    """
    exists = np.zeros(len(batch), np.bool_)
    in_table = np.full(len(batch), OLDEST, np.int64)
    row_ids = np.full(len(batch), -1, np.int64)
    for part in matched:
        exists[part.keys] = True
        row_ids[part.keys] = part.row_ids
        if part.sequence is not None:
            in_table[part.keys] = part.sequence
    batch = batch.without_outdated(deleted, in_table)
    counts = np.flatnonzero(~batch.deletes & ~late)
    if is_filtered:
        _refuse_unknown_values(batch, counts, exists)
    keeps_ids = target.state.format_version >= 3 and bool((row_ids[counts] >= 0).any())
    pieces = _rows_by_chunk(batch, len(chunks), counts, row_ids if keeps_ids else None)
    task = WriteTask(
        chunks=tuple(chunk.path for chunk in chunks),
        writer=target.writer(with_row_ids(target.state.schema) if keeps_ids else None),
        table_rows=tuple(part.rows for part in matched if part.rows is not None),
        order=tuple(parse_sort(target.options)),
        io_properties=target.io_properties(),
    )
    written = run_in_tasks(target.session, pieces, task)
    return [file for files in written for file in files], {
        "inserted": int((~exists[counts]).sum()),
        "updated": int(exists[counts].sum()),
        "deleted": int((exists & batch.deletes & ~late).sum()),
        "late": int(late.sum()),
    }


def _refuse_unknown_values(batch: LatestChanges, counts: Ints, exists: Flags) -> None:
    """Refuse a row whose value of a column is neither in the batch nor in the table."""
    for name in batch.donors:
        if _is_unknown(batch, name, exists)[counts].any():
            raise AttentionError(
                f"a row that is not in the table was sent without column {name!r}, a large value "
                "that did not change, so it can't be added",
                todo="It was left out by a `filter` or an expectation until now. Set REPLICA "
                "IDENTITY FULL on the source table, so that changes have all columns, and read the "
                "tables again: `icestream run --start-over`.",
            )


def _is_unknown(batch: LatestChanges, name: str, exists: Flags) -> Flags:
    donors = batch.donors[name]
    unknown: Flags = batch.missing_columns[name] & (
        (donors == NOWHERE) | ((donors == FROM_TABLE) & ~exists)
    )
    return unknown


def _rows_by_chunk(
    batch: LatestChanges, chunks: int, counts: Ints, row_ids: Ints | None
) -> list[ChunkRows]:
    pieces = []
    for number in range(chunks):
        keys = counts[batch.address.chunk[counts] == number]
        # In order of arrival, which may follow a sort order.
        keys = keys[np.argsort(batch.address.row[keys], kind="stable")]
        if len(keys):
            ids = None if row_ids is None else row_ids[keys]
            donors = Donors.of(batch, keys) if batch.donors else None
            pieces.append(ChunkRows(number, keys, batch.address.row[keys], ids, donors))
    return pieces


def with_row_ids(schema: Schema) -> Schema:
    """Return the schema of a data file that keeps the ids of existing rows."""
    ids = NestedField(ROW_ID, ROW_ID_NAME, LongType(), required=False)
    return Schema(*schema.fields, ids, schema_id=schema.schema_id)
