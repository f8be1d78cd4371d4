"""Sources whose rows or changes come from a test."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import Field

from icestream.contracts.changes import (
    COLUMN_ID,
    OP,
    UNCHANGED_COLUMNS,
    ChangeSchema,
    change_schema_of,
)
from icestream.contracts.decoder import Records
from icestream.contracts.options import Options
from icestream.contracts.source import Source, SourceTraits, Split
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.offset import Offset
    from icestream.contracts.source import SourceObject


class ScriptedOptions(Options):
    """Options of a scripted source."""

    name: str = Field(default="scripted", description="Name in the source's identity.")


class ScriptedSource(Source[ScriptedOptions]):
    """Rows in memory, appended by a test: encoded values, or rows with the columns of a schema.

    A split carries its own rows, so Spark workers can read it. Pass a `schema` and append rows
    (`append_rows`), or a `decoder` and append values (`append_values`).

    Args:
        options: the options; the defaults are enough.
        schema: the columns, for a source of rows.
        decoder: the decoder, for a source of encoded values.
        has_end: whether the source ends after its last row.
    """

    options_type = ScriptedOptions

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        *,
        schema: pa.Schema | None = None,
        decoder: Decoder | None = None,
        has_end: bool = False,
    ) -> None:
        super().__init__(options or ScriptedOptions())
        if (schema is None) == (decoder is None):
            raise TypeError("a scripted source takes either a schema or a decoder")
        self._schema = schema
        self._decoder = decoder
        self._has_end = has_end
        self._script: list[Any] = []

    def append_rows(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Make rows available, each a mapping of column to value."""
        self._script += [dict(row) for row in rows]

    def append_values(self, values: Iterable[bytes | None]) -> None:
        """Make encoded values available."""
        self._script += values

    def identity(self) -> str:
        return f"scripted {self.options.name}"

    def initial(self) -> Offset:
        return {"row": 0}

    def latest(self, current: Offset) -> Offset:
        return {"row": max(current["row"], len(self._script))}

    def rows_between(self, start: Offset, end: Offset) -> int:
        return int(end["row"] - start["row"])

    def partition_ranges(self, start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
        return {"row": (start["row"], end["row"])}

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        return {"row": min(end["row"], start["row"] + max(max_rows, 1))}

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        begin, rows = start["row"], self.rows_between(start, end)
        edges = [begin + rows * part // slots for part in range(slots + 1)]
        return [
            Split((low, self._script[low:high]), high - low)
            for low, high in pairwise(edges)
            if high > low
        ]

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        low, rows = split.what
        if self._schema is not None:
            yield pa.RecordBatch.from_pylist(rows, schema=self._schema)
        else:
            values = pa.array(rows, pa.binary())
            yield Records(values, {}, lambda index: f"{self.options.name}[{low + index}]")

    def decoder(self) -> Decoder | None:
        return self._decoder

    def schema(self) -> pa.Schema | None:
        return self._schema

    def has_end(self) -> bool:
        return self._has_end

    def ends(self, position: Offset) -> bool:
        return self._has_end and position["row"] >= len(self._script)

    def __getstate__(self) -> dict[str, Any]:
        # Splits carry the rows that tasks read; the script itself stays in the test.
        return {**self.__dict__, "_script": []}


def change_block(
    table: str,
    columns: Mapping[str, pa.DataType],
    rows: Iterable[Mapping[str, Any]],
    *,
    key: Sequence[str] = ("id",),
    ids: Sequence[int] = (),
    **shape: Any,
) -> pa.RecordBatch:
    """Return a block of changes.

    Args:
        table: the table's names in the source, joined by dots.
        columns: its columns.
        rows: values by column, with `op` (default `i`) and, where needed, `unsent`: the names of
            unchanged columns.
        key: the columns of its key.
        ids: the source's column ids, in the order of the columns.
        shape: further attributes of `ChangeSchema`.
    """
    schema = ChangeSchema(tuple(table.split(".")), tuple(key), **shape)
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    if ids:
        fields = [
            field.with_metadata({COLUMN_ID: str(column_id).encode()})
            for field, column_id in zip(fields, ids, strict=True)
        ]
    values = [dict(row) for row in rows]
    if not schema.is_snapshot:
        fields += [pa.field(OP, pa.string()), pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))]
        values = [
            {OP: row.get("op", "i"), UNCHANGED_COLUMNS: row.get("unsent"), **row} for row in values
        ]
    return pa.RecordBatch.from_pylist(values, schema=schema.on(pa.schema(fields)))


class ScriptedChanges(Source[ScriptedOptions]):
    """Batches in memory, each a list of blocks; the pipeline reads them one at a time.

    Attributes:
        script: the batches.
        tables: what `list_tables` returns, or raises; None if only rows name the tables.
        objects: what `list_objects` returns.
    """

    options_type = ScriptedOptions
    traits = SourceTraits(replayable=True, ordered=True, changes=True)

    def __init__(self, *batches: Sequence[pa.RecordBatch]) -> None:
        super().__init__(ScriptedOptions())
        self.script: list[Sequence[pa.RecordBatch]] = list(batches)
        self.committed_offsets: list[tuple[Offset, int]] = []
        self.tables: Sequence[pa.Schema] | IcestreamError | None = None
        self.objects: Sequence[SourceObject] = ()

    def identity(self) -> str:
        return "scripted changes"

    def initial(self) -> Offset:
        return {"batch": 0}

    def latest(self, current: Offset) -> Offset:
        return {"batch": max(current["batch"], len(self.script))}

    def rows_between(self, start: Offset, end: Offset) -> int:
        return int(end["batch"] - start["batch"])

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:  # noqa: ARG002
        return {"batch": min(end["batch"], start["batch"] + 1)}

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:  # noqa: ARG002
        blocks = [block for batch in self.script[start["batch"] : end["batch"]] for block in batch]
        return [Split(blocks, sum(block.num_rows for block in blocks))]

    def block_schemas(self, splits: Sequence[Split]) -> Sequence[pa.Schema]:
        """Return the schemas of snapshots, as the contract asks; the others come unannounced."""
        schemas = [block.schema for split in splits for block in split.what]
        return [schema for schema in schemas if change_schema_of(schema).is_snapshot]

    def list_tables(self) -> Sequence[pa.Schema] | None:
        if isinstance(self.tables, IcestreamError):
            raise self.tables
        return self.tables

    def list_objects(self) -> Sequence[SourceObject]:
        return self.objects

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from split.what

    def committed(self, position: Offset, rows: int) -> None:
        self.committed_offsets.append((position, rows))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "script": [], "committed_offsets": []}
