"""A base class for formats that parse one record at a time: the simplest way to write a format.

```python
class PairsDecoder(RowDecoder):
    def parse(self, value: bytes) -> dict[str, str]:
        return dict(pair.split("=") for pair in value.decode().split(";"))
```
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.formats.blocks import (
    BadValueError,
    BlockDecoder,
    DecodedValues,
    required_value_error,
)
from icestream.formats.csv import cell_value
from icestream.formats.inference import (
    columns_for,
    infer_fields,
    join_columns,
    resolved_fields,
    unknown_fields,
)
from icestream.formats.values import MisfitError, converter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_TOO_DEEP = "nested thousands of levels deep"


class RowDecoder(BlockDecoder):
    """Decodes values that are parsed one by one; a subclass provides `parse`.

    Fields are matched to columns by their exact name, and converted to their types:

    - Text is converted as a cell of CSV is: `7` and `007` are numbers, `true` and `1` are
      booleans, dates and times are ISO 8601, and empty text is null unless the column is text.
    - Any other value is converted as in JSON: a number must fit its column exactly.

    A value that does not fit its column, a missing value of a required column, and a record that is
    `None` are bad. The type of a field without a column is inferred as in JSON: text that looks
    like a date or a timestamp has that type, and `7` is text.

    Parsing in Python takes microseconds for each record. A format that can read many records at
    once, with Arrow for instance, is a `BlockDecoder`.

    Attributes:
        infers_types: False if the type of text is always `string`, whatever it looks like.
    """

    infers_types: ClassVar[bool] = True

    @abstractmethod
    def parse(self, value: bytes) -> Mapping[str, Any]:
        """Return the fields of one record: texts, or values as `json.loads` returns them.

        Raises:
            ValueError: the value can't be decoded. The text of the error is the reason that the
                dead letter shows; every other exception stops the pipeline.
        """

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        """Return the fields of the sample; a field that is null everywhere is left out."""
        records = []
        for value in sample:
            try:
                records.append(self._record(value or b""))
            except BadValueError:  # noqa: PERF203 - decode reports it
                continue
        return pa.schema(list(resolved_fields(self._infer_fields(records)).items()))

    def fast_path_mask(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Leave every value to `parse`."""
        return np.zeros(len(values), np.bool_)

    def read_block(
        self,
        values: pa.Array,  # noqa: ARG002
        columns: pa.Schema,  # noqa: ARG002
    ) -> None:
        """Read nothing: there is no fast path."""
        return

    def read_values(self, values: list[bytes], columns: pa.Schema, outcome: DecodedValues) -> None:
        """Parse values one by one, and convert their fields to the columns."""
        good: list[list[Any]] = []
        records: list[Mapping[str, Any]] = []
        for index, value in enumerate(values):
            record: Mapping[str, Any] = {}
            try:
                record = self._record(value)
                good.append(_row(record, columns))
            except BadValueError as exc:
                outcome.bad.append((index, str(exc)))
                if record:
                    outcome.wider = join_columns(outcome.wider, columns_for(columns, record))
            else:
                outcome.kept.append(index)
                records.append(record)
        if good:
            outcome.rows = _record_batch(good, columns)
            outcome.new_fields = unknown_fields(columns, self._infer_fields(records))

    def absent_fields(
        self, values: pa.Array, rows: pa.RecordBatch
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Flag, by column, the records that have no field for it."""
        records = [self._record(value) for value in values.to_pylist()]
        return {
            name: np.array([name not in record for record in records], np.bool_)
            for name in rows.schema.names
        }

    def _infer_fields(self, records: list[Mapping[str, Any]]) -> dict[str, pa.DataType]:
        if self.infers_types:
            return infer_fields(records)
        return infer_fields(_with_placeholders(record) for record in records)

    def _record(self, value: bytes) -> Mapping[str, Any]:
        try:
            return self.parse(value)
        except ValueError as exc:
            # A reason is one line.
            reason = " ".join(str(exc).split()) or type(exc).__name__
            raise BadValueError(reason) from None
        except RecursionError:
            raise BadValueError(_TOO_DEEP) from None


def _row(record: Mapping[str, Any], columns: pa.Schema) -> list[Any]:
    """Return the values of one record, in the order of the columns."""
    row = []
    for field in columns:
        value = record.get(field.name)
        # As text it stays what it is, and `converter` refuses what UTF-8 can't encode.
        is_cell = isinstance(value, str) and not _is_text(field.type)
        convert = partial(cell_value, kind=field.type) if is_cell else converter(field.type)
        try:
            value = convert(value)
        except MisfitError as exc:
            raise BadValueError(exc.reason(field.name)) from None
        except UnicodeEncodeError:
            raise BadValueError(f"column {field.name!r}: a lone surrogate is not text") from None
        except RecursionError:
            raise BadValueError(_TOO_DEEP) from None
        if value is None and not field.nullable:
            raise required_value_error(field.name)
        row.append(value)
    return row


def _with_placeholders(value: Any) -> Any:
    """Replace each text by one that looks like no date, at any depth."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return [_with_placeholders(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_placeholders(item) for name, item in value.items()}
    return value


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _record_batch(rows: list[list[Any]], columns: pa.Schema) -> pa.RecordBatch:
    if not len(columns):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    arrays = [
        pa.array([row[index] for row in rows], field.type) for index, field in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
