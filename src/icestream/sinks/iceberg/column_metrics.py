"""Turns the statistics of a Parquet file into the column metrics in Iceberg's manifests.

Readers skip a file by its bounds, and a DELETE drops a whole file by them. So a bound that cannot
be proved is omitted: that costs a reader time, while a wrong bound costs rows. PyIceberg has a
similar function, but it ignores row groups whose minimum and maximum are missing, and converts
bounds to Python's dates and timestamps, which don't hold every value of Iceberg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import MetricsMode
    from pyiceberg.schema import Schema
    from pyiceberg.types import PrimitiveType

FLOATS = (FloatType, DoubleType)
# Without UUIDs: Parquet orders them by unsigned bytes, Iceberg's Java readers as signed numbers.
# Bounds in one order make readers that use the other skip rows.
ORDERED = (
    *FLOATS,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)
BEFORE_SURROGATES, AFTER_SURROGATES = 0xD7FF, 0xE000
LAST_CHARACTER = 0x10FFFF


def column_metrics(
    metadata: pq.FileMetaData,
    schema: Schema,
    properties: Mapping[str, str],
    nan_counts: Mapping[int, int],
) -> dict[str, Any]:
    """Return the metrics of a data file in the JSON form of Iceberg's REST specification.

    Args:
        metadata: the file's footer.
        schema: the columns of the file, all of them, with the table's names.
        properties: the table's properties, which set the metrics mode of each column.
        nan_counts: number of NaN values by field id, for every top-level float column. Bounds
            exclude NaN, and without its count Iceberg assumes that they cover every row.
    """
    columns = [
        _Column(item.field_id, item.iceberg_type, item.mode)
        for item in compute_statistics_plan(schema, dict(properties)).values()
    ]
    offsets = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        offsets.append(_offset(group.column(0)))
        # By position: different names in the table may be the same in the file.
        for position, column in enumerate(columns):
            column.add(group.column(position))
    counted = [column for column in columns if column.mode.type is not MetricModeTypes.NONE]
    counted_ids = {column.field_id for column in counted}
    return {
        "column-sizes": _by_field({column.field_id: column.size for column in columns}),
        "value-counts": _by_field({column.field_id: column.values for column in counted}),
        "null-value-counts": _by_field({column.field_id: column.nulls for column in counted}),
        "nan-value-counts": _by_field(
            {field: count for field, count in nan_counts.items() if field in counted_ids}
        ),
        "lower-bounds": _by_field({column.field_id: column.lower_bound for column in columns}),
        "upper-bounds": _by_field({column.field_id: column.upper_bound for column in columns}),
        "split-offsets": sorted(offsets),
    }


def _offset(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the offset of a row group, from its first column."""
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)


def _by_field(values: Mapping[int, int | bytes | None]) -> dict[str, list[Any]]:
    present = {field: value for field, value in values.items() if value is not None}
    return {
        "keys": list(present),
        "values": [v.hex() if isinstance(v, bytes) else v for v in present.values()],
    }


@dataclass
class _Column:
    """The statistics of one leaf column over the row groups added so far.

    Attributes:
        nulls: number of nulls; None once a row group lacks its count.
        is_bounded: whether every row group with values has a minimum and a maximum.
        lowest: least value as Parquet stores it.
        highest: greatest value as Parquet stores it.
    """

    field_id: int
    kind: PrimitiveType
    mode: MetricsMode
    size: int = 0
    values: int = 0
    nulls: int | None = 0
    is_bounded: bool = True
    lowest: Any = None
    highest: Any = None

    def add(self, chunk: pq.ColumnChunkMetaData) -> None:
        self.size += chunk.total_compressed_size
        self.values += chunk.num_values
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count or self.nulls is None:
            # To Iceberg, bounds without a null count mean that there are no nulls.
            self.nulls, self.is_bounded = None, False
            return
        self.nulls += statistics.null_count
        if statistics.null_count == chunk.num_values:
            return
        if not statistics.has_min_max:
            # Arrow leaves them out if a value has more than 4,096 bytes, or all are NaN.
            self.is_bounded = False
        elif self.is_bounded and isinstance(self.kind, ORDERED):
            self._widen(statistics.min_raw, statistics.max_raw)

    def _widen(self, low: Any, high: Any) -> None:
        try:
            low, high = self._value(low), self._value(high)
        except UnicodeDecodeError:
            # Arrow does not validate strings; how readers order invalid ones is unknown.
            self.is_bounded = False
            return
        self.lowest = low if self.lowest is None else min(self.lowest, low)
        self.highest = high if self.highest is None else max(self.highest, high)

    def _value(self, raw: Any) -> Any:
        if isinstance(self.kind, DecimalType):
            unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
            return unscaled_to_decimal(unscaled, self.kind.scale)
        # UTF-8 sorts like its characters.
        return raw.decode() if isinstance(self.kind, StringType) else raw

    @property
    def lower_bound(self) -> bytes | None:
        if not self._keeps_bounds:
            return None
        cut = self.lowest if self.mode.length is None else self.lowest[: self.mode.length]
        return to_bytes(self.kind, cut)

    @property
    def upper_bound(self) -> bytes | None:
        if not self._keeps_bounds:
            return None
        bound = self.highest
        if self.mode.length is not None and len(bound) > self.mode.length:
            bound = _successor(bound[: self.mode.length])
        return None if bound is None else to_bytes(self.kind, bound)

    @property
    def _keeps_bounds(self) -> bool:
        modes = (MetricModeTypes.FULL, MetricModeTypes.TRUNCATE)
        return self.is_bounded and self.lowest is not None and self.mode.type in modes


def _successor(prefix: str | bytes) -> str | bytes | None:
    """Return the shortest value above everything that starts with `prefix`, if there is one."""
    if isinstance(prefix, bytes):
        stripped = prefix.rstrip(b"\xff")
        return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
    text = prefix.rstrip(chr(LAST_CHARACTER))
    if not text:
        return None
    last = ord(text[-1])
    # In between are surrogates, which UTF-8 cannot encode.
    raised = AFTER_SURROGATES if last == BEFORE_SURROGATES else last + 1
    return text[:-1] + chr(raised)
