"""The `files` source: its offsets and the files that it reads."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import uuid
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from icestream.contracts.decoder import GivenSchema
from icestream.contracts.faults import CheckStep
from icestream.contracts.source import Source, Split
from icestream.errors import SchemaMismatchError, SourceChangedError
from icestream.formats.lookup import find_format, make_decoder
from icestream.sources.files.folder import Folder, list_paths, local_path
from icestream.sources.files.log import FileLog
from icestream.sources.files.offset import FilesOffset
from icestream.sources.files.options import FilesOptions
from icestream.sources.files.parts import FilePart, open_part
from icestream.sources.files.readers import (
    cut_blocks,
    first_block_row_bytes,
    read_file_schema,
    read_part,
    read_row_groups,
)
from icestream.sources.files.text import HeaderDecoder, cut_lines, mean_line_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.decoder import Decoder, Records
    from icestream.contracts.offset import Offset
    from icestream.sources.files.folder import FileEntry
    from icestream.sources.files.readers import RowGroup

logger = logging.getLogger(__name__)

# Estimates, for a format whose files do not say how many rows they have.
BYTES_PER_ROW = {"avro": 50, "parquet": 50}
BYTES_PER_LINE = 100
GZIP_RATIO = 5
# Of smaller files, only one in `SAMPLED_EVERY` is opened to estimate the length of a row.
SAMPLED_BYTES = 64 << 10
SAMPLED_EVERY = 50
# An estimate may be wrong by this factor; closer to a limit, rows are counted.
ESTIMATE_FACTOR = 4
# Limits of a batch, in addition to the sink's limit of rows.
BATCH_BYTES = 512 << 20
BATCH_FILES = 50_000
# Starting a task costs more than reading this much, and every task writes its own files.
MIN_TASK_ROWS = 10_000
MIN_TASK_BYTES = 16 << 20
MAX_CACHED_FOOTERS = 100_000


class FilesSource(Source[FilesOptions]):
    """Files that arrive in a folder, each read once.

    An offset is a position in the file log, see `FileLog`. It may be inside a file, since a large
    file is read in several batches.
    """

    options_type = FilesOptions

    settle_secs: ClassVar[float] = 1.0
    """How long a file must stay unchanged to count as complete."""

    listing_pause: ClassVar[float] = 10.0
    """The pause after a slow listing, as a multiple of the time that the listing took."""

    _folder: Folder
    _row_groups: dict[FileEntry, list[RowGroup]]
    _schema: pa.Schema | None
    _state: Path | None
    _log: FileLog | None
    _verified: set[tuple[int, int]]

    def __init__(self, options: FilesOptions) -> None:
        super().__init__(options)
        self._reset()

    def required_packages(self) -> dict[str, str]:
        return {"fastavro": "icestream[avro]"} if self.options.format == "avro" else {}

    def identity(self) -> str:
        return f"files {self.options.path} {self.options.glob}"

    def keep_state_in(self, folder: Path) -> None:
        self._state = folder
        self._log = None
        self._verified.clear()

    def initial(self) -> Offset:
        # Older logs stay until a batch of this one is committed: the start may still fail.
        self._log = FileLog(self._state_folder() / uuid.uuid4().hex)
        self._verified.clear()
        return FilesOffset(self._log.id).to_json()

    def latest(self, current: Offset) -> Offset:
        log = self._log_of(current)
        self._folder.discover(log)
        return (
            current
            if log.count == FilesOffset.from_json(current).files
            else self._offset(log.count)
        )

    def rows_between(self, start: Offset, end: Offset) -> int:
        if start == end:
            return 0
        low, high, log = self._range(start, end)
        rows = log.rows(low.files, high.files)
        for offset, sign in ((low, -1), (high, 1)):
            if offset.at:
                [entry] = log.files(offset.files, offset.files + 1)
                rows += sign * self._extent(entry, 0, offset.at)[0]
        return max(1, rows)

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        if start == end:
            return end
        low, high, log = self._range(start, end)
        max_files = self.options.max_files_per_batch or BATCH_FILES
        rows = size = 0
        number, position = low.files, low.at
        for entry in log.files(number, min(high.files_started, number + max_files)):
            stop = high.at if number == high.files else None
            more_rows, more_bytes = self._extent(entry, position, stop)
            if rows and (rows + more_rows > max_rows or size + more_bytes > BATCH_BYTES):
                break
            if not rows and (more_rows * ESTIMATE_FACTOR > max_rows or more_bytes > BATCH_BYTES):
                cut = self._end_of_batch(entry, position, max_rows)
                if cut is not None and (stop is None or cut[0] < stop):
                    line = (low.line if position else 0) + cut[1]
                    return self._offset(number, cut[0], line, entry.path)
            rows += more_rows
            size += more_bytes
            number, position = number + 1, 0
        return end if number == high.files_started else self._offset(number)

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        if start == end:
            return []
        low, high, log = self._range(start, end)
        parts: list[tuple[FilePart, int]] = []
        for number, entry in enumerate(log.files(low.files, high.files_started), low.files):
            at, line = (low.at, low.line) if number == low.files else (0, 0)
            stop = high.at if high.at and number == high.files else None
            parts += self._parts(
                replace(_whole_file(entry), start=at, end=stop, line=line), entry, slots
            )
        total = sum(rows for _, rows in parts)
        share = total / max(1, min(slots, total // MIN_TASK_ROWS))
        groups: list[list[tuple[FilePart, int]]] = [[]]
        passed = 0
        for part, rows in parts:
            if passed >= share * len(groups):
                groups.append([])
            groups[-1].append((part, rows))
            passed += rows
        # Without a declared schema, files keep their own columns, and the engine adds new ones.
        schema = self.declared_schema()
        return [
            Split(
                (_join_parts([part for part, _ in group]), schema), sum(rows for _, rows in group)
            )
            for group in groups
        ]

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        parts, schema = split.what
        folder = local_path(self.options.path)
        for part in parts:
            with open_part(folder, part) as file:
                yield from read_part(file, part, self._name(part.path), self.options, schema)

    def committed(self, position: Offset, rows: int) -> None:  # noqa: ARG002 - the contract's
        """Drop log entries that no replay needs, but remember which files were read."""
        offset = FilesOffset.from_json(position)
        if not offset.files:
            return
        log = self._log_of(position)
        log.fold(offset.files)
        for other in log.folder.parent.iterdir():
            if other != log.folder:
                shutil.rmtree(other, ignore_errors=True)

    def decoder(self) -> Decoder | None:
        if self.options.format in {"parquet", "avro"}:
            return None
        if self.options.format != "csv":
            schema = GivenSchema(self.schema()) if self.declares() else None
            return make_decoder(self.options.format, schema=schema)
        if self.options.options.header:
            evolving = self.options.schema_text is None
            return HeaderDecoder(self.options.options.delimiter, evolving=evolving)
        from icestream.formats.csv import CsvDecoder

        return CsvDecoder(self.schema(), self.options.options.delimiter)

    def schema(self) -> pa.Schema | None:
        if self.options.schema_text is not None:
            from icestream.formats.ddl import parse_ddl

            return parse_ddl(self.options.schema_text)
        if self._schema is None and self.options.format in {"parquet", "avro"}:
            self._schema = self._infer_schema()
        elif self._schema is None and self.options.format != "csv":
            self._schema = find_format(self.options.format).columns()
        return self._schema

    def declares(self) -> bool:
        # The schemas of two sampled files say nothing about the others.
        return self.options.schema_text is not None

    def check(self) -> Iterator[CheckStep]:
        yield CheckStep("find folder", self._find_folder)
        yield CheckStep("list files", self._count_files)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read files by their splits and need none of the driver's state.
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options = state["options"]
        self._reset()

    def _reset(self) -> None:
        options = self.options
        self._folder = Folder(
            options.path, options.glob, self.settle_secs, self.listing_pause, self._count_rows
        )
        self._row_groups = {}
        self._schema = None
        self._state = None
        self._log = None
        self._verified = set()
        self._row_bytes: float = BYTES_PER_ROW.get(options.format, BYTES_PER_LINE)
        self._unsampled = 0

    def _name(self, path: str) -> str:
        return str(Path(local_path(self.options.path), path))

    def _state_folder(self) -> Path:
        if self._state is None:
            # Without a state folder, as in a benchmark, offsets end with the process.
            self._state = Path(tempfile.mkdtemp(prefix="icestream-files-"))
            weakref.finalize(self, shutil.rmtree, self._state, ignore_errors=True)
        return self._state / "files"

    def _log_of(self, position: Offset) -> FileLog:
        """Return the log that an offset refers to, rebuilt from the folder if it is lost.

        Raises:
            SourceChangedError: it is lost, and cannot be rebuilt from the folder.
        """
        offset = FilesOffset.from_json(position)
        if self._log is None or self._log.id != offset.log:
            self._log = FileLog(self._state_folder() / offset.log)
            self._verified.clear()
        if (offset.files, offset.checksum) in self._verified:
            return self._log
        is_long_enough = self._log.count >= offset.files_started
        if is_long_enough and self._log.checksum_before(offset.files) == offset.checksum:
            self._verify(offset)
            return self._log
        files = offset.files_read(self._folder.entries())
        if files is None:
            raise SourceChangedError(
                f"the file log {self._log.folder} is lost and cannot be rebuilt, because files in "
                f"{self.options.path!r} were removed or changed (the last of "
                f"{offset.files_started} files that were read is {offset.path!r})",
                todo="Restore the state folder. If that is not possible, move the files that were "
                "read out of the folder,\nand use `icestream run --start-over`.",
            )
        shutil.rmtree(self._log.folder, ignore_errors=True)
        self._log = FileLog(self._log.folder)
        self._log.append([entry._replace(rows=self._count_rows(entry) or 1) for entry in files])
        logger.warning(
            "the file log %s was lost, and was rebuilt from the %d files that were read",
            self._log.folder,
            offset.files_started,
        )
        return self._log

    def _verify(self, offset: FilesOffset) -> None:
        """Remember that an offset matches the log: offsets are checked several times a second."""
        if len(self._verified) >= 100:
            self._verified.clear()
        self._verified.add((offset.files, offset.checksum))

    def _range(self, start: Offset, end: Offset) -> tuple[FilesOffset, FilesOffset, FileLog]:
        self._log_of(start)
        return FilesOffset.from_json(start), FilesOffset.from_json(end), self._log_of(end)

    def _offset(self, files: int, at: int = 0, line: int = 0, path: str = "") -> Offset:
        log = self._log
        assert log is not None  # noqa: S101 - `_log_of` has opened it
        if not path and files:
            [entry] = log.files(files - 1, files)
            path = entry.path
        offset = FilesOffset(log.id, files, log.checksum_before(files), at, line, path)
        self._verify(offset)
        return offset.to_json()

    def _count_rows(self, entry: FileEntry) -> int | None:
        """Estimate the number of rows of a file; None if it is gone or changing."""
        try:
            if self.options.format == "parquet":
                if groups := self._row_groups_of(entry):
                    return max(1, sum(group.rows for group in groups))
            elif not entry.path.endswith(".gz"):
                self._sample(entry)
        except SourceChangedError:
            return None
        size = entry.size * (GZIP_RATIO if entry.path.endswith(".gz") else 1)
        return max(1, round(size / self._row_bytes))

    def _sample(self, entry: FileEntry) -> None:
        """Update the estimated row length from a large file, or from one of several small ones."""
        self._unsampled -= 1
        if not entry.size or (entry.size < SAMPLED_BYTES and self._unsampled > 0):
            return
        self._unsampled = SAMPLED_EVERY
        estimate = first_block_row_bytes if self.options.format == "avro" else mean_line_bytes
        with open_part(local_path(self.options.path), _whole_file(entry)) as file:
            self._row_bytes = estimate(file) or self._row_bytes

    def _is_text(self, entry: FileEntry) -> bool:
        """Tell whether a file is text that can be read from any line."""
        is_lines = self.options.format not in {"parquet", "avro"}
        return is_lines and not entry.path.endswith(".gz")

    def _extent(self, entry: FileEntry, start: int, end: int | None) -> tuple[int, int]:
        """Estimate the rows and bytes of a part of a file."""
        if self.options.format == "parquet" and (groups := self._row_groups_of(entry)[start:end]):
            return sum(group.rows for group in groups), sum(group.bytes for group in groups)
        size = (entry.size if end is None else end) - start
        unpacked = size * (GZIP_RATIO if entry.path.endswith(".gz") else 1)
        return max(1, entry.rows * size // max(1, entry.size)), unpacked

    def _end_of_batch(self, entry: FileEntry, at: int, max_rows: int) -> tuple[int, int] | None:
        """Return where a batch that starts at `at` ends in a file, and how many lines it has.

        None if it reaches the end of the file, or the file cannot be split.
        """
        if self.options.format == "parquet":
            return _split_row_groups(self._row_groups_of(entry), at, max_rows)
        if not self._is_text(entry) and self.options.format != "avro":
            return None
        with open_part(local_path(self.options.path), _whole_file(entry)) as file:
            if self.options.format == "avro":
                return cut_blocks(file, at, max_rows, BATCH_BYTES, self._name(entry.path))
            cut = cut_lines(file, at, max_rows, BATCH_BYTES)
        return cut if cut[0] < entry.size else None

    def _parts(
        self, part: FilePart, entry: FileEntry, slots: int
    ) -> Iterator[tuple[FilePart, int]]:
        """Split a part of a file for several tasks, each with its rows; a small one stays whole."""
        end = part.end
        if self.options.format == "parquet" and (groups := self._row_groups_of(entry)):
            for index in range(part.start, len(groups) if end is None else end):
                yield replace(part, start=index, end=index + 1), groups[index].rows
            return
        stop = part.size if end is None else end
        share = max(MIN_TASK_BYTES, -(-(stop - part.start) // slots))
        if not self._is_text(entry) or stop - part.start <= share:
            yield part, self._extent(entry, part.start, end)[0]
            return
        with open_part(local_path(self.options.path), _whole_file(entry)) as file:
            while part.start < stop:
                cut, lines = cut_lines(file, part.start, sys.maxsize, share)
                yield replace(part, end=min(cut, stop)), lines
                part = replace(part, start=cut, line=part.line + lines)

    def _row_groups_of(self, entry: FileEntry) -> list[RowGroup]:
        key = entry._replace(rows=0, ctime_ns=0)
        if key not in self._row_groups:
            if len(self._row_groups) >= MAX_CACHED_FOOTERS:
                self._row_groups.clear()
            with open_part(local_path(self.options.path), _whole_file(entry)) as file:
                self._row_groups[key] = read_row_groups(file)
        return self._row_groups[key]

    def _infer_schema(self) -> pa.Schema | None:
        # `plan` calls this before the folder exists; `check` and `run` report that.
        if not Path(self.options.path.removeprefix("file://")).is_dir():
            return None
        ordered = sorted(self._folder.entries(), key=lambda entry: entry.arrival)
        # The newest file is read as well, so that a restart knows columns that were added later.
        schemas = []
        for entry in dict.fromkeys([*ordered[:1], *ordered[-1:]]):
            with open_part(local_path(self.options.path), _whole_file(entry)) as file:
                schemas.append(read_file_schema(file, self._name(entry.path), self.options.format))
        if not schemas:
            return None
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as exc:
            raise SchemaMismatchError(
                f"files {ordered[0].path!r} and {ordered[-1].path!r} have incompatible columns: "
                f"{exc}",
                todo="Declare the columns and their types in `schema`.",
            ) from exc

    def _find_folder(self) -> str:
        path = local_path(self.options.path)
        list_paths(path, "")
        return path

    def _count_files(self) -> str:
        count = len(self._folder.entries())
        return f"{count} file matches" if count == 1 else f"{count} files match"


def _whole_file(entry: FileEntry) -> FilePart:
    return FilePart(entry.path, entry.mtime_ns, entry.size)


def _join_parts(parts: list[FilePart]) -> list[FilePart]:
    """Join adjacent parts of one file, so that it is opened once."""
    joined: list[FilePart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and (last.path, last.end) == (part.path, part.start) and last.end:
            joined[-1] = replace(last, end=part.end)
        else:
            joined.append(part)
    return joined


def _split_row_groups(groups: list[RowGroup], start: int, max_rows: int) -> tuple[int, int] | None:
    rows = size = 0
    for index, group in enumerate(groups[start:], start):
        rows, size = rows + group.rows, size + group.bytes
        if index > start and (rows > max_rows or size > BATCH_BYTES):
            return index, 0
    return None
