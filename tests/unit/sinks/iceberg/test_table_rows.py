"""Values of the table's rows, read for changes that were sent without them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, TimestampType

from icestream.sinks.iceberg.upsert.table_rows import KEY, TableRows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("stored", "int96", "year"),
    [("ms", False, 2024), ("us", False, 9999), ("us", True, 9999), ("ns", False, 2024)],
)
def test_timestamps_are_those_of_the_table_however_a_file_stores_them(
    tmp_path: Path, stored: str, int96: bool, year: int
) -> None:
    at = datetime(year, 5, 1, 10, 0, 0, 123_000)  # noqa: DTZ001 - without a zone on purpose
    field = pa.field("at", pa.timestamp(stored), metadata={"PARQUET:field_id": "1"})
    table = pa.table([pa.array([at], field.type)], schema=pa.schema([field]))
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=int96)
    schema = Schema(NestedField(1, "at", TimestampType()))
    rows = TableRows(PyArrowFileIO(), schema, str(tmp_path / "rows.arrow"))

    rows.read_rows(str(tmp_path / "a.parquet"), np.array([7]), np.array([0]))

    kept = rows.close()
    assert kept is not None
    found = pa.ipc.open_file(kept.path).read_all()
    assert found.schema.field("at").type == pa.timestamp("us")
    assert found.to_pylist() == [{"at": at, KEY: 7}]
