"""Changes the types of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions
from icestream.contracts.quoting import quote_for_spark
from icestream.contracts.transform import Transform
from icestream.transforms.columns import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CastOptions(ShorthandOptions):
    """Which columns change their type."""

    shorthand: ClassVar[str] = "columns"

    columns: dict[str, str] = Field(
        min_length=1, description="Column to Spark SQL type, e.g. `{amount: 'decimal(10,2)'}`."
    )

    @classmethod
    def _is_spelt_out(cls, value: Any) -> bool:
        # A column may itself be called `columns`: then its type is a text, not a mapping.
        return super()._is_spelt_out(value) and not (
            isinstance(value, dict) and isinstance(value["columns"], str)
        )


class CastTransform(Transform[CastOptions]):
    """Changes the types of columns by SQL's rules; a value that does not fit is an error."""

    options_type = CastOptions

    def apply(self, rows: DataFrame) -> DataFrame:
        require_columns(rows, self.options.columns, "cast")
        return rows.withColumns(
            {
                name: rows[quote_for_spark(name)].cast(sql_type)
                for name, sql_type in self.options.columns.items()
            }
        )
