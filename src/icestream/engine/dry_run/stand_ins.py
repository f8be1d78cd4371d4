"""Stand-ins for the source and the sink of a dry run: records and rows in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.changes import OP, UNCHANGED_COLUMNS, change_schema_of
from icestream.contracts.decoder import Records
from icestream.contracts.sink import Commit, Sink, TaskWriter, WrittenFile
from icestream.contracts.source import Source, SourceTraits, Split
from icestream.contracts.transform import ROW
from icestream.engine.state import PipelineState
from icestream.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Identifier
    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import Decoder
    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import RowExpectation

_IPC = "arrow"
# What a change does, in the rows of a dry run: the name that it has in a history of changes.
OPERATION = "_op"


class RecordedSource(Source[Any]):
    """Blocks of another source in memory, decoded as that source decodes them.

    Args:
        origin: the source that they belong to; nothing is read from it.
        blocks: its records, its rows, or its blocks of changes.
        decoder: the decoder of records, if the source itself has rows.
    """

    def __init__(
        self,
        origin: Source[Any],
        blocks: Sequence[Records | pa.RecordBatch],
        decoder: Decoder | None = None,
    ) -> None:
        super().__init__(origin.options)
        self.traits = SourceTraits(replayable=True, changes=origin.traits.changes)
        self._origin = origin
        self._decoder = decoder
        self._blocks = blocks

    def __getstate__(self) -> dict[str, Any]:
        # The split carries the blocks.
        return {**self.__dict__, "_blocks": ()}

    def identity(self) -> str:
        return self._origin.identity()

    def initial(self) -> Offset:
        return {}

    def latest(self, current: Offset) -> Offset:
        return current

    def rows_between(self, start: Offset, end: Offset) -> int:  # noqa: ARG002 - the contract's
        return count_rows(self._blocks)

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:  # noqa: ARG002
        return end

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:  # noqa: ARG002
        # One split, so that rows keep their order.
        return [Split([_plain(block) for block in self._blocks], count_rows(self._blocks))]

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        for block in split.what:
            if isinstance(block, pa.RecordBatch):
                yield block
            else:
                values, extra, positions, context = block
                yield Records(values, extra, positions.__getitem__, context)

    def decoder(self) -> Decoder | None:
        return self._decoder or self._origin.decoder()

    def change_decoder(self) -> ChangeDecoder | None:
        return self._origin.change_decoder()

    def block_schemas(self, splits: Sequence[Split]) -> Sequence[pa.Schema]:
        blocks = [block for split in splits for block in split.what]
        return [block.schema for block in blocks if isinstance(block, pa.RecordBatch)]

    def schema(self) -> pa.Schema | None:
        return self._origin.schema() if self._decoder is None else self.declared_schema()

    def declares(self) -> bool:
        return self._origin.declares()

    def declared_schema(self) -> pa.Schema | None:
        return self._origin.declared_schema()

    def extra_columns(self) -> pa.Schema | None:
        return self._origin.extra_columns()


def count_rows(blocks: Iterable[Records | pa.RecordBatch]) -> int:
    """Return the number of records or rows of blocks."""
    return sum(len(b.values) if isinstance(b, Records) else b.num_rows for b in blocks)


def _plain(block: Records | pa.RecordBatch) -> Any:
    """Return a block without the function of its positions, which cannot be pickled."""
    if isinstance(block, pa.RecordBatch):
        return block
    positions = [block.position(index) for index in range(len(block.values))]
    return block.values, dict(block.extra), positions, dict(block.context)


@dataclass(frozen=True)
class RowCollector(TaskWriter):
    """Keeps rows instead of writing files.

    Attributes:
        check: finds the rows that the table would refuse, which fails the batch; None for no check.
    """

    check: Callable[[pa.RecordBatch], pa.Array | None] | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        files = []
        for batch in batches:
            reasons = self.check(batch) if self.check is not None and batch.num_rows else None
            if reasons is not None:
                raise BadRecordError(reasons.drop_null()[0].as_py())
            # Each batch by itself: blocks of changes have columns of their own.
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, batch.schema) as file:
                file.write_batch(batch)
            content = stream.getvalue().to_pybytes()
            files.append(WrittenFile(batch.num_rows, len(content), {_IPC: content}))
        return files


def collected_rows(file: WrittenFile) -> pa.RecordBatch:
    """Return the rows of one file of `RowCollector`, without the engine's own columns."""
    with pa.ipc.open_stream(file.metadata[_IPC]) as stream:
        batch = stream.read_next_batch()
    hidden = (ROW, UNCHANGED_COLUMNS)
    rows = batch.select([name for name in batch.schema.names if name not in hidden])
    names = [OPERATION if name == OP else name for name in rows.schema.names]
    return rows.rename_columns(names).replace_schema_metadata(batch.schema.metadata)


