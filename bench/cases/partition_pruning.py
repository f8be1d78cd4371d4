"""How long it takes to plan one partition of a table that has a thousand."""

from __future__ import annotations

import resource
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from bench.cases.case import Case, Choices
from bench.contenders.icestream_run import icestream_versions
from bench.results import Result, now
from bench.timing import timed
from icestream.catalogs.jdbc import embedded
from icestream.contracts.jars import SQLITE
from icestream.spark import jars
from icestream.spark.session import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog

PARTITIONS = 1_000
WANTED = "day = 500"


class PartitionPruning(Case):
    """A filter on the partition's column, planned to the files that it leaves.

    Figures: `plan_ms`, the whole; `files`, the files that are left. Of PyIceberg, which icestream
    plans by, also `manifests_ms`, reading the table's manifests alone, and `beyond_ms`, what
    planning takes beyond that.
    """

    name = "partition_pruning"
    rounds: ClassVar[int] = 30

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        rounds = choices.rounds or self.rounds
        catalog = embedded(folder / "lake")
        table = _fill(catalog)
        manifests = median(timed(lambda: _read_manifests(table), rounds))
        ours = timed(lambda: list(table.scan(row_filter=WANTED).plan_files()), rounds)
        files = len(list(table.scan(row_filter=WANTED).plan_files()))
        planned = [self._result("icestream", ours, files, manifests)]
        if not choices.only or "spark" in choices.only:
            theirs, seen = _by_spark(catalog, folder, rounds)
            planned.append(self._result("spark", theirs, seen))
        return planned

    def _result(
        self, contender: str, seconds: list[float], files: int, manifests: float | None = None
    ) -> Result:
        figures = {"plan_ms": round(median(seconds) * 1000, 1), "files": float(files)}
        if manifests is not None:
            figures["manifests_ms"] = round(manifests * 1000, 1)
            figures["beyond_ms"] = round((median(seconds) - manifests) * 1000, 1)
        return Result(
            case=self.name,
            contender=contender,
            rows=0,
            seconds=[round(each, 4) for each in seconds],
            rows_per_s=None,
            wall_s=[round(sum(seconds), 3)],
            cpu_s=0.0,
            peak_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            versions=icestream_versions(),
            when=now(),
            figures=figures,
        )


def _fill(catalog: Catalog[Any]) -> Table:
    """Make a table of one small file a partition, in one commit."""
    schema = Schema(NestedField(1, "day", IntegerType()), NestedField(2, "value", LongType()))
    numbers = range(PARTITIONS)
    rows = pa.table({"day": pa.array(numbers, pa.int32()), "value": numbers})
    client = catalog.client()
    client.create_namespace("bench")
    field = PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="day")
    table = client.create_table(
        ("bench", "days"), schema=schema, partition_spec=PartitionSpec(field)
    )
    table.append(rows)
    return client.load_table(("bench", "days"))


def _read_manifests(table: Table) -> int:
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    return sum(len(each.fetch_manifest_entry(table.io)) for each in manifests)


def _by_spark(catalog: Catalog[Any], folder: Path, rounds: int) -> tuple[list[float], int]:
    """Let Spark plan the same scan; it caches nothing, since each plan begins at the table."""
    prefix = f"spark.sql.catalog.{catalog.name}"
    conf = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    conf |= {f"{prefix}.{key}": value for key, value in catalog.spark_settings().items()}
    found = jars.resolve([jars.iceberg_runtime(), SQLITE])
    spark = open_session("local[2]", conf, found, folder / "spark.log")
    try:

        def plan() -> int:
            rows = spark.table(f"{catalog.name}.bench.days").where(WANTED)
            # Spark asks Iceberg for the scan's files when it makes partitions of them.
            return int(rows._jdf.queryExecution().toRdd().getNumPartitions())

        return timed(plan, rounds), plan()
    finally:
        spark.stop()
