"""A task that meets a value too wide for its column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.unit.engine.test_columns import json_source, splits

from icestream.contracts.reports import unpack_report
from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.engine.batch.tasks import ReadAndWrite, Reading
from icestream.formats.json import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.engine.batch.tasks import Report


class Discarding(TaskWriter):
    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        return [WrittenFile(batch.num_rows, 0, {}) for batch in batches]


def read(*, widening: bool, stop_at_bad: bool = True) -> Report:
    source = json_source(b'{"n": 1}', b'{"n": "text"}', b'{"n": 1099511627776}')
    reading = Reading(
        source=source,
        decoder=JsonDecoder(),
        splits=tuple(splits(source, slots=1)),
        columns=pa.schema([("n", pa.int32())]),
        evolving=True,
        stop_at_bad=stop_at_bad,
        widening=widening,
    )
    numbers = pa.RecordBatch.from_pydict({"split": [0]})
    [batch] = ReadAndWrite(reading, Discarding())([numbers])
    report: Report = unpack_report(batch.column(0)[0].as_py())[1]
    return report


@pytest.mark.parametrize("stop_at_bad", [True, False])
def test_wide_value_is_reported_before_any_record_is_called_bad(stop_at_bad: bool) -> None:
    report = read(widening=True, stop_at_bad=stop_at_bad)

    assert report.wider == {"n": pa.field("n", pa.int64())}
    assert (report.bad, report.files, report.error) == (0, [], None)


def test_wide_value_is_bad_where_columns_do_not_widen() -> None:
    report = read(widening=False)

    assert report.wider == {}
    assert [record.reason for record in report.examples] == [
        "column 'n': 'text' is not an int",
        "column 'n': 1099511627776 is not an int",
    ]
