"""Keys as numbers."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icestream.sinks.iceberg.upsert.fingerprints import fingerprints

KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [-1, 0, 7]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    (pa.bool_(), [False, True]),
    (pa.date32(), [date(1969, 12, 31), date(2024, 1, 1)]),
    (pa.time64("us"), [0, 1]),
    (pa.timestamp("us"), [0, -1]),
    (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, tzinfo=timezone.utc), 0]),
    (pa.timestamp("ns"), [1, 2]),
    (pa.string(), ["", "a", "ab", "ü" * 100]),
    (pa.binary(), [b"", b"\x00", b"\x00\x00"]),
    (pa.binary(16), [bytes(16), bytes(15) + b"\x01"]),
    (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("-1.00"), Decimal("10.00")]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_each_value_has_a_unique_stable_fingerprint(kind: pa.DataType, values: list[Any]) -> None:
    once = fingerprints([pa.array(values, kind)])
    again = fingerprints([pa.array([None, *values], kind).slice(1)])
    assert once.low.tolist() == again.low.tolist()
    assert len(set(once.low.tolist())) == len(values)
    if once.high is not None and again.high is not None:
        assert once.high.tolist() == again.high.tolist()
        assert set(once.high.tolist()).isdisjoint(once.low.tolist())


def test_widened_number_keeps_its_fingerprint() -> None:
    narrow, wide = (fingerprints([pa.array([-5, 5], kind)]) for kind in (pa.int32(), pa.int64()))
    assert narrow.low.tolist() == wide.low.tolist()


def test_one_number_is_its_own_fingerprint() -> None:
    found = fingerprints([pa.array([0, 1, 2])])
    assert (found.low.tolist(), found.high) == ([0, 1, 2], None)


def test_columns_of_a_key_are_distinguished() -> None:
    left, right = pa.array(["a", "ab", "b"]), pa.array(["b", "", "a"])
    once, swapped = fingerprints([left, right]), fingerprints([right, left])
    everything = [*once.low.tolist(), *swapped.low.tolist()]
    # ("a", "b") swapped is ("b", "a"), which both have; the rest differ.
    assert len(set(everything)) == 4


def test_fingerprints_written_by_an_older_version_still_match() -> None:
    found = fingerprints([pa.array(["icestream"]), pa.array([42])])
    assert found.high is not None
    assert (hex(found.low[0]), hex(found.high[0])) == (
        "0x3d452e6d45aedac8",
        "0x1631e73742f53bed",
    )
