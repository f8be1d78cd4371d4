"""The `files` source: where it stands and what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from icestream.contracts.check import CheckStep
from icestream.contracts.source import Source, Split
from icestream.errors import SchemaMismatchError, SourceChangedError
from icestream.sources.files.csv import HeaderDecoder, header_of
from icestream.sources.files.folder import Folder, local_path
from icestream.sources.files.formats import ReadPlan, read_part, schema_of
from icestream.sources.files.lines import first_line
from icestream.sources.files.opened import FilePart, opened
from icestream.sources.files.options import FilesOptions
from icestream.sources.files.parquet import rows_in_groups
from icestream.sources.files.progress import Progress, files_between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.position import Position
    from icestream.contracts.records import Records
    from icestream.sources.files.listing import FileEntry

# Guesses, for a format that does not tell how many rows a file has.
BYTES_A_ROW = {"json": 100, "csv": 100, "avro": 50, "parquet": 50}
GZIP_SAVES = 5
# A task costs more than reading this many rows, and every task writes a file of its own.
ROWS_WORTH_A_TASK = 10_000
MOST_FOOTERS_KEPT = 100_000


class FilesSource(Source[FilesOptions]):
    """Files that arrive in a folder, each read once and as a whole.

    A position names the last file read in the order of arrival, see `Progress`.
    """

    options_type = FilesOptions

    settle_secs: ClassVar[float] = 1.0
    """How long a file must have been left alone to count as finished."""

    _folder: Folder
    _row_groups: dict[FileEntry, list[int]]
    _schema: pa.Schema | None
    _header: tuple[str, ...]

    def __init__(self, options: FilesOptions) -> None:
        super().__init__(options)
        self._start_afresh()

    def identity(self) -> str:
        return f"files {self.options.path} {self.options.glob}"

    def first(self) -> Position:
        return Progress().position()

    def newest(self, current: Position) -> Position:
        progress = Progress.of(current)
        new = self._folder.unread(progress)
        return progress.after(new).position() if new else current

    def rows_between(self, start: Position, end: Position) -> int:
        if start == end:
            return 0
        return max(1, sum(self._rows_in(entry) for entry in self._between(start, end)))

    def cap(self, start: Position, end: Position, max_rows: int) -> Position:
        if start == end:
            return end
        files = self._between(start, end)
        most = min(len(files), self.options.max_files_per_batch or len(files))
        rows = self._rows_in(files[0])
        taken = 1
        while taken < most and rows + self._rows_in(files[taken]) <= max_rows:
            rows += self._rows_in(files[taken])
            taken += 1
        if taken == len(files):
            return end
        return Progress.of(start).after(files[:taken]).position()

    def splits(self, start: Position, end: Position, slots: int) -> list[Split]:
        if start == end:
            return []
        parts = [part for entry in self._between(start, end) for part in self._parts(entry)]
        total = sum(rows for _, rows in parts)
        share = total / max(1, min(slots, total // ROWS_WORTH_A_TASK))
        groups: list[list[tuple[FilePart, int]]] = [[]]
        passed = 0
        for part, rows in parts:
            if passed >= share * len(groups):
                groups.append([])
            groups[-1].append((part, rows))
            passed += rows
        plan = self._read_plan(parts)
        return [
            Split(([part for part, _ in group], plan), sum(rows for _, rows in group))
            for group in groups
        ]

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        parts, plan = split.what
        folder = local_path(self.options.path)
        for part in parts:
            with opened(folder, part) as file:
                yield from read_part(file, part, self._name(part.path), self.options, plan)

    def decoder(self) -> Decoder | None:
        if self.options.format == "json":
            from icestream.decode.json import JsonDecoder

            return JsonDecoder()
        if self.options.format != "csv":
            return None
        if self.options.options.header:
            return HeaderDecoder(self.header, self.options.options.delimiter)
        from icestream.decode.csv import CsvDecoder

        return CsvDecoder(self.schema(), self.options.options.delimiter)

    def header(self) -> tuple[str, ...]:
        """Return the columns that the first CSV file names."""
        if not self._header:
            entries = self._folder.last_look() or self._folder.look()
            filled = [entry for entry in entries if entry.size]
            if not filled:
                return ()
            entry = min(filled, key=lambda entry: entry.arrival)
            with opened(local_path(self.options.path), _part_of(entry)) as file:
                line = first_line(file)
            self._header = header_of(line, self._name(entry.path), self.options.options.delimiter)
        return self._header

    def schema(self) -> pa.Schema | None:
        if self.options.schema_text is not None:
            from icestream.decode.ddl import parse_ddl

            return parse_ddl(self.options.schema_text)
        if self._schema is None and self.options.format in {"parquet", "avro"}:
            self._schema = self._schema_of_files()
        return self._schema

    def declares(self) -> bool:
        # Two files that were looked into tell nothing of the others.
        return self.options.schema_text is not None

    def check(self) -> Iterator[CheckStep]:
        yield CheckStep("find folder", self._find_folder)
        yield CheckStep("list files", self._count_files)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read files by their splits; what the driver saw of the folder is not for them.
        return {"options": self.options, "header": self._header}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options = state["options"]
        self._start_afresh()
        self._header = state["header"]

    def _start_afresh(self) -> None:
        self._folder = Folder(self.options.path, self.options.glob, self.settle_secs)
        self._row_groups = {}
        self._schema = None
        self._header = ()

    def _name(self, path: str) -> str:
        return str(Path(local_path(self.options.path), path))

    def _between(self, start: Position, end: Position) -> list[FileEntry]:
        low, high = Progress.of(start), Progress.of(end)
        try:
            return files_between(low, high, self._folder.last_look())
        except SourceChangedError:
            return files_between(low, high, self._folder.look())

    def _rows_in(self, entry: FileEntry) -> int:
        if self.options.format == "parquet" and (groups := self._groups_of(entry)):
            return max(1, sum(groups))
        size = entry.size * (GZIP_SAVES if entry.path.endswith(".gz") else 1)
        return max(1, size // BYTES_A_ROW[self.options.format])

    def _parts(self, entry: FileEntry) -> Iterator[tuple[FilePart, int]]:
        groups = self._groups_of(entry) if self.options.format == "parquet" else []
        if len(groups) < 2:
            yield _part_of(entry), self._rows_in(entry)
            return
        for group, rows in enumerate(groups):
            yield _part_of(entry, (group,)), rows

    def _groups_of(self, entry: FileEntry) -> list[int]:
        if entry not in self._row_groups:
            if len(self._row_groups) >= MOST_FOOTERS_KEPT:
                self._row_groups.clear()
            with opened(local_path(self.options.path), _part_of(entry)) as file:
                self._row_groups[entry] = rows_in_groups(file)
        return self._row_groups[entry]

    def _read_plan(self, parts: list[tuple[FilePart, int]]) -> ReadPlan:
        has_header = self.options.format == "csv" and self.options.options.header
        return ReadPlan(
            schema=self.schema(),
            is_strict=self.options.schema_text is None,
            header=self.header() if has_header and any(part.size for part, _ in parts) else (),
        )

    def _schema_of_files(self) -> pa.Schema | None:
        # `plan` asks too, before the folder is there; `check` and `run` tell what is wrong.
        if not Path(self.options.path.removeprefix("file://")).is_dir():
            return None
        entries = self._folder.last_look() or self._folder.look()
        ordered = sorted(entries, key=lambda entry: entry.arrival)
        # The newest file is asked as well: after a restart, columns that came later are known.
        schemas = []
        for entry in dict.fromkeys([*ordered[:1], *ordered[-1:]]):
            with opened(local_path(self.options.path), _part_of(entry)) as file:
                schemas.append(schema_of(file, self._name(entry.path), self.options.format))
        if not schemas:
            return None
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as exc:
            raise SchemaMismatchError(
                f"files {ordered[0].path!r} and {ordered[-1].path!r} do not fit together: {exc}",
                todo="Give the columns' types under `schema`.",
            ) from exc

    def _find_folder(self) -> str:
        path = local_path(self.options.path)
        Folder(path, "", self.settle_secs).look()
        return path

    def _count_files(self) -> str:
        count = len(self._folder.look())
        return f"{count} file matches" if count == 1 else f"{count} files match"


def _part_of(entry: FileEntry, row_groups: tuple[int, ...] | None = None) -> FilePart:
    return FilePart(entry.path, entry.mtime_ns, entry.size, row_groups)
