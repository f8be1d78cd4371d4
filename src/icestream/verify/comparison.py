"""Compares the rows of two sides in Spark: checksums first, then the rows of chunks that differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.reports import collect_exactly, run_in_tasks
from icestream.verify.checksums import (
    ChecksumTask,
    ComparisonSpec,
    HashRowsTask,
    SideChecksums,
    common_type,
    convert,
    differing_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from icestream.verify.side import SideReader


# A row that only the database has, that only the table has, that both have with different values,
# and that the table has more often.
MISSING, EXTRA, DIFFERENT, DOUBLED = "missing", "extra", "different", "doubled"
KINDS = (MISSING, EXTRA, DIFFERENT, DOUBLED)

SAME, DIFFERS, NOT_COMPARED = "same", "different", "not compared"


@dataclass(frozen=True)
class RowDifference:
    """One row that differs between the sides.

    Attributes:
        kind: one of `KINDS`.
        key: the key's values by column; all values if there is no key.
        columns: by differing column, the database's value and the table's; truncated if long.
    """

    kind: str
    key: dict[str, str | None]
    columns: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class SideReport:
    """One side of a comparison: how many rows were compared, and the range of their keys."""

    rows: int = 0
    first_key: tuple[str, ...] | None = None
    last_key: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TableReport:
    """How a table compares with its source.

    Attributes:
        pipeline: the pipeline that writes the mirror.
        source: the table in the database.
        table: the Iceberg table.
        status: `same`, `different` or `not compared`.
        reason: why it was not compared, or what is wrong apart from its rows.
        point: the moment of the database.
        snapshot_id: the table's snapshot.
        in_source: the database's side.
        in_lake: the table's side.
        changed_since: how many rows changed in the database after the table's newest batch; they
            were not compared.
        chunks: how many chunks were compared.
        chunks_differing: how many of them differ.
        only_in_lake: columns that the database lacks, not compared.
        only_in_source: columns that the table lacks, not compared.
        left_out: other columns that were not compared, and why.
        counts: how many rows differ, by kind.
        rows: some of the differing rows.
    """

    pipeline: str
    source: str
    table: str
    status: str
    reason: str = ""
    point: str = ""
    snapshot_id: int | None = None
    in_source: SideReport = SideReport()
    in_lake: SideReport = SideReport()
    changed_since: int = 0
    chunks: int = 0
    chunks_differing: int = 0
    only_in_lake: tuple[str, ...] = ()
    only_in_source: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    rows: tuple[RowDifference, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.status == SAME

    def to_json(self) -> dict[str, Any]:
        """Return the report as `icestream verify --output json` shows it."""
        return asdict(self)


SOURCE, LAKE = 0, 1
ROWS_PER_CHUNK = 2_000
MAX_CHUNKS = 16_384
ROW_COLUMNS = "side int, key array<string>, hash long, hashes array<long>, texts array<string>"


@dataclass(frozen=True)
class SharedColumns:
    """The columns of a source and its mirror.

    Attributes:
        columns: those that both have, in the types to compare them in.
        only_in_source: those that only the source has.
        only_in_lake: those that only the mirror has.
        incompatible: those without a common type.
    """

    columns: pa.Schema
    only_in_source: tuple[str, ...] = ()
    only_in_lake: tuple[str, ...] = ()
    incompatible: tuple[str, ...] = ()


def find_shared_columns(source: pa.Schema, lake: pa.Schema) -> SharedColumns:
    """Return which columns of two tables can be compared."""
    both = [name for name in source.names if name in lake.names]
    types = {name: common_type(source.field(name).type, lake.field(name).type) for name in both}
    return SharedColumns(
        pa.schema([pa.field(name, kind) for name, kind in types.items() if kind is not None]),
        only_in_source=tuple(name for name in source.names if name not in lake.names),
        only_in_lake=tuple(name for name in lake.names if name not in source.names),
        incompatible=tuple(
            f"{name} ({source.field(name).type}, {lake.field(name).type})"
            for name, kind in types.items()
            if kind is None
        ),
    )


def comparison_spec(
    columns: pa.Schema,
    key: Sequence[str],
    rows: int,
    excluded: pa.Table | None = None,
    hidden_columns: Sequence[str] = (),
) -> ComparisonSpec:
    """Return what to compare, with a number of chunks that suits the number of rows."""
    chunks = min(max(rows // ROWS_PER_CHUNK, 1), MAX_CHUNKS)
    excluded_keys = None
    if excluded is not None and excluded.num_rows and key:
        arrays = [
            convert(excluded.column(name).combine_chunks(), columns.field(name).type)
            for name in key
        ]
        excluded_keys = pa.table(arrays, names=list(key))
    return ComparisonSpec(columns, tuple(key), chunks, excluded_keys, tuple(hidden_columns))


@dataclass(frozen=True)
class TableComparison:
    """One comparison of the rows of a source with those of the lake.

    Attributes:
        spark: the session.
        spec: what to compare.
        readers: the readers of the source and of the lake.
        parts: the parts of the source and of the lake.
    """

    spark: SparkSession
    spec: ComparisonSpec
    readers: tuple[SideReader, SideReader]
    parts: tuple[Sequence[Any], Sequence[Any]]

    @property
    def pieces(self) -> list[tuple[int, Any]]:
        return [(side, part) for side in (SOURCE, LAKE) for part in self.parts[side]]

    def checksums(self) -> tuple[SideChecksums, SideChecksums]:
        """Return the checksums of both sides."""
        sides = [SideChecksums(), SideChecksums()]
        for side, checksums in run_in_tasks(
            self.spark, self.pieces, ChecksumTask(self.readers, self.spec)
        ):
            sides[side] = sides[side].plus(checksums)
        return sides[SOURCE], sides[LAKE]

    def differences(
        self, source: SideChecksums, lake: SideChecksums, limit: int
    ) -> tuple[dict[str, int], tuple[RowDifference, ...]]:
        """Return how many rows differ, by kind, and the first of them in order of kind and key."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        chunks = differing_chunks(source, lake)
        if not chunks:
            return {}, ()
        rows = self._differing_rows(tuple(chunks)).cache()
        try:
            aggregates = [F.count(F.when(F.col("kind") == kind, 1)).alias(kind) for kind in KINDS]
            (counts,) = collect_exactly(rows.agg(*aggregates), 1)
            ordered = rows.orderBy("kind_order", "key").limit(limit)
            first = collect_exactly(ordered, min(limit, sum(counts)))
        finally:
            rows.unpersist()
        return (
            {kind: counts[kind] for kind in KINDS if counts[kind]},
            tuple(self._row_difference(row) for row in first),
        )

    def _differing_rows(self, chunks: tuple[int, ...]) -> DataFrame:
        """Return a row for each key whose rows differ between the sides."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        pieces = tuple(self.pieces)
        task = HashRowsTask(self.readers, self.spec, pieces, chunks)
        rows = self.spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task, ROW_COLUMNS)

        def of(side: int, value: str) -> Any:
            return F.when(F.col("side") == side, F.col(value))

        by_key = rows.groupBy("key").agg(
            F.count(of(SOURCE, "hash")).alias("n_source"),
            F.count(of(LAKE, "hash")).alias("n_lake"),
            F.sum(of(SOURCE, "hash").cast("decimal(38, 0)")).alias("sum_source"),
            F.sum(of(LAKE, "hash").cast("decimal(38, 0)")).alias("sum_lake"),
            F.first(of(SOURCE, "hashes"), ignorenulls=True).alias("h_source"),
            F.first(of(LAKE, "hashes"), ignorenulls=True).alias("h_lake"),
            F.first(of(SOURCE, "texts"), ignorenulls=True).alias("t_source"),
            F.first(of(LAKE, "texts"), ignorenulls=True).alias("t_lake"),
        )
        surplus = F.col("n_lake") - F.col("n_source")
        kind = (
            F.when(F.col("n_source") == 0, F.lit(EXTRA))
            .when(surplus < 0, F.lit(MISSING))
            .when(surplus > 0, F.lit(DOUBLED))
            .otherwise(F.lit(DIFFERENT))
        )
        order = F.array_position(F.array(*map(F.lit, KINDS)), F.col("kind"))
        differs = (surplus != 0) | (F.col("sum_source") != F.col("sum_lake"))
        return by_key.where(differs).withColumn("kind", kind).withColumn("kind_order", order)

    def _row_difference(self, row: Row) -> RowDifference:
        names = self.spec.columns.names
        values = row["t_source"] if row["t_source"] is not None else row["t_lake"]
        texts = dict(zip(names, values, strict=True))
        key = {name: texts[name] for name in self.spec.display_columns}
        if row["kind"] != DIFFERENT:
            return RowDifference(row["kind"], key)
        columns = {
            name: (row["t_source"][at], row["t_lake"][at])
            for at, name in enumerate(names)
            if row["h_source"][at] != row["h_lake"][at] and name not in self.spec.hidden_columns
        }
        return RowDifference(DIFFERENT, key, columns)
