"""The decoder contract: from encoded values to columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from icestream.contracts.records import Decoded


class Decoder(ABC):
    """Turns encoded values into columns.

    A decoder is built on the driver, pickled, and used in many tasks at once; it holds options,
    never connections (open those on first use and leave them out of the pickle).
    """

    def in_context(self, context: Mapping[str, Any]) -> Decoder:  # noqa: ARG002 - most need none
        """Return the decoder for records of this context, see `Records.context`.

        Called before `infer` and `decode`. A dead letter that has no context gives an empty one.
        """
        return self

    @abstractmethod
    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        """Return the columns that `sample` shows, or that a registry tells.

        Called on the driver, once for a pipeline that has no schema from elsewhere. Values that
        cannot be decoded are passed over here; `decode` reports them.
        """

    @abstractmethod
    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Decode `values` (Arrow binary) into exactly `columns`, in that order.

        A field that `columns` lacks is reported in `new_fields` with its type and otherwise left
        out. A column that a value lacks is null. One bad value never spoils its neighbours, and
        this never raises for what a value holds.
        """

    def absent_fields(
        self,
        values: pa.Array,  # noqa: ARG002
        rows: pa.RecordBatch,  # noqa: ARG002
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Tell which values have no field for a column, as opposed to a field that is null.

        Called only where that makes a difference (`missing_fields: keep`).

        Args:
            values: good values of one call of `decode`.
            rows: their rows.

        Returns:
            By column, a flag for each value; columns that every value has may be left out.
        """
        return {}
