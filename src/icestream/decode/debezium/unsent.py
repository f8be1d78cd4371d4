"""Finds the placeholder that Debezium puts where PostgreSQL sent no value.

PostgreSQL leaves out large values that an update did not change. The connector writes a text in
their place, in as many forms as there are types.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Flags = npt.NDArray[np.bool_]

PLACEHOLDER = "__debezium_unavailable_value"


class Placeholder:
    """One placeholder in its forms."""

    def __init__(self, text: str) -> None:
        raw = text.encode()
        self._raw = raw
        digest = hashlib.md5(raw, usedforsecurity=False).digest()
        self._texts = (
            text,
            base64.b64encode(raw).decode(),
            base64.urlsafe_b64encode(raw).decode(),
            raw.hex(),
        )
        self._items = (text, str(uuid.UUID(bytes=digest, version=3)))
        self._numbers = list(raw)

    def find(self, array: pa.Array) -> Flags | None:
        """Tell which values are the placeholder; None if none is."""
        kind = array.type
        if pa.types.is_string(kind):
            return self._among(array, self._texts)
        if pa.types.is_binary(kind):
            return self._among(array, (self._raw,))
        if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
            return _items(array, 1, [[item] for item in self._items])
        if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
            return _items(array, len(self._numbers), [self._numbers])
        if pa.types.is_map(kind) and pa.types.is_string(kind.item_type):
            return _items(array, 1, [[(self._items[0], self._items[0])]])
        return None

    def _among(self, array: pa.Array, forms: tuple[Any, ...]) -> Flags | None:
        found = pc.is_in(array, value_set=pa.array(forms, array.type))
        flags: Flags = found.to_numpy(zero_copy_only=False)
        return flags if flags.any() else None


def _items(array: pa.Array, length: int, forms: list[Any]) -> Flags | None:
    """Look into lists of the right length only."""
    lists = array.cast(pa.list_(array.type.field(0))) if pa.types.is_map(array.type) else array
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    flags = np.zeros(len(array), np.bool_)
    for place in np.flatnonzero(lengths == length).tolist():
        flags[place] = array[place].as_py() in forms
    return flags if flags.any() else None
