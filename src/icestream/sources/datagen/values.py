"""Plausible values for a column of any type, for `datagen` with a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from icestream.errors import PlanError
from icestream.sources.datagen.numbers import Dice, Signed, decimals, scramble

if TYPE_CHECKING:
    from collections.abc import Callable

_DAY_US = 86_400_000_000
_WORDS = 1_000
_LONGEST_LIST = 3
_WHOLE_LIMITS = {8: 100, 16: 10_000, 32: 1_000_000, 64: 1_000_000}


def rows_of(schema: pa.Schema, dice: Dice, times_us: Signed) -> pa.RecordBatch:
    """Make the rows of a range with the columns of `schema`.

    A whole-number column called `id` holds the row's number; timestamps and dates follow
    `times_us`, so that time moves on as in a real stream.
    """
    columns = [values(field.type, field.name, dice, times_us) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def values(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    """Make the values of one column.

    Raises:
        PlanError: there is no recipe for its type.
    """
    for fits, make in _RECIPES:
        if fits(kind):
            return make(kind, name, dice, times_us)
    raise PlanError(f"datagen has no values for the type {str(kind)!r} of column {name!r}")


def _whole(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del times_us
    if name == "id" and kind.bit_width == 64:
        return pa.array(dice.rows).cast(kind)
    return pa.array(dice.below(name, _WHOLE_LIMITS[kind.bit_width])).cast(kind)


def _real(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del times_us
    return pa.array(np.round(dice.fraction(name) * 1_000, 3)).cast(kind, safe=False)


def _decimal(kind: pa.Decimal128Type, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del times_us
    return decimals(dice.below(name, 10 ** min(kind.precision, kind.scale + 3)), kind)


def _flag(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del kind, times_us
    return pa.array(dice.below(name, 2).astype(np.bool_))


def _text(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del times_us
    words = [f"{name}-{number}" for number in range(_WORDS)]
    return dice.pick(name, words).cast(kind)


def _fixed_bytes(kind: pa.FixedSizeBinaryType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del times_us
    wide = -(-kind.byte_width // 8)
    parts = np.stack([dice.roll(f"{name}/{part}") for part in range(wide)], axis=1)
    cut = np.ascontiguousarray(parts.view(np.uint8)[:, : kind.byte_width])
    return pa.Array.from_buffers(kind, len(dice.rows), [None, pa.py_buffer(cut)])


def _moment(kind: pa.TimestampType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del name, dice
    return pa.array(times_us).cast(pa.timestamp("us", tz=kind.tz)).cast(kind, safe=False)


def _day(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del name, dice
    return pa.array((times_us // _DAY_US).astype(np.int32)).cast(pa.date32()).cast(kind)


def _clock(kind: pa.DataType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    del name, dice
    return pa.array(times_us % _DAY_US).cast(pa.time64("us")).cast(kind, safe=False)


def _struct(kind: pa.StructType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    parts = [values(field.type, f"{name}.{field.name}", dice, times_us) for field in fields]
    return pa.StructArray.from_arrays(parts, fields=fields)


def _items(name: str, dice: Dice, times_us: Signed) -> tuple[pa.Array, Dice, Signed]:
    """Return where each row's items begin, and the numbers and times of all items."""
    counts = dice.below(f"{name}#", _LONGEST_LIST) + 1
    ends = np.cumsum(counts)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    numbers = scramble(np.repeat(dice.roll(name), counts), 0) + place.astype(np.uint64)
    inner = Dice(0, numbers.view(np.int64))
    return pa.array(offsets), inner, np.repeat(times_us, counts)


def _list(kind: pa.ListType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    offsets, inner, times = _items(name, dice, times_us)
    items = values(kind.value_type, f"{name}.item", inner, times)
    return pa.ListArray.from_arrays(offsets, items, type=kind)


def _map(kind: pa.MapType, name: str, dice: Dice, times_us: Signed) -> pa.Array:
    count = len(dice.rows)
    # One entry a row: keys must not repeat within a map.
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    keys = values(kind.key_type, f"{name}.key", dice, times_us)
    items = values(kind.item_type, f"{name}.value", dice, times_us)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind)


_RECIPES: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]], ...] = (
    (kinds.is_integer, _whole),
    (kinds.is_floating, _real),
    (kinds.is_decimal128, _decimal),
    (kinds.is_boolean, _flag),
    (kinds.is_string, _text),
    (kinds.is_large_string, _text),
    (kinds.is_binary, _text),
    (kinds.is_large_binary, _text),
    (kinds.is_fixed_size_binary, _fixed_bytes),
    (kinds.is_timestamp, _moment),
    (kinds.is_date, _day),
    (kinds.is_time, _clock),
    (kinds.is_struct, _struct),
    (kinds.is_map, _map),
    (kinds.is_list, _list),
)
