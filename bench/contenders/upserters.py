"""Who upserts batches into a table by key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from bench import keyed_rows, lake
from bench.contenders.icestream_run import icestream_versions
from bench.table_files import NAMESPACE
from icestream.contracts.jars import SQLITE
from icestream.spark import jars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.lake import Lake

DDL = {"int64": "bigint", "string": "string"}
HEAD = """\
version: "1.0"
spark:
  master: "local[2]"
  conf: {spark.driver.memory: 2g}
metrics: {port: 0}
"""
SOURCE = """\
  changes_{table}:
    connector: files
    config: {{path: {changes}, format: parquet, glob: "*.parquet", max_files_per_batch: 1}}
"""
SINK = """\
  lake_{table}:
    connector: iceberg
    config:
      catalog: {{type: jdbc, jdbc: {{uri: "jdbc:sqlite:{database}"}}, warehouse: {warehouse}}}
      namespace: {namespace}
      table: icestream_{table}
      commit_mode: upsert
      key_fields: [{keys}]
"""
PIPELINE = """\
  upsert_{table}: {{source: changes_{table}, sink: lake_{table}}}
"""


def spark_settings(mine: Lake) -> dict[str, Any]:
    """Return what a job needs to open a session on a lake."""
    found = jars.resolve([jars.iceberg_runtime(), SQLITE])
    return {
        "jars": [str(path) for path in found],
        "catalog": lake.CATALOG,
        "database": str(mine.database),
        "warehouse": str(mine.warehouse),
    }


def spark_versions() -> dict[str, str]:
    return {
        "pyspark": metadata.version("pyspark"),
        "iceberg": jars.iceberg_runtime().rpartition(":")[2],
    }


class Upserter(ABC):
    """A way to upsert. Its job does every table, so that one process serves a kind of key."""

    name: ClassVar[str]
    job: ClassVar[str]

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of what runs."""

    @abstractmethod
    def settings(self, kind: str, mine: Lake, changes: Mapping[int, Path]) -> dict[str, Any]:
        """Return the settings of its job, besides those of every job."""

    def takes(self, rows: int, sizes: Sequence[int]) -> bool:
        """Tell whether it is asked to work on a table of this size."""
        return rows < max(sizes)


class Icestream(Upserter):
    """The write path of `icestream run`."""

    name = "icestream"
    job = "icestream_upserts"

    def versions(self) -> dict[str, str]:
        return icestream_versions()

    def settings(self, kind: str, mine: Lake, changes: Mapping[int, Path]) -> dict[str, Any]:
        keys = ", ".join(keyed_rows.KEYS[kind])
        parts: dict[str, str] = {"sources": "", "sinks": "", "pipelines": ""}
        for rows, folder in changes.items():
            facts = {
                "table": rows,
                "changes": folder,
                "database": mine.database,
                "warehouse": mine.warehouse,
                "namespace": NAMESPACE,
                "keys": keys,
            }
            parts["sources"] += SOURCE.format(**facts)
            parts["sinks"] += SINK.format(**facts)
            parts["pipelines"] += PIPELINE.format(**facts)
        path = mine.folder / f"{self.name}.yaml"
        path.write_text(HEAD + "".join(f"{name}:\n{text}" for name, text in parts.items()))
        return {"config": str(path)}

    def takes(self, rows: int, sizes: Sequence[int]) -> bool:  # noqa: ARG002 - the question's form
        return True


class Merge(Upserter):
    """`MERGE INTO`, merge-on-read, under snapshot isolation, with a driver of 4 GB."""

    name = "merge"
    job = "merge_upserts"
    bloom: ClassVar[bool] = False

    def versions(self) -> dict[str, str]:
        return spark_versions()

    def settings(self, kind: str, mine: Lake, changes: Mapping[int, Path]) -> dict[str, Any]:  # noqa: ARG002
        return {
            **spark_settings(mine),
            "bloom": self.bloom,
            "keys": {key: DDL[str(kind)] for key, kind in keyed_rows.KEYS[kind].items()},
            "prefix": f"{lake.CATALOG}.{NAMESPACE}.{self.name}_",
        }


class MergeBloom(Merge):
    """The same, with Spark made to filter the table's scan by the keys of the batch."""

    name = "merge_bloom"
    bloom = True


CONTENDERS: tuple[Upserter, ...] = (Icestream(), Merge(), MergeBloom())
