"""Texts of PostgreSQL's arrays, such as `{1,NULL,"a,b"}`, as lists of texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

_BOUNDS = re.compile(r"^(\[[^\]]*\])+=")
_IS_INTRICATE = r'["\\\[]|^.+\{'
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def elements(texts: pa.Array, delimiter: str) -> pa.ListArray:
    """Return the texts of each array's elements; null for an array of arrays.

    Args:
        texts: the arrays.
        delimiter: what stands between elements: a comma for all types but `box`.
    """
    is_intricate = pc.match_substring_regex(texts, _IS_INTRICATE)
    if pc.any(is_intricate).as_py():
        plain = _of_plain(pc.if_else(is_intricate, None, texts), delimiter)
        places = np.flatnonzero(is_intricate.fill_null(False).to_numpy(zero_copy_only=False))
        own = [_of_one(texts[int(place)].as_py(), delimiter) for place in places]
        return _merged(plain, pa.array(own, pa.list_(pa.string())), places)
    return _of_plain(texts, delimiter)


def _of_plain(texts: pa.Array, delimiter: str) -> pa.ListArray:
    """Split arrays without quotes, escapes, bounds and arrays inside."""
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    is_empty = pc.equal(inner, "").fill_null(False)
    lists = pc.split_pattern(inner, delimiter)
    if pc.any(is_empty).as_py():
        lists = pc.if_else(is_empty, pa.scalar([], pa.list_(pa.string())), lists)
    return _with_nulls(lists)


def _with_nulls(lists: pa.ListArray) -> pa.ListArray:
    values = lists.flatten()
    return with_values(lists, pc.if_else(pc.equal(values, "NULL"), None, values))


def with_values(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Return lists with other values in the places of those that `lists.flatten()` gives."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _merged(plain: pa.ListArray, own: pa.ListArray, places: npt.NDArray[np.intp]) -> pa.ListArray:
    order = np.arange(len(plain), dtype=np.int64)
    order[places] = len(plain) + np.arange(len(own))
    return pa.concat_arrays([plain, own]).take(pa.array(order))


def _of_one(text: str, delimiter: str) -> list[str | None] | None:
    """Return the elements of one array, or None if they are arrays themselves."""
    body = _BOUNDS.sub("", text)[1:-1]
    if not body:
        return []
    if body.startswith("{"):
        return None
    found: list[str | None] = []
    for quoted, bare in _element_pattern(delimiter).findall(body):
        if quoted:
            found.append(_ESCAPED.sub(r"\1", quoted[1:-1]))
        else:
            found.append(None if bare == "NULL" else _ESCAPED.sub(r"\1", bare))
    return found


def _element_pattern(delimiter: str) -> re.Pattern[str]:
    mark = re.escape(delimiter)
    return re.compile(
        rf'("(?:[^"\\]|\\.)*")(?:{mark}|$)|((?:[^"\\{mark}]|\\.)+)(?:{mark}|$)', re.DOTALL
    )
