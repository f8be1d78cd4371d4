"""A source of changes to many tables that a test writes down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.changes import COLUMN_ID, OP, UNSENT, Shape, shape_of
from icestream.contracts.source import Source, SourceTraits, Split
from icestream.testing.scripted import ScriptedOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icestream.contracts.offset import Position


def changes(
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
        table: its names in the source, joined by dots.
        columns: its columns.
        rows: values by column, with `op` (`i` if absent) and `unsent` where it matters.
        key: the columns of its key.
        ids: the source's ids of the columns, in their order.
        shape: further attributes of the shape.
    """
    told = Shape(tuple(table.split(".")), tuple(key), **shape)
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    if ids:
        fields = [
            one.with_metadata({COLUMN_ID: str(number).encode()})
            for one, number in zip(fields, ids, strict=True)
        ]
    given = [dict(row) for row in rows]
    if not told.is_snapshot:
        fields += [pa.field(OP, pa.string()), pa.field(UNSENT, pa.list_(pa.string()))]
        given = [{OP: row.get("op", "i"), UNSENT: row.get("unsent"), **row} for row in given]
    return pa.RecordBatch.from_pylist(given, schema=told.on(pa.schema(fields)))


class ScriptedChanges(Source[ScriptedOptions]):
    """Batches in memory, each a list of blocks; every batch is one of the pipeline."""

    options_type = ScriptedOptions
    traits = SourceTraits(replayable=True, ordered=True, changes=True)

    def __init__(self, *batches: Sequence[pa.RecordBatch]) -> None:
        super().__init__(ScriptedOptions())
        self.script: list[Sequence[pa.RecordBatch]] = list(batches)
        self.told: list[tuple[Position, int]] = []

    def identity(self) -> str:
        return "scripted changes"

    def first(self) -> Position:
        return {"batch": 0}

    def newest(self, current: Position) -> Position:
        return {"batch": max(current["batch"], len(self.script))}

    def rows_between(self, start: Position, end: Position) -> int:
        return int(end["batch"] - start["batch"])

    def cap(self, start: Position, end: Position, max_rows: int) -> Position:  # noqa: ARG002
        return {"batch": min(end["batch"], start["batch"] + 1)}

    def splits(self, start: Position, end: Position, slots: int) -> list[Split]:  # noqa: ARG002
        blocks = [block for batch in self.script[start["batch"] : end["batch"]] for block in batch]
        return [Split(blocks, sum(block.num_rows for block in blocks))]

    def shapes(self, splits: Sequence[Split]) -> Sequence[pa.Schema]:
        """Tell those of snapshots, as the contract asks; the others come as a surprise."""
        found = [block.schema for split in splits for block in split.what]
        return [columns for columns in found if shape_of(columns).is_snapshot]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from split.what

    def committed(self, position: Position, rows: int) -> None:
        self.told.append((position, rows))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "script": [], "told": []}
