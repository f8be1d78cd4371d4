"""Generates plausible values for columns of any type."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


UInt64Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]"
Int64Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
Float64Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def scramble(numbers: UInt64Array, salt: int) -> UInt64Array:
    """Return one well-mixed 64-bit number for each of `numbers` (SplitMix64).

    Different salts give unrelated numbers. There is no state: row 10 is the same whether the rows
    before it were generated or not, so any range can be replayed.
    """
    mixed = (numbers + np.uint64(salt & _MASK)) * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


class RowRandom:
    """Random numbers for a range of rows, column by column.

    Args:
        seed: of the random values.
        rows: row numbers.
    """

    def __init__(self, seed: int, rows: Int64Array) -> None:
        self.rows = rows
        self._base = scramble(rows.astype(np.uint64), seed)

    def roll(self, column: str) -> UInt64Array:
        """Return one 64-bit number per row for a column."""
        return scramble(self._base, crc32(column.encode()))

    def below(self, column: str, limit: int) -> Int64Array:
        """Return whole numbers from 0 up to, not including, `limit`."""
        return (self.roll(column) % np.uint64(limit)).astype(np.int64)

    def fraction(self, column: str) -> Float64Array:
        """Return fractions from 0 up to, not including, 1."""
        return (self.roll(column) >> np.uint64(11)).astype(np.float64) / float(1 << 53)

    def pick(self, column: str, choices: Sequence[str], weights: Sequence[float] = ()) -> pa.Array:
        """Return one of `choices` per row, weighted if weights are given."""
        if weights:
            edges = np.cumsum(np.array(weights, dtype=np.float64))
            picked = np.searchsorted(edges / edges[-1], self.fraction(column), side="right")
        else:
            picked = self.below(column, len(choices))
        return pa.array(choices, pa.string()).take(pa.array(picked.astype(np.int64)))


def decimals(unscaled: Int64Array, kind: pa.Decimal128Type) -> pa.Array:
    """Return integers as decimals: 1999 is 19.99 with scale 2."""
    halves = np.empty((len(unscaled), 2), dtype=np.int64)
    halves[:, 0] = unscaled
    halves[:, 1] = unscaled >> 63
    return pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(halves)])


PRICE = pa.decimal128(10, 2)

SHOP_EVENTS = pa.schema(
    [
        ("event_id", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("customer_id", pa.int64()),
        ("event_type", pa.string()),
        ("product", pa.string()),
        ("quantity", pa.int32()),
        ("price", PRICE),
        ("country", pa.string()),
    ]
)

_CUSTOMERS = 10_000
_EVENT_TYPES = {"view": 70, "cart": 20, "purchase": 9, "refund": 1}
_COUNTRIES = {"US": 30, "DE": 15, "GB": 12, "FR": 10, "IN": 10, "JP": 8, "BR": 7, "CA": 5, "NL": 3}
_PRICES_IN_CENTS = {
    "notebook": 349,
    "mug": 899,
    "socks": 1150,
    "water bottle": 1995,
    "desk lamp": 3450,
    "backpack": 5900,
    "keyboard": 7999,
    "headphones": 12900,
    "office chair": 24900,
    "monitor": 32900,
    "bicycle": 74900,
    "laptop": 129900,
}


def shop_events(dice: RowRandom, times_us: Int64Array) -> pa.RecordBatch:
    """Generate the rows of a range.

    Args:
        dice: random numbers for the range.
        times_us: timestamp of each row, in epoch microseconds.
    """
    product = dice.below("product", len(_PRICES_IN_CENTS))
    cents = np.array(list(_PRICES_IN_CENTS.values()), dtype=np.int64)[product]
    discount = dice.below("discount", 5) * 5
    # Squaring a fraction makes some customers much busier than others, as in any shop.
    customer = (dice.fraction("customer_id") ** 2 * _CUSTOMERS).astype(np.int64) + 1
    quantity = (dice.fraction("quantity") ** 3 * 5).astype(np.int32) + np.int32(1)
    columns = [
        pa.array(dice.rows),
        pa.array(times_us).cast(SHOP_EVENTS.field("event_time").type),
        pa.array(customer),
        dice.pick("event_type", list(_EVENT_TYPES), list(_EVENT_TYPES.values())),
        pa.array(list(_PRICES_IN_CENTS), pa.string()).take(pa.array(product)),
        pa.array(quantity),
        decimals(cents * (100 - discount) // 100, PRICE),
        dice.pick("country", list(_COUNTRIES), list(_COUNTRIES.values())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SHOP_EVENTS)


_DAY_US = 86_400_000_000
_WORDS = 1_000
_LONGEST_LIST = 3
_WHOLE_LIMITS = {8: 100, 16: 10_000, 32: 1_000_000, 64: 1_000_000}


def make_rows(schema: pa.Schema, dice: RowRandom, times_us: Int64Array) -> pa.RecordBatch:
    """Generate the rows of a range with the columns of `schema`.

    A `bigint` column `id` holds the row number; timestamps and dates follow `times_us`, so that
    time advances as in a real stream.
    """
    columns = [make_values(field.type, field.name, dice, times_us) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def make_values(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    """Generate the values of one column.

    Raises:
        PlanError: its type is not supported.
    """
    for fits, make in _GENERATORS:
        if fits(kind):
            return make(kind, name, dice, times_us)
    raise PlanError(f"datagen cannot generate type {str(kind)!r} of column {name!r}")


def _integer(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del times_us
    if name == "id" and kind.bit_width == 64:
        return pa.array(dice.rows).cast(kind)
    return pa.array(dice.below(name, _WHOLE_LIMITS[kind.bit_width])).cast(kind)


def _float(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del times_us
    return pa.array(np.round(dice.fraction(name) * 1_000, 3)).cast(kind, safe=False)


def _decimal(kind: pa.Decimal128Type, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del times_us
    return decimals(dice.below(name, 10 ** min(kind.precision, kind.scale + 3)), kind)


def _bool(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del kind, times_us
    return pa.array(dice.below(name, 2).astype(np.bool_))


def _text(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del times_us
    words = [f"{name}-{number}" for number in range(_WORDS)]
    return dice.pick(name, words).cast(kind)


def _fixed_bytes(
    kind: pa.FixedSizeBinaryType, name: str, dice: RowRandom, times_us: Int64Array
) -> pa.Array:
    del times_us
    wide = -(-kind.byte_width // 8)
    parts = np.stack([dice.roll(f"{name}/{part}") for part in range(wide)], axis=1)
    cut = np.ascontiguousarray(parts.view(np.uint8)[:, : kind.byte_width])
    return pa.Array.from_buffers(kind, len(dice.rows), [None, pa.py_buffer(cut)])


def _timestamp(
    kind: pa.TimestampType, name: str, dice: RowRandom, times_us: Int64Array
) -> pa.Array:
    del name, dice
    return pa.array(times_us).cast(pa.timestamp("us", tz=kind.tz)).cast(kind, safe=False)


def _date(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del name, dice
    return pa.array((times_us // _DAY_US).astype(np.int32)).cast(pa.date32()).cast(kind)


def _time(kind: pa.DataType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    del name, dice
    return pa.array(times_us % _DAY_US).cast(pa.time64("us")).cast(kind, safe=False)


def _struct(kind: pa.StructType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    parts = [make_values(field.type, f"{name}.{field.name}", dice, times_us) for field in fields]
    return pa.StructArray.from_arrays(parts, fields=fields)


def _items(
    name: str, dice: RowRandom, times_us: Int64Array
) -> tuple[pa.Array, RowRandom, Int64Array]:
    """Return the offset of each row's items, and the numbers and times of all items."""
    counts = dice.below(f"{name}#", _LONGEST_LIST) + 1
    ends = np.cumsum(counts)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    numbers = scramble(np.repeat(dice.roll(name), counts), 0) + place.astype(np.uint64)
    inner = RowRandom(0, numbers.view(np.int64))
    return pa.array(offsets), inner, np.repeat(times_us, counts)


def _list(kind: pa.ListType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    offsets, inner, times = _items(name, dice, times_us)
    items = make_values(kind.value_type, f"{name}.item", inner, times)
    return pa.ListArray.from_arrays(offsets, items, type=kind)


def _map(kind: pa.MapType, name: str, dice: RowRandom, times_us: Int64Array) -> pa.Array:
    count = len(dice.rows)
    # One entry per row: keys must not repeat within a map.
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    keys = make_values(kind.key_type, f"{name}.key", dice, times_us)
    items = make_values(kind.item_type, f"{name}.value", dice, times_us)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind)


_GENERATORS: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]], ...] = (
    (kinds.is_integer, _integer),
    (kinds.is_floating, _float),
    (kinds.is_decimal128, _decimal),
    (kinds.is_boolean, _bool),
    (kinds.is_string, _text),
    (kinds.is_large_string, _text),
    (kinds.is_binary, _text),
    (kinds.is_large_binary, _text),
    (kinds.is_fixed_size_binary, _fixed_bytes),
    (kinds.is_timestamp, _timestamp),
    (kinds.is_date, _date),
    (kinds.is_time, _time),
    (kinds.is_struct, _struct),
    (kinds.is_map, _map),
    (kinds.is_list, _list),
)
