"""Changes the types of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.columns import ColumnType, OptionProblem, report_unknown
from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import FAULT, Transform, require_columns
from icestream.errors import PlanError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from icestream.contracts.columns import Columns, Report

MAX_TEXT_LENGTH = 100


class CastOptions(ShorthandOptions):
    """Which columns change their type."""

    shorthand: ClassVar[str] = "columns"

    columns: dict[str, str] = Field(
        min_length=1, description="Column to Spark SQL type, e.g. `{amount: 'decimal(10,2)'}`."
    )

    @classmethod
    def is_full_form(cls, value: Any) -> bool:
        # A column may itself be called `columns`: then its type is a string, not a mapping.
        return super().is_full_form(value) and not (
            isinstance(value, dict) and isinstance(value["columns"], str)
        )


class CastTransform(Transform[CastOptions]):
    """Casts columns by SQL's rules; a value that does not fit makes its record bad."""

    options_type = CastOptions
    records_faults = True
    passes_faults = True
    passes_unchanged_columns = True
    is_row_by_row = True

    def new_name(self, name: str) -> str | None:
        is_cast = name.lower() in {column.lower() for column in self.options.columns}
        return None if is_cast else name

    def output_columns(self, columns: Columns, report: Report) -> Columns:
        from icestream.schemas.spark_types import parse_spark_type

        report_unknown(columns, self.options.columns, report, "columns")
        cast: dict[str, ColumnType] = {}
        for name, sql_type in self.options.columns.items():
            kind: pa.DataType | None = None
            try:
                kind = parse_spark_type(sql_type)
            except PlanError as exc:
                report(OptionProblem(("columns", name), exc.what, exc.todo))
            # Spark takes the name as it is written here.
            cast[name.lower()] = ColumnType(name, kind)
        return columns.replace(cast.get(each.name.lower(), each) for each in columns.known)

    def apply(self, rows: DataFrame) -> DataFrame:
        require_columns(rows, self.options.columns, "cast")
        if FAULT in rows.columns:
            return self._apply_marking_faults(rows)
        return rows.withColumns(
            {
                name: rows[quote_for_spark(name)].cast(sql_type)
                for name, sql_type in self.options.columns.items()
            }
        )

    def _apply_marking_faults(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        kinds = rows.select(
            *(rows[quote_for_spark(name)].cast(kind) for name, kind in self.options.columns.items())
        ).schema
        reasons, casts = [rows[FAULT]], {}
        for (name, sql_type), cast in zip(self.options.columns.items(), kinds, strict=True):
            column = rows[quote_for_spark(name)]
            old_type = rows.select(column).schema[0].dataType
            article = "an" if sql_type[:1].lower() in ("a", "i") else "a"
            reason = F.concat(
                F.lit(f"column {name!r}: "),
                _display_text(column, old_type),
                F.lit(f" is not {article} {sql_type}"),
            )
            reasons.append(F.when(_is_lost(column, old_type, cast.dataType), reason))
            casts[name] = column.try_cast(sql_type)
        return rows.withColumns({**casts, FAULT: F.coalesce(*reasons)})


def _is_lost(column: Column, old: DataType, new: DataType) -> Column:
    """Return a condition that holds where a cast turns a value, at any depth, into null."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
    from pyspark.sql.types import ArrayType, MapType, StructType

    lost = column.isNotNull() & column.try_cast(new).isNull()
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        elements = old.elementType, new.elementType
        return lost | F.exists(column, lambda item: _is_lost(item, *elements))
    if isinstance(old, MapType) and isinstance(new, MapType):
        values = old.valueType, new.valueType
        return lost | F.exists(F.map_values(column), lambda item: _is_lost(item, *values))
    if isinstance(old, StructType) and isinstance(new, StructType):
        for old_field, new_field in zip(old, new, strict=False):
            member = column[old_field.name]
            lost = lost | _is_lost(member, old_field.dataType, new_field.dataType)
    return F.coalesce(lost, F.lit(False))


def _display_text(column: Column, kind: DataType) -> Column:
    """Return a value as text that is short enough for a message."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, ArrayType | MapType | StructType):
        return F.substring(F.to_json(column), 1, MAX_TEXT_LENGTH)
    text = F.substring(column.cast("string"), 1, MAX_TEXT_LENGTH)
    return F.concat(F.lit("'"), text, F.lit("'")) if isinstance(kind, StringType) else text
