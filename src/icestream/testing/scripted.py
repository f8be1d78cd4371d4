"""A source whose rows a test writes down."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import Field

from icestream.contracts.decoder import Records
from icestream.contracts.options import Options
from icestream.contracts.source import Source, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.offset import Position


class ScriptedOptions(Options):
    """Options of a scripted source."""

    name: str = Field(default="scripted", description="Name in the source's identity.")


class ScriptedSource(Source[ScriptedOptions]):
    """Rows in memory, appended by a test: encoded values, or rows with the columns of a schema.

    A split carries its own rows, so it is read in a Spark worker as well. Give a `schema` and
    append rows (`append_rows`), or a `decoder` and append values (`append_values`).

    Args:
        options: the options; the defaults do.
        schema: the columns, for a source of rows.
        decoder: what decodes the values, for a source of encoded values.
        has_end: whether the source ends where its rows do.
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
            raise TypeError("a scripted source takes a schema or a decoder, and not both")
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

    def first(self) -> Position:
        return {"row": 0}

    def newest(self, current: Position) -> Position:
        return {"row": max(current["row"], len(self._script))}

    def rows_between(self, start: Position, end: Position) -> int:
        return int(end["row"] - start["row"])

    def cap(self, start: Position, end: Position, max_rows: int) -> Position:
        return {"row": min(end["row"], start["row"] + max(max_rows, 1))}

    def splits(self, start: Position, end: Position, slots: int) -> list[Split]:
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

    def ends(self, position: Position) -> bool:
        return self._has_end and position["row"] >= len(self._script)

    def __getstate__(self) -> dict[str, Any]:
        # Splits carry the rows that tasks read; the script itself stays with the test.
        return {**self.__dict__, "_script": []}
