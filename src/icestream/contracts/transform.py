"""The transform contract: a DataFrame in, a DataFrame out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic

from icestream.contracts.columns import UNKNOWN_COLUMNS, unknown_column
from icestream.contracts.source import OptionsT
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

    from icestream.contracts.columns import Columns, Report
    from icestream.contracts.options import Options


# Columns that the engine adds when some rows may turn out bad: the record that a row comes from,
# and why the row can't be used. They never reach a table.
ROW = "__icestream_row"
FAULT = "__icestream_fault"
# Columns that rows of changes have: what the change does, and whether it has no row to transform,
# because it is a delete or a filter has left its row out.
CHANGE = "__icestream_change"
ABSENT = "__icestream_absent"


def hidden_columns(rows: DataFrame) -> list[str]:
    """Return the engine's own columns among those of the rows."""
    return [name for name in rows.columns if name in (ROW, FAULT, CHANGE, ABSENT)]


class Transform(ABC, Generic[OptionsT]):
    """One step between a source and a sink, applied to each batch.

    Attributes:
        records_faults: for a row that it cannot transform, it writes the reason to the column
            `FAULT` if the rows have that column; otherwise the batch fails.
        passes_unchanged_columns: it keeps `UNCHANGED_COLUMNS`, under the new names of the columns.
        passes_faults: it keeps the hidden columns, and every row that has a `FAULT`. Before a
            transform that does not, the engine removes such rows.
        is_row_by_row: each row of the result comes from one row, whatever the other rows are, so it
            can be applied to changes. It must keep `hidden_columns`, and instead of removing a row
            of a DataFrame that has the column `ABSENT`, it sets that column.
    """

    options_type: ClassVar[type[Options]]
    records_faults: ClassVar[bool] = False
    passes_faults: ClassVar[bool] = False
    passes_unchanged_columns: ClassVar[bool] = False
    is_row_by_row: ClassVar[bool] = False

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def removes(self, name: str) -> bool:  # noqa: ARG002
        """Tell whether the result never has a column of this name."""
        return False

    def new_name(self, name: str) -> str | None:  # noqa: ARG002
        """Return the name under which the result has the values of a column, none of them changed.

        None if the result does not have them. Changes need it of key columns.
        """
        return None

    def fit(self, columns: Sequence[str]) -> Transform[OptionsT] | None:  # noqa: ARG002
        """Return the step for one of the tables to all of which the step is applied.

        None if there is nothing to do for a table with these columns.
        """
        return self

    def output_columns(self, columns: Columns, report: Report) -> Columns:  # noqa: ARG002
        """Return the columns of the result, as far as they are known without Spark.

        `icestream check` calls it before any row is read. It must agree with `apply`: a column that
        is known must be in the result, with the type that is given; a problem must be one that
        `apply` would raise. After a problem, it goes on with what is known, so that one mistake
        does not hide the next.

        Args:
            columns: the columns of the rows, perhaps not all of them.
            report: takes each problem, with the path of the option that causes it.
        """
        return UNKNOWN_COLUMNS

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """Return the transformed rows. Called once a batch; must not run a Spark job."""


def require_columns(rows: DataFrame, names: Iterable[str], transform: str) -> None:
    """Refuse a column that the rows do not have; names are case-insensitive, as in Spark.

    Raises:
        SchemaMismatchError: a column is missing.
    """
    columns = [name for name in rows.columns if name not in hidden_columns(rows)]
    present = {name.lower() for name in columns}
    for name in names:
        if name.lower() not in present:
            what, todo = unknown_column(name, columns)
            raise SchemaMismatchError(what, where=f"transform {transform!r}", todo=todo)
