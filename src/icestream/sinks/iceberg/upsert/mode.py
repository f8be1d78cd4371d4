"""`commit_mode: upsert`: a batch replaces or deletes the rows of its keys."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from icestream.errors import CommitConflictError, CommitUnknownError, SchemaMismatchError
from icestream.sinks.iceberg.commit import EVERY_ROW, Mode, TableChange

if TYPE_CHECKING:
    import pyarrow as pa

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, WrittenFile
    from icestream.sinks.iceberg.java import LiveFiles
    from icestream.sinks.iceberg.upsert.key_index import IndexSettings
    from icestream.sinks.iceberg.upsert.latest_changes import LatestChanges
    from icestream.sinks.iceberg.upsert.matching import MatchResult
    from icestream.sinks.iceberg.upsert.staging import KeySettings, StagedChunk, StagingWriter
    from icestream.sinks.iceberg.upsert.tombstones import Tombstones


logger = logging.getLogger(__name__)

# Attempts at a batch when a compaction or another writer commits first.
ATTEMPTS = 5
# Staged rows younger than this stay: the run that wrote them may only be paused.
STALE_STAGING_AGE = timedelta(days=1)


@dataclass(frozen=True)
class _UpsertResult:
    """The changes of a batch, ready to commit."""

    files: list[WrittenFile]
    matched: list[MatchResult]
    base: int | None
    inserted: int
    updated: int
    deleted: int
    late: int


class Upsert(Mode):
    """Inserts, updates and deletes rows by key.

    Attributes:
        is_filtered: whether the table may lack rows of the source, see `ChangeSchema`.
    """

    task_modules = (
        "icestream.sinks.iceberg.writer",
        "icestream.sinks.iceberg.upsert.matching",
        "icestream.sinks.iceberg.upsert.writing",
    )
    sorts_itself = True
    is_filtered = False
    _live: LiveFiles | None = None
    _cleaned_folder = ""

    def reset(self) -> None:
        self._live = None
        # The tombstone table has its own client, which was closed with the others.
        self.__dict__.pop("_tombstones", None)

    @property
    def keys(self) -> KeySettings:
        from icestream.sinks.iceberg.upsert.staging import KeySettings

        options = self.options
        return KeySettings(
            fields=options.key_fields,
            sequence=options.sequence_field,
            op=options.op_field,
            delete_mode=options.delete_mode,
        )

    def table_columns(self, columns: pa.Schema) -> pa.Schema:
        from icestream.contracts.changes import UNCHANGED_COLUMNS
        from icestream.sinks.iceberg.upsert.soft_deletes import add_soft_delete_columns

        hidden = {self.options.op_field, UNCHANGED_COLUMNS}
        visible = [column for column in columns if column.name not in hidden]
        self._check_key_columns(columns)
        return add_soft_delete_columns(visible, self.options.delete_mode)

    def stream_columns(self, columns: pa.Schema) -> pa.Schema:
        import pyarrow as pa

        from icestream.sinks.iceberg.upsert.soft_deletes import drop_soft_delete_columns

        stream = drop_soft_delete_columns(columns, self.options.delete_mode)
        op = self.options.op_field
        return pa.schema([*stream, *([] if op is None else [pa.field(op, pa.string())])])

    def writer(self) -> StagingWriter:
        from icestream.sinks.iceberg.upsert.staging import StagingWriter

        state = self.target.state
        return StagingWriter(
            schema=state.schema.model_dump_json(),
            keys=self.keys,
            folder=self._staging_folder(),
            io_properties=self.target.io_properties(),
        )

    def _staging_folder(self) -> str:
        """Return the staging folder, without what an earlier run left there."""
        from icestream.sinks.iceberg.staging_cleanup import remove_staged_files

        name = quote(self.target.pipeline, safe="") or "by-hand"
        folder = f"{self.target.state.location.rstrip('/')}/data/__staged/{name}"
        if folder != self._cleaned_folder:
            remove_staged_files(folder, self.target.io_properties(), older_than=STALE_STAGING_AGE)
            self._cleaned_folder = folder
        return folder

    def commit(
        self, files: list[WrittenFile], mark: BatchMark | None, *, replaces: bool = False
    ) -> Commit:
        """Apply what the tasks wrote to the table.

        Args:
            files: the staged rows.
            mark: the mark of the batch.
            replaces: whether the rows replace all rows of the table.
        """
        from icestream.sinks.iceberg.upsert.latest_changes import find_latest_changes
        from icestream.sinks.iceberg.upsert.staging import read_chunks

        try:
            chunks = read_chunks(files, self.target.io_properties())
            commit = self._commit(find_latest_changes(chunks), chunks, mark, replaces=replaces)
        except CommitUnknownError:
            raise  # the caller may look it up, and commit the same rows again
        except BaseException:
            self.discard(files)
            raise
        self.discard(files)
        return commit

    def _commit(
        self,
        batch: LatestChanges,
        chunks: list[StagedChunk],
        mark: BatchMark | None,
        *,
        replaces: bool,
    ) -> Commit:
        rows = sum(len(chunk.deletes) for chunk in chunks)
        for attempt in range(1, ATTEMPTS + 1):
            outcome = self._compute_changes(batch, chunks, mark, replaces=replaces)
            change = self._change(outcome)
            if replaces:
                change = replace(
                    change, overwrite_filter=EVERY_ROW, is_keyed=False, base_snapshot_id=None
                )
            try:
                commit = self.target.commit(change, mark, rows=rows)
            except CommitConflictError as exc:
                self._delete_written(outcome.files, outcome.matched)
                if not exc.stale or attempt == ATTEMPTS:
                    raise
                logger.info("%s: %s; retrying the batch", self.target.identity, exc.what)
            else:
                return replace(commit, retries=commit.retries + attempt - 1)
        raise AssertionError("the last attempt returns or raises")

    def _compute_changes(
        self,
        batch: LatestChanges,
        chunks: list[StagedChunk],
        mark: BatchMark | None,
        *,
        replaces: bool,
    ) -> _UpsertResult:
        from icestream.sinks.iceberg.upsert.jobs import late_keys, match_keys, write_rows
        from icestream.sinks.iceberg.upsert.key_index import remove_stale_indexes

        live = self._files()
        files = [] if replaces else live.refresh()
        index = self._index()
        matched = match_keys(self.target, batch, files, index, self._staging_folder())
        remove_stale_indexes(index, files)  # all of them, if the table is replaced
        late, deleted = late_keys(batch, matched), None
        try:
            if self._tombstones is not None:
                assert batch.sequence is not None  # noqa: S101 - tombstones need a sequence
                deleted = self._tombstones.sequences(batch)
                late |= deleted > batch.sequence
                self._tombstones.record(batch, chunks, late, mark)
            written, counts = write_rows(
                *(self.target, batch, chunks, matched, late, deleted), is_filtered=self.is_filtered
            )
        except BaseException:
            self._delete_written([], matched)
            raise
        finally:
            self.target.delete_files(part.rows.path for part in matched if part.rows is not None)
        return _UpsertResult(written, matched, live.snapshot_id, **counts)

    @cached_property
    def _tombstones(self) -> Tombstones | None:
        """The deleted keys; None if changes arrive in order, or no delete removes a row."""
        from icestream.sinks.iceberg.upsert.tombstones import Tombstones

        options = self.options
        removes = options.delete_mode == "hard" and options.op_field is not None
        if options.sequence_field is None or not removes or not options.tombstone_days:
            return None
        return Tombstones(options, self.target)

    def _change(self, outcome: _UpsertResult) -> TableChange:
        matched = outcome.matched
        return TableChange(
            added=[file.metadata for file in outcome.files],
            deletes=[one for part in matched for one in part.deletes],
            replaced_deletes=[one for part in matched for one in part.replaced_deletes],
            referenced_files=[path for part in matched for path in part.referenced_files],
            is_keyed=True,
            base_snapshot_id=outcome.base,
            branch=self.options.branch,
            summary={
                "icestream.rows-inserted": str(outcome.inserted),
                "icestream.rows-updated": str(outcome.updated),
                "icestream.rows-deleted": str(outcome.deleted),
                "icestream.rows-late": str(outcome.late),
            },
        )

    def _delete_written(self, files: list[WrittenFile], matched: list[MatchResult]) -> None:
        paths = {file.metadata["file-path"] for file in files}
        paths |= {one["file-path"] for part in matched for one in part.deletes}
        self.target.delete_files(sorted(paths))

    def _files(self) -> LiveFiles:
        from icestream.sinks.iceberg.java import LiveFiles

        if self._live is None or self._live.table is not self.target.handle:
            keys = [name for name in self.options.key_fields if "." not in name]
            self._live = LiveFiles(self.target.handle, self.options.branch, keys)
        return self._live

    def _index(self) -> IndexSettings:
        from icestream.sinks.iceberg.upsert.key_index import IndexSettings
        from icestream.sinks.iceberg.writer import types_by_id

        schema = self.target.state.schema
        sequence = self.options.sequence_field
        return IndexSettings(
            key_ids=tuple(schema.find_field(name).field_id for name in self.options.key_fields),
            sequence_id=None if sequence is None else schema.find_field(sequence).field_id,
            folder=self.target.handle.uuid(),
            io_properties=self.target.io_properties(),
            types=types_by_id(schema),
        )

    def _check_key_columns(self, columns: pa.Schema) -> None:
        """Check that the rows have valid key and sequence columns."""
        from icestream.schemas.comparison import arrow_to_iceberg
        from icestream.sinks.iceberg.upsert.fingerprints import can_be_key, is_number

        schema = arrow_to_iceberg(columns, 3)
        kinds: dict[str, Any] = {column.name: column.field_type for column in schema.fields}
        options = self.options
        named = [("key_fields", name) for name in options.key_fields]
        named += [("sequence_field", options.sequence_field)] if options.sequence_field else []
        for option, name in named:
            if name not in kinds:
                raise SchemaMismatchError(
                    f"{option}: the rows have no column {name!r}",
                    todo=f"Their columns: {', '.join(kinds)}.",
                )
            fits = can_be_key if option == "key_fields" else is_number
            if not fits(kinds[name]):
                raise SchemaMismatchError(
                    f"{option}: column {name!r} is a {kinds[name]}, which can't be "
                    + ("part of a key" if option == "key_fields" else "compared by age"),
                    todo="Use a column of whole numbers, dates, times"
                    + (", text or bytes." if option == "key_fields" else " or timestamps."),
                )
