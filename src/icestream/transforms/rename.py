"""Renames columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from icestream.contracts.changes import UNSENT
from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import Transform
from icestream.transforms.columns import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RenameOptions(ShorthandOptions):
    """Which columns are renamed."""

    shorthand: ClassVar[str] = "columns"

    columns: dict[str, str] = Field(min_length=1, description="Old name to new name.")

    @classmethod
    def _is_spelt_out(cls, value: Any) -> bool:
        # A column may itself be called `columns`: then its new name is a text, not a mapping.
        return super()._is_spelt_out(value) and not (
            isinstance(value, dict) and isinstance(value["columns"], str)
        )


class RenameTransform(Transform[RenameOptions]):
    """Renames columns; one that is not there is an error."""

    options_type = RenameOptions
    passes_faults = True
    passes_unsent = True

    def removes(self, name: str) -> bool:
        return name in self.options.columns

    def apply(self, rows: DataFrame) -> DataFrame:
        require_columns(rows, self.options.columns, "rename")
        renamed = rows.withColumnsRenamed(self.options.columns)
        if UNSENT not in rows.columns:
            return renamed
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        names = F.create_map(
            *(F.lit(text) for pair in self.options.columns.items() for text in pair)
        )
        unsent = F.transform(UNSENT, lambda name: F.coalesce(names[name], name))
        return renamed.withColumn(UNSENT, unsent)
