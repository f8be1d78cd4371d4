"""Finds the latest change of each key in a batch, and the values that it was sent without.

Works on the keys alone, as arrays: the rows stay in the staged files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from icestream.sinks.iceberg.upsert.fingerprints import Fingerprints, Numbers
    from icestream.sinks.iceberg.upsert.staging import StagedChunk

    Ints = npt.NDArray[np.int64]
    Indexes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]


# Where the value of a column that the newest change lacks comes from, if not from a row of the
# batch.
FROM_TABLE = -1
NOWHERE = -2
# The sequence of a change that never was.
OLDEST = int(np.iinfo(np.int64).min)


class RowAddress(NamedTuple):
    """Where rows were put aside: the number of the chunk, and of the row in it."""

    chunk: Indexes
    row: Indexes


@dataclass(frozen=True)
class BatchKeys:
    """The keys of a batch, sorted; as much of `LatestChanges` as a look-up needs.

    Attributes:
        low: the keys.
        high: their other half; None if `low` is the key itself.
        sequence: how new the change of each is; None if the stream does not tell.
        wants_table_row: for which keys a value of the table's row is needed; None for none.
    """

    low: Numbers
    high: Numbers | None
    sequence: Ints | None
    wants_table_row: Flags | None = None

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class LatestChanges:
    """The newest change of each key, sorted by key.

    Attributes:
        low: the keys.
        high: their other half; None if `low` is the key itself.
        deletes: which changes take the key away.
        sequence: how new each is; None if the stream does not tell.
        address: where the row is.
        donors: by column, for each key, which change of the batch gives the value that the newest
            one was sent without: an index into `addresses`, `FROM_TABLE` or `NOWHERE`. Only
            columns that some row was sent without.
        missing_columns: by column, the keys whose newest change was sent without it.
        addresses: where every change of the batch is.
        deciding_changes: by column, for each key, the change that `donors` follows from, as an
            index into `sequences`. Empty without a sequence field.
        sequences: sequence of every change of the batch, in the order of `addresses`.
    """

    low: Numbers
    high: Numbers | None
    deletes: Flags
    sequence: Ints | None
    address: RowAddress
    donors: Mapping[str, Indexes]
    missing_columns: Mapping[str, Flags]
    addresses: RowAddress
    deciding_changes: Mapping[str, Indexes] = field(default_factory=dict)
    sequences: Ints | None = None

    def __len__(self) -> int:
        return len(self.low)

    def keys(self) -> BatchKeys:
        """Return what is needed to look the keys up."""
        wanted = np.zeros(len(self), np.bool_)
        for name, donors in self.donors.items():
            # The table's row may be newer than the change that gives the value.
            may_be_newer = donors == FROM_TABLE if self.sequence is None else True
            wanted |= self.missing_columns[name] & may_be_newer
        return BatchKeys(self.low, self.high, self.sequence, wanted if self.donors else None)

    def without_outdated(self, deleted: Ints | None, in_table: Ints) -> LatestChanges:
        """Return the batch without values from changes that are outdated.

        Args:
            deleted: for each key, the sequence of its last delete, `OLDEST` for none.
            in_table: for each key, the sequence of the table's row, `OLDEST` for none.
        """
        ages = self.sequences
        if ages is None:
            return self

        def current(name: str) -> Indexes:
            donors = self.donors[name]
            sequence = np.where(donors == FROM_TABLE, OLDEST, ages[self.deciding_changes[name]])
            if deleted is not None:
                donors = np.where(deleted > sequence, np.int32(NOWHERE), donors)
            return np.where(in_table > sequence, np.int32(FROM_TABLE), donors)

        return replace(self, donors=map_distinct(self.donors, current))


def find_latest_changes(chunks: Sequence[StagedChunk]) -> LatestChanges:
    """Return the newest change of each key; of two with equal sequence, the later one."""
    low = np.concatenate([chunk.keys.low for chunk in chunks])
    high = _concatenate_high([chunk.keys for chunk in chunks])
    deletes = np.concatenate([chunk.deletes for chunk in chunks])
    sequence = (
        None
        if chunks[0].sequence is None
        else np.concatenate([c.sequence for c in chunks if c.sequence is not None])
    )
    address = RowAddress(
        np.concatenate([np.full(len(c.deletes), n, np.int32) for n, c in enumerate(chunks)]),
        np.concatenate([np.arange(len(c.deletes), dtype=np.int32) for c in chunks]),
    )
    # Sorts are stable, so that equal ones stay in order of arrival.
    order = _sort_by_key(low, high, sequence)
    low = low[order]
    ends = np.ones(len(low), np.bool_)
    ends[:-1] = low[1:] != low[:-1]
    if high is not None:
        high = high[order]
        ends[:-1] |= high[1:] != high[:-1]
    last = order[ends]
    unchanged = _unchanged_flags(chunks)
    # Columns that are always absent together, as in soft deletes, share their arrays.
    ordered = deletes[order]
    deciding = map_distinct(
        unchanged, lambda name: _find_deciding(~unchanged[name][order], ordered, ends)
    )
    donors = map_distinct(
        unchanged, lambda name: _find_donors(deciding[name], ~unchanged[name][order], ordered)
    )
    return LatestChanges(
        low=low[ends],
        high=None if high is None else high[ends],
        deletes=deletes[last],
        sequence=None if sequence is None else sequence[last],
        address=RowAddress(address.chunk[last], address.row[last]),
        donors=donors,
        missing_columns=map_distinct(unchanged, lambda name: unchanged[name][last]),
        addresses=RowAddress(address.chunk[order], address.row[order]),
        deciding_changes={} if sequence is None else deciding,
        sequences=None if sequence is None or not unchanged else sequence[order],
    )


def _concatenate_high(keys: Sequence[Fingerprints]) -> Numbers | None:
    halves = [key.high for key in keys if key.high is not None]
    return np.concatenate(halves) if halves else None


def _sort_by_key(low: Numbers, high: Numbers | None, sequence: Ints | None) -> Ints:
    by = [key for key in (sequence, high, low) if key is not None]
    return np.argsort(low, kind="stable") if len(by) == 1 else np.lexsort(by)


def map_distinct(
    arrays: Mapping[str, npt.NDArray[Any]], work: Callable[[str], npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Call `work` with the name of each array, once for an array that has several names."""
    done: dict[int, npt.NDArray[Any]] = {}
    for name, array in arrays.items():
        if id(array) not in done:
            done[id(array)] = work(name)
    return {name: done[id(array)] for name, array in arrays.items()}


