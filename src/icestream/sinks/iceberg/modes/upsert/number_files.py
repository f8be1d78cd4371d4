"""Numbers of many rows in Arrow files beside the staged rows, rather than in reports to the driver.

A report goes through the JVM of the driver, in one piece with those of all other tasks; a file is
read by whoever needs it. Arrow and not pickle, since others may write to the store. Numbers of a
few rows stay in the report: a file would cost a batch three more requests to the store.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.sinks.iceberg.arrow_files import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from pyiceberg.io import FileIO

    Arrays = Mapping[str, npt.NDArray[Any]]
    # The arrays, and further names of some of them.
    Numbers = tuple[dict[str, npt.NDArray[Any]], dict[str, str]]

ROWS_A_BLOCK = 1 << 20
# The most that a report holds: about 60,000 keys.
REPORT_BYTES = 1_500_000


def numbers_of(arrays: Arrays, names: Mapping[str, str] | None = None) -> pa.Table:
    """Return arrays of one length as a table.

    Args:
        arrays: by name.
        names: further names, each for one of the arrays.
    """
    table = pa.table({name: pa.array(values) for name, values in arrays.items()})
    return table.replace_schema_metadata({"names": json.dumps(dict(names or {}))})


def write_numbers(io: FileIO, path: str, numbers: pa.Table) -> None:
    """Write what `numbers_of` returned to a file."""
    with io.new_output(path).create() as stream:
        _write(pa.PythonFile(stream, mode="w"), numbers)


def packed(numbers: pa.Table) -> bytes:
    """Return what `numbers_of` returned as bytes, for a report."""
    output = pa.BufferOutputStream()
    _write(output, numbers)
    content: bytes = output.getvalue().to_pybytes()
    return content


def read_numbers(io: FileIO, path: str) -> Numbers:
    """Return the arrays of a file, and the further names of some of them."""
    with io.new_input(path).open() as stream:
        return _read(readable(stream))


def unpacked(content: bytes) -> Numbers:
    """Return the arrays of `packed` numbers, and the further names of some of them."""
    return _read(pa.BufferReader(content))


def _write(output: pa.NativeFile, numbers: pa.Table) -> None:
    file = pa.ipc.new_file(output, numbers.schema)
    file.write_table(numbers, max_chunksize=ROWS_A_BLOCK)
    file.close()


def _read(source: pa.NativeFile) -> Numbers:
    table = pa.ipc.open_file(source).read_all()
    arrays = {
        name: np.ascontiguousarray(table.column(name).to_numpy()) for name in table.schema.names
    }
    return arrays, json.loads(table.schema.metadata[b"names"])
