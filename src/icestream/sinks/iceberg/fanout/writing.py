"""The second pass of a fan-out: the rows of each table go to its own writer, few files a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.arrow import pieces
from icestream.errors import IcestreamError
from icestream.sinks.iceberg.arrow_sort import in_order
from icestream.sinks.iceberg.fanout.staging import StagedRows
from icestream.sinks.iceberg.jobs import run_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.sinks.iceberg.sort import SortTerm

# A table is written by one task unless it has more rows than this, and more than its share.
ROWS_A_TASK = 200_000
BINS_A_SLOT = 3

Written = tuple[int, int, "list[WrittenFile] | IcestreamError"]


@dataclass(frozen=True)
class Unit:
    """Rows that one task writes for one table.

    Attributes:
        table: number of the table.
        part: number of the unit among those of the table.
    """

    table: int
    part: int
    rows: tuple[StagedRows, ...]
    writer: TaskWriter

    @property
    def count(self) -> int:
        return sum(one.rows for one in self.rows)


def write_tables(
    spark: SparkSession,
    tables: Sequence[tuple[Sequence[StagedRows], TaskWriter]],
    order: Sequence[SortTerm],
) -> list[list[WrittenFile] | IcestreamError]:
    """Write the rows of every table in one job; for each table its files, or why there are none."""
    slots = spark.sparkContext.defaultParallelism
    total = sum(one.rows for parts, _ in tables for one in parts)
    share = max(ROWS_A_TASK, -(-total // slots))
    units = [
        Unit(number, part, rows, writer)
        for number, (parts, writer) in enumerate(tables)
        for part, rows in enumerate(_cut(parts, share))
    ]
    done = run_pieces(spark, _bins(units, slots * BINS_A_SLOT), WriteTables(tuple(order)))
    outcomes: list[list[WrittenFile] | IcestreamError] = [[] for _ in tables]
    # In the order of the rows: of two changes to one key the later one counts.
    for table, _, found in sorted((one for each in done for one in each), key=lambda one: one[:2]):
        so_far = outcomes[table]
        if isinstance(so_far, IcestreamError):
            continue
        outcomes[table] = found if isinstance(found, IcestreamError) else so_far + found
    return outcomes


@dataclass(frozen=True)
class WriteTables:
    """Writes the units of one bin, one after the other."""

    order: tuple[SortTerm, ...]

    def __call__(self, units: list[Unit]) -> list[Written]:
        return [(unit.table, unit.part, self._write(unit)) for unit in units]

    def _write(self, unit: Unit) -> list[WrittenFile] | IcestreamError:
        rows: Iterator[pa.RecordBatch] = (batch for one in unit.rows for batch in one())
        try:
            if not self.order:
                return unit.writer.write(rows)
            # Sorted piece by piece, each of which has files of its own: the order is a file's.
            ordered = (in_order(pa.Table.from_batches(each), self.order) for each in pieces(rows))
            return [file for each in ordered for file in unit.writer.write(each.to_batches())]
        except IcestreamError as exc:
            # The other tables of the bin are written all the same.
            return exc


def _cut(parts: Sequence[StagedRows], most: int) -> Iterator[tuple[StagedRows, ...]]:
    """Cut the rows of a table where they are more than one task should write."""
    if sum(one.rows for one in parts) <= most:
        yield tuple(parts)
        return
    taken: list[StagedRows] = []
    for one in parts:
        for block in one.blocks:
            if taken and sum(each.rows for each in taken) + block[1] > most:
                yield tuple(taken)
                taken = []
            taken.append(StagedRows(one.path, (block,), one.io_properties))
    yield tuple(taken)


def _bins(units: list[Unit], most: int) -> list[list[Unit]]:
    """Spread units over few bins, so that each bin has about as many rows as another."""
    bins: list[list[Unit]] = [[] for _ in range(min(most, len(units)))]
    sizes = [0] * len(bins)
    for unit in sorted(units, key=lambda one: one.count, reverse=True):
        lightest = sizes.index(min(sizes))
        bins[lightest].append(unit)
        sizes[lightest] += unit.count
    return bins
