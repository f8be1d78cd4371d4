"""Checks that the columns a transform names are there, since Spark passes over missing ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.transform import hidden_columns
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame


def require_columns(rows: DataFrame, wanted: Iterable[str], transform: str) -> None:
    """Refuse a column that the rows do not have; upper and lower case are the same to Spark.

    Raises:
        SchemaMismatchError: a column is missing.
    """
    columns = [name for name in rows.columns if name not in hidden_columns(rows)]
    present = {name.lower() for name in columns}
    for name in wanted:
        if name.lower() not in present:
            raise SchemaMismatchError(
                f"the rows have no column {name!r}",
                where=f"transform {transform!r}",
                todo=f"They have: {', '.join(columns)}.",
            )
