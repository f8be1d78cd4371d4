"""Hands the rows of a DataFrame to a task, whatever their columns are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Task = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Do as `DataFrame.mapInArrow`, which looks columns up by their bare names.

    There a dot leads into a struct and a backtick is an error. So a name that is more than a word
    is kept from Spark, and given back to the rows in the task.
    """
    names = rows.columns
    if all(name.isidentifier() for name in names):
        return rows.mapInArrow(task, schema)
    plain = rows.toDF(*(f"column_{number}" for number in range(len(names))))
    return plain.mapInArrow(_Named(task, tuple(names)), schema)


@dataclass(frozen=True)
class _Named:
    """A task whose rows get their columns' names back."""

    task: Task
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)