def concatenate_flags(
    parts: Sequence[Mapping[str, Flags]], lengths: Sequence[int]
) -> dict[str, Flags]:
    """Concatenate flags by name; names with the same arrays share the result."""
    absent = [np.zeros(length, np.bool_) for length in lengths]
    done: dict[tuple[int, ...], Flags] = {}
    joined = {}
    for name in sorted({name for part in parts for name in part}):
        arrays = [part.get(name, none) for part, none in zip(parts, absent, strict=True)]
        key = tuple(map(id, arrays))
        if key not in done:
            done[key] = np.concatenate(arrays)
        joined[name] = done[key]
    return joined


def _unchanged_flags(chunks: Sequence[StagedChunk]) -> dict[str, Flags]:
    return concatenate_flags([c.unchanged for c in chunks], [len(c.deletes) for c in chunks])


def _find_deciding(sent: Flags, deletes: Flags, ends: Flags) -> Indexes:
    """Return, for each key, the last of its changes that has a value or deletes the row.

    Changes are sorted by key and age; `ends` flags the newest of each key. The first change of the
    key if there is no such change.
    """
    count = len(sent)
    starts = np.ones(count, np.bool_)
    starts[1:] = ends[:-1]
    numbers = np.arange(count, dtype=np.int32)
    # Each change either decides, as its own number, or passes on the one before as -1: the running
    # maximum is the newest that decides.
    marks = np.where(sent | deletes | starts, numbers, np.int32(-1))
    chosen: Indexes = np.maximum.accumulate(marks)[ends]
    return chosen


def _find_donors(chosen: Indexes, sent: Flags, deletes: Flags) -> Indexes:
    """Return where the value of each key comes from: nowhere after a delete."""
    donors = np.where(sent[chosen], chosen, np.int32(FROM_TABLE))
    return np.where(deletes[chosen], np.int32(NOWHERE), donors)
