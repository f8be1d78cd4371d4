"""The `datagen` source and its options."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from icestream.contracts.faults import CheckStep
from icestream.contracts.options import Options
from icestream.contracts.source import Source, SourceTraits, Split
from icestream.sources.datagen.values import SHOP_EVENTS, RowRandom, make_rows, shop_events

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from icestream.contracts.offset import Offset

ROWS_PER_BLOCK = 50_000
# A task costs more than making this many rows, and every task writes a file of its own.
MIN_TASK_ROWS = 10_000


class DatagenOptions(Options):
    """Options of the `datagen` source."""

    rows_per_second: int = Field(
        default=100,
        ge=1,
        description="Rows generated per second. With `rows` and without this option, all rows are "
        "available at once.",
    )
    rows: int | None = Field(
        default=None,
        ge=0,
        description="Total number of rows, after which the source ends; unlimited by default.",
    )
    template: Literal["shop_events"] = Field(
        default="shop_events", description="Which kind of rows to generate."
    )
    schema_text: str | None = Field(
        default=None,
        alias="schema",
        description="Columns to generate instead of a template, as DDL: `id bigint, name string`.",
    )
    seed: int = Field(default=42, ge=0, description="Seed of the random values.")

    @model_validator(mode="after")
    def _refuse_template_and_schema(self) -> DatagenOptions:
        if self.schema_text is not None and "template" in self.model_fields_set:
            raise ValueError("`template` and `schema` exclude each other; remove one of them")
        return self


class DatagenSource(Source[DatagenOptions]):
    """Generated rows, for demos and tests.

    Row `n` depends only on the seed, on `n` and on when the pipeline started. So any range can be
    replayed, and rows due while a pipeline was down arrive when it is back.

    An offset is `{"row": n, "epoch_ms": when the pipeline started}`.
    """

    options_type = DatagenOptions
    traits = SourceTraits(replayable=True, ordered=True)

    def identity(self) -> str:
        kind = self.options.template if self.options.schema_text is None else "schema"
        return f"datagen {kind} seed {self.options.seed}"

    def initial(self) -> Offset:
        return {"row": 0, "epoch_ms": self.now_ms()}

    def latest(self, current: Offset) -> Offset:
        row = self._rows_due(current["epoch_ms"])
        # A clock that is set back must not remove rows.
        return current if row <= current["row"] else {**current, "row": row}

    def rows_between(self, start: Offset, end: Offset) -> int:
        return int(end["row"] - start["row"])

    def partition_ranges(self, start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
        return {"row": (start["row"], end["row"])}

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        return {**end, "row": min(end["row"], start["row"] + max(max_rows, 1))}

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        begin, rows = start["row"], self.rows_between(start, end)
        parts = max(1, min(slots, rows // MIN_TASK_ROWS))
        edges = [begin + rows * part // parts for part in range(parts + 1)]
        return [
            Split((low, high, end["epoch_ms"]), high - low)
            for low, high in pairwise(edges)
            if high > low
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        begin, end, epoch_ms = split.what
        schema = self.schema()
        for low in range(begin, end, ROWS_PER_BLOCK):
            yield self._rows(schema, low, min(end, low + ROWS_PER_BLOCK), epoch_ms)

    def first_rows(
        self,
        max_rows: int,
        tables: Collection[str] = (),  # noqa: ARG002 - the contract's
    ) -> Iterator[pa.RecordBatch]:
        # No row is due yet when a pipeline starts.
        start, rows = self.initial(), self.options.rows
        end = {**start, "row": max_rows if rows is None else min(rows, max_rows)}
        for split in self.splits(start, end, 1):
            yield from self.read(split)

    def schema(self) -> pa.Schema:
        if self.options.schema_text is None:
            return SHOP_EVENTS
        from icestream.formats.ddl import parse_ddl

        return parse_ddl(self.options.schema_text)

    def has_end(self) -> bool:
        return self.options.rows is not None

    def ends(self, position: Offset) -> bool:
        return self.options.rows is not None and position["row"] >= self.options.rows

    def check(self) -> Iterator[CheckStep]:
        yield CheckStep("parse schema", lambda: f"{len(self.schema())} columns")

    def now_ms(self) -> int:
        """Return the current time, which decides which rows are due."""
        return time.time_ns() // 1_000_000

    @property
    def _is_all_due(self) -> bool:
        has_end = self.options.rows is not None
        return has_end and "rows_per_second" not in self.options.model_fields_set

    def _rows_due(self, epoch_ms: int) -> int:
        rows = self.options.rows
        if rows is not None and self._is_all_due:
            return rows
        due = (self.now_ms() - epoch_ms) * self.options.rows_per_second // 1_000
        return due if rows is None else min(rows, due)

    def _rows(self, schema: pa.Schema, low: int, high: int, epoch_ms: int) -> pa.RecordBatch:
        numbers = np.arange(low, high, dtype=np.int64)
        dice = RowRandom(self.options.seed, numbers)
        # Rows that are available at once lie in the past: none has a future timestamp.
        elapsed = numbers - (self.options.rows or 0) if self._is_all_due else numbers
        times_us = epoch_ms * 1_000 + elapsed * 1_000_000 // self.options.rows_per_second
        if self.options.schema_text is None:
            return shop_events(dice, times_us)
        return make_rows(schema, dice, times_us)
