"""Finds keys in a data file.

Each file has an index of its sorted keys, cached on the worker's disk. The driver's state folder
can't hold it: on a cluster, tasks run on other machines and often as another user. Anything in the
cache may disappear at any moment, even under a task that is about to read it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.errors import ConnectorError, TransientError
from icestream.sinks.iceberg.upsert.fingerprints import fingerprints, numbers
from icestream.sinks.iceberg.upsert.table_rows import names_by_id, open_data_file
from icestream.sinks.iceberg.writer import cast_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow.parquet as pq

    from icestream.sinks.iceberg.java import LiveFile
    from icestream.sinks.iceberg.upsert.latest_changes import BatchKeys

    Ints = npt.NDArray[np.int64]


CACHE_VARIABLE = "ICESTREAM_CACHE_DIR"
# An index unused for this long belongs to a dropped file or table, or is rarely needed.
FOLDER_UNUSED_SECS = 3 * 24 * 3600
EVICT_EVERY_SECS = 600
# Of the disk space that is free or taken by the cache itself.
MAX_DISK_SHARE = 0.5


def local_cache_folder() -> Path:
    """Return the cache folder of this machine and user, private to the user.

    Raises:
        ConnectorError: no folder can be created here.
    """
    tried = []
    for folder in _candidate_folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
        except OSError as exc:
            tried.append(f"{folder} ({(exc.strerror or str(exc)).lower()})")
            continue
        # In a folder that all users share, somebody else may have created it.
        if (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.getuid()
            and os.access(folder, os.W_OK)
        ):
            return folder
        tried.append(f"{folder} (not writable, or of another user)")
    raise ConnectorError(
        f"the key index needs a folder on the machine of the task, and none can be used: "
        f"{', '.join(tried)}",
        todo=f"Set {CACHE_VARIABLE} in the environment of the workers to a folder that their user "
        "can write, or for all of them with `spark.conf: "
        f"{{spark.executorEnv.{CACHE_VARIABLE}: /path}}`.",
    )


def _candidate_folders() -> list[Path]:
    configured = os.environ.get(CACHE_VARIABLE)
    if configured:
        return [Path(configured)]
    shared = Path(tempfile.gettempdir()) / f"icestream-{os.getuid()}"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return [Path(home) / "icestream", shared] if Path(home).is_absolute() else [shared]


def touch(path: Path) -> None:
    """Record that a file was used now."""
    with suppress(OSError):  # another task removed it
        os.utime(path)


def evict_unused(folder: Path) -> None:
    """Remove files below a folder that were unused for days, or that take too much disk space.

    Any number of tasks may do so concurrently. A file that another task has open stays readable.
    """
    stamp = folder / "tidied"
    with suppress(OSError):
        if time.time() - stamp.stat().st_mtime < EVICT_EVERY_SECS:
            return
    try:
        stamp.touch()
        free = shutil.disk_usage(folder).free
    except OSError:  # the folder does not exist yet, or no longer
        return
    files = []
    for path in folder.glob("*/*"):
        with suppress(OSError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    files.sort(reverse=True)
    limit = (free + sum(size for _, size, _ in files)) * MAX_DISK_SHARE
    oldest = time.time() - FOLDER_UNUSED_SECS
    total = 0
    for used_at, size, path in files:
        total += size
        if used_at < oldest or total > limit:
            with suppress(OSError):
                path.unlink()


VERSION = 2
ROW_ID = 2147483540  # Iceberg's own field id
# Unused indexes are removed once there are this many more than data files.
SPARE_INDEXES = 64
UNUSED_SECS = 3600
# If the disk is small, another task may remove an index as soon as it is written.
ATTEMPTS = 3
NO_SEQUENCE = np.iinfo(np.int64).min
ROWS_READ_AT_ONCE = 65_536


@dataclass(frozen=True)
class IndexSettings:
    """How keys are indexed, and where the indexes are stored.

    Attributes:
        key_ids: field ids of the key's columns.
        sequence_id: field id of the sequence, which the index includes; None for none.
        folder: the table's folder of indexes, below the local cache folder of each machine.
        io_properties: how PyIceberg reaches the store, secrets included.
        types: the types of the table's columns by field id. A file may store a column in
            another type: other writers use milliseconds or INT96, and columns are widened.
    """

    key_ids: tuple[int, ...]
    sequence_id: int | None
    folder: str
    io_properties: Mapping[str, str]
    types: Mapping[int, pa.DataType] = field(default_factory=dict)

    def index_path(self, data_file: str) -> Path:
        """Return the path of the index of a data file."""
        return self.local_folder / self.index_name(data_file)

    def index_name(self, data_file: str) -> str:
        """Return the name of the index of a data file."""
        identity = f"{VERSION}|{self.key_ids}|{self.sequence_id}|{data_file}"
        return f"{hashlib.sha256(identity.encode()).hexdigest()[:40]}.keys"

    @property
    def local_folder(self) -> Path:
        """The folder of indexes on the machine of this process."""
        return local_cache_folder() / "keys" / self.folder


@dataclass(frozen=True)
class KeyMatches:
    """Rows of one data file that have a key of the batch.

    Attributes:
        keys: the number of the key in the batch.
        positions: the position of the row in the file.
        row_ids: the row's id; None before format v3.
        sequence: the row's sequence; None if the index has none.
    """

    keys: Ints
    positions: Ints
    row_ids: Ints | None
    sequence: Ints | None


def remove_stale_indexes(settings: IndexSettings, files: Sequence[LiveFile]) -> None:
    """Remove the indexes on this machine of data files that are no longer in the table.

    The driver does so on its own machine; on others, tasks remove what is unused.
    """
    folder = settings.local_folder
    indexes = list(folder.glob("*.keys")) if folder.exists() else []
    if len(indexes) <= len(files) + SPARE_INDEXES:
        return
    live_names = {settings.index_name(file.path) for file in files}
    # Another pipeline may use them, for another branch or key of the table.
    unused_since = time.time() - UNUSED_SECS
    for path in indexes:
        if path.name not in live_names:
            with suppress(OSError):  # another task removed it
                if path.stat().st_mtime < unused_since:
                    path.unlink()


def find_keys(file: LiveFile, batch: BatchKeys, settings: IndexSettings) -> KeyMatches:
    """Look up the keys of a batch in a data file."""
    parts = [_find_in_segment(segment, batch) for segment in _segments(file, settings)]
    positions = concatenate_ints([segment["position"][rows] for segment, _, rows in parts])
    row_ids = None
    if file.first_row_id is not None:
        row_ids = positions + file.first_row_id
        stored = [segment["row_id"][rows] for segment, _, rows in parts if "row_id" in segment]
        if stored:
            stored_ids = concatenate_ints(stored)
            row_ids = np.where(stored_ids >= 0, stored_ids, row_ids)
    sequence = None
    if settings.sequence_id is not None:
        sequence = concatenate_ints([segment["sequence"][rows] for segment, _, rows in parts])
    return KeyMatches(
        concatenate_ints([keys for _, keys, _ in parts]), positions, row_ids, sequence
    )


def concatenate_ints(arrays: Sequence[npt.NDArray[Any]]) -> Ints:
    """Concatenate arrays of integers; an empty array for none."""
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, np.int64)


def _find_in_segment(
    segment: dict[str, npt.NDArray[Any]], batch: BatchKeys
) -> tuple[dict[str, npt.NDArray[Any]], Ints, Ints]:
    """Return the segment, the keys found in it, and the row of the segment for each."""
    low = segment["low"]
    if len(low) < len(batch):
        # Search the longer side: each row of the segment matches at most one key.
        keys = np.searchsorted(batch.low, low)
        keys[keys == len(batch)] = 0
        rows = np.arange(len(low))
        hit = batch.low[keys] == low
        keys, rows = keys[hit], rows[hit]
        # Equal low halves are adjacent; skip those of another key.
        keys, rows = _match_high_halves(segment, batch, keys, rows)
    else:
        first = np.searchsorted(low, batch.low, side="left")
        last = np.searchsorted(low, batch.low, side="right")
        counts = last - first
        keys = np.repeat(np.arange(len(batch)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(first, counts) + within
        if batch.high is not None:
            same = segment["high"][rows] == batch.high[keys]
            keys, rows = keys[same], rows[same]
    return segment, keys, rows


def _match_high_halves(
    segment: dict[str, npt.NDArray[Any]], batch: BatchKeys, keys: Ints, rows: Ints
) -> tuple[Ints, Ints]:
    if batch.high is None:
        return keys, rows
    found_keys, found_rows = [], []
    while len(keys):
        same = segment["high"][rows] == batch.high[keys]
        found_keys.append(keys[same])
        found_rows.append(rows[same])
        keys, rows = keys[~same] + 1, rows[~same]
        inside = keys < len(batch)
        keys, rows = keys[inside], rows[inside]
        alike = batch.low[keys] == segment["low"][rows]
        keys, rows = keys[alike], rows[alike]
    return concatenate_ints(found_keys), concatenate_ints(found_rows)


def _segments(file: LiveFile, settings: IndexSettings) -> Iterator[dict[str, npt.NDArray[Any]]]:
    path = settings.index_path(file.path)
    with _open_index(file, settings, path) as mapped:
        touch(path)
        reader = pa.ipc.open_file(mapped)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield {
                name: batch.column(index).to_numpy()
                for index, name in enumerate(batch.schema.names)
            }


def _open_index(file: LiveFile, settings: IndexSettings, path: Path) -> pa.MemoryMappedFile:
    """Return the index of a data file; build it if it is missing or truncated."""
    for _ in range(ATTEMPTS):
        try:
            mapped = pa.memory_map(str(path))
            pa.ipc.open_file(mapped)
        except (OSError, pa.ArrowInvalid):  # noqa: PERF203 - one attempt each
            _build_index(file, settings, path)
        else:
            return mapped
    raise TransientError(
        f"the key index {path} disappeared {ATTEMPTS} times before it could be read",
        todo="Something else removes files there, or the disk is full.",
    )


def _build_index(file: LiveFile, settings: IndexSettings, path: Path) -> None:
    """Write the index of a data file atomically."""
    from pyiceberg.io import load_file_io

    if file.metadata["file-format"].lower() != "parquet":
        raise ConnectorError(
            f"upsert can't look for keys in {file.path}: it is not a Parquet file",
            todo="Rewrite the table's files to Parquet first, with `rewrite_data_files`.",
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(f".{uuid.uuid4().hex}.new")
    io = load_file_io(dict(settings.io_properties), file.path)
    try:
        with io.new_input(file.path).open() as stream, pa.OSFile(str(unfinished), "wb") as output:
            parquet = open_data_file(stream)
            writer = None
            for segment in _index_row_groups(parquet, file.path, settings):
                writer = writer or pa.ipc.new_file(output, segment.schema)
                writer.write_batch(segment)
            if writer is None:
                writer = pa.ipc.new_file(output, pa.schema([("low", pa.uint64())]))
            writer.close()
        unfinished.chmod(0o600)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _index_row_groups(
    parquet: pq.ParquetFile, path: str, settings: IndexSettings
) -> Iterator[pa.RecordBatch]:
    names = names_by_id(parquet, path)
    if not all(key in names for key in settings.key_ids):
        return  # the key columns are newer than the file, so none of its rows has a key
    field_ids = [*settings.key_ids, ROW_ID]
    if settings.sequence_id is not None:
        field_ids.append(settings.sequence_id)
    columns = [names[number] for number in field_ids if number in names]
    offset = 0
    for number in range(parquet.num_row_groups):
        parts = [
            _index_columns(rows, names, settings)
            for rows in parquet.iter_batches(
                ROWS_READ_AT_ONCE, row_groups=[number], columns=columns, use_threads=False
            )
        ]
        if parts:
            yield _segment(parts, offset)
        offset += parquet.metadata.row_group(number).num_rows


def _index_columns(
    rows: pa.RecordBatch, names: Mapping[int, str], settings: IndexSettings
) -> dict[str, npt.NDArray[Any]]:
    """Return the index columns of rows, and which of them have a complete key.

    A few rows at a time: the keys of a row group may not fit into one Arrow array.
    """

    def column(number: int) -> pa.Array:
        stored = rows.column(names[number])
        into = settings.types.get(number, stored.type)
        is_uuid = any(isinstance(kind, pa.BaseExtensionType) for kind in (stored.type, into))
        return stored if is_uuid else cast_array(stored, into)

    # No change can refer to a row without a key.
    whole = np.ones(rows.num_rows, np.bool_)
    for key in settings.key_ids:
        whole &= column(key).is_valid().to_numpy(zero_copy_only=False)
    at = np.flatnonzero(whole)
    keys = fingerprints([column(key).take(pa.array(at)) for key in settings.key_ids])
    arrays: dict[str, npt.NDArray[Any]] = {"whole": whole, "low": keys.low}
    if keys.high is not None:
        arrays["high"] = keys.high
    if ROW_ID in names:
        arrays["row_id"] = numbers(column(ROW_ID).fill_null(-1))[at]
    if settings.sequence_id is not None:
        arrays["sequence"] = np.full(rows.num_rows, NO_SEQUENCE, np.int64)
        if settings.sequence_id in names:
            sequence = column(settings.sequence_id)
            is_set = sequence.is_valid().to_numpy(zero_copy_only=False)
            arrays["sequence"][is_set] = numbers(sequence.drop_null())
        arrays["sequence"] = arrays["sequence"][at]
    return arrays


def _segment(parts: Sequence[dict[str, npt.NDArray[Any]]], offset: int) -> pa.RecordBatch:
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    arrays["position"] = (np.flatnonzero(arrays.pop("whole")) + offset).astype(np.uint32)
    order = np.argsort(arrays["low"])
    return pa.RecordBatch.from_pydict({name: pa.array(a[order]) for name, a in arrays.items()})
