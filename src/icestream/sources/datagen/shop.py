"""The `shop_events` template: what visitors of a web shop do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.sources.datagen.numbers import Dice, Signed, decimals

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


def shop_events(dice: Dice, times_us: Signed) -> pa.RecordBatch:
    """Make the rows of a range.

    Args:
        dice: the range's numbers.
        times_us: when each row happened, in microseconds since 1970.
    """
    product = dice.below("product", len(_PRICES_IN_CENTS))
    cents = np.array(list(_PRICES_IN_CENTS.values()), dtype=np.int64)[product]
    discount = dice.below("discount", 5) * 5
    # Squaring a fraction makes a few customers much busier than the rest, as in any shop.
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
