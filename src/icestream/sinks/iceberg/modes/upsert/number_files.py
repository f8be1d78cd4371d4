"""Numbers of many rows in Arrow files beside the staged rows, rather than in reports to the driver.

A report goes through the JVM of the driver, in one piece with those of all other tasks; a file is
read by whoever needs it, one at a time. Arrow and not pickle, since others may write to the store.
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

ROWS_A_BLOCK = 1 << 20


def write_numbers(
    io: FileIO, path: str, arrays: Arrays, names: Mapping[str, str] | None = None
) -> None:
    """Write arrays of one length.

    Args:
        io: the store.
        path: the file.
        arrays: by name.
        names: further names, each for one of the arrays.
    """
    table = pa.table({name: pa.array(values) for name, values in arrays.items()})
    table = table.replace_schema_metadata({"names": json.dumps(dict(names or {}))})
    with io.new_output(path).create() as stream:
        output = pa.ipc.new_file(pa.PythonFile(stream, mode="w"), table.schema)
        output.write_table(table, max_chunksize=ROWS_A_BLOCK)
        output.close()


def read_numbers(io: FileIO, path: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the arrays of a file, and the further names of some of them."""
    with io.new_input(path).open() as stream:
        table = pa.ipc.open_file(readable(stream)).read_all()
    arrays = {
        name: np.ascontiguousarray(table.column(name).to_numpy()) for name in table.schema.names
    }
    return arrays, json.loads(table.schema.metadata[b"names"])
