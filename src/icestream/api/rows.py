"""The rows that a sink takes from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from icestream.contracts.option_errors import describe_type
from icestream.errors import PlanError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    WritableRows: TypeAlias = (
        pa.Table | pa.RecordBatch | pd.DataFrame | DataFrame | list[dict[str, Any]]
    )

WHERE = "IcebergSink.write"
TODO = (
    "Pass an Arrow table or record batch, a Spark or pandas DataFrame, or a list of dicts, e.g. "
    "[{'id': 1}]."
)


def to_table(rows: WritableRows) -> pa.Table | DataFrame:
    """Return rows as an Arrow table, or a Spark DataFrame as it is.

    Raises:
        PlanError: they are neither, and cannot be converted.
    """
    import pyarrow as pa

    try:
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if isinstance(rows, list | tuple):
            return _from_dicts(rows)
        if _is_frame(rows, "pandas"):
            return pa.Table.from_pandas(rows, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as exc:
        raise PlanError(
            f"the rows cannot become columns: {exc}",
            where=WHERE,
            todo="Give each column values of one type, or pass an Arrow table with a schema.",
        ) from exc
    if not _is_frame(rows, "pyspark"):
        raise PlanError(f"cannot write {describe_type(rows)}", where=WHERE, todo=TODO)
    if rows.isStreaming:
        raise PlanError(
            "cannot write a streaming DataFrame",
            where=WHERE,
            todo="Call `write` in `foreachBatch`, or build a Pipeline, which writes each row once.",
        )
    return rows


def _is_frame(rows: Any, package: str) -> bool:
    # Importing the package to find out would take a second.
    return any(
        kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == package
        for kind in type(rows).__mro__
    )


def _from_dicts(rows: Any) -> pa.Table:
    import pyarrow as pa

    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise PlanError(
                f"row {number} is {describe_type(row)}, not a dict", where=WHERE, todo=TODO
            )
    # Arrow's own conversion takes the columns of the first row only.
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})