class DryRunSink(Sink[Any]):
    """A sink that keeps the rows, and treats them as another one would, short of its table.

    Args:
        origin: that sink, which is not opened; None to take any row.
        on_error: the pipeline's `on_error`.
        keeps_failed: whether rows that fail an expectation become dead letters, whatever its
            `on_fail` says.
    """

    def __init__(
        self, origin: Sink[Any] | None, *, on_error: str = "fail", keeps_failed: bool = False
    ) -> None:
        self.origin = origin
        self.columns_received: pa.Schema | None = None
        self._on_error = on_error
        self._keeps_failed = keeps_failed

    def identity(self) -> str:
        return "" if self.origin is None else self.origin.identity()

    def single_table(self) -> Identifier | None:
        return ("rows",) if self.origin is None else self.origin.single_table()

    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None: ...

    def last_mark(self) -> BatchMark | None:
        return None

    def foreign_marks(self) -> list[BatchMark]:
        return []

    def holds(self, mark: BatchMark) -> bool:  # noqa: ARG002 - the contract's
        return False

    def columns(self) -> pa.Schema | None:
        return None

    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:  # noqa: ARG002
        if self.origin is not None:
            self.origin.refuse_columns(columns)
        self.columns_received = columns

    def prepare_tables(self, schemas: Sequence[pa.Schema]) -> None: ...

    def rows_by_table(self, rows: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        if self.origin is not None:
            return self.origin.rows_by_table(rows)
        name = ".".join(change_schema_of(rows.schema).table) if self.is_mirror else self.identity()
        return {name: rows}

    def refuses_column(self, name: str) -> str | None:
        return None if self.origin is None else self.origin.refuses_column(name)

    def keeps_missing_fields(self) -> bool:
        return self.origin is not None and self.origin.keeps_missing_fields()

    def adds_columns(self) -> bool:
        # There are no columns yet: `strict` keeps those of a table.
        return True

    def widens_columns(self) -> bool:
        return self.origin is not None and self.origin.widens_columns()

    def expectations(self) -> tuple[RowExpectation, ...]:
        found = () if self.origin is None else self.origin.expectations()
        if not self._keeps_failed:
            return found
        return tuple(replace(one, on_fail="dead_letter") for one in found)

    def computed_columns(self) -> Mapping[str, str]:
        return {} if self.origin is None else self.origin.computed_columns()

    def row_faults(self) -> Callable[[pa.RecordBatch], pa.Array | None] | None:
        return None if self.origin is None else self.origin.row_faults()

    def writer(self) -> TaskWriter:
        # In any other mode, the engine has already taken such rows out.
        return RowCollector(self.row_faults() if self._on_error == "fail" else None)

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:  # noqa: ARG002
        return Commit(None, sum(file.rows for file in files), 0, 0, 0, 0.0)


class DryRunMirror(DryRunSink):
    """A sink that keeps blocks of changes."""

    is_mirror = True
    keeps_changes = True


@dataclass(frozen=True)
class NoState(PipelineState):
    """The state of a pipeline that never ran, and keeps none."""

    def schema(self) -> dict[str, Any] | None:
        return None

    def remember_schema(self, columns: dict[str, Any]) -> None: ...
