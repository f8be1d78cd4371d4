"""Compares the rows that a test expects with those that it got, value by value."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.registry import did_you_mean
from icestream.formats.json import JsonDecoder
from icestream.formats.values import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]

# Values that differ by less, relative to their size, are equal.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class RowMismatch:
    """An expected row that was not found, a row that was not expected, or two that differ.

    Attributes:
        expected: the row of the test; None for one that was not expected.
        found: the row of the pipeline; None for one that was not found.
        columns: the values of both by column, where two similar rows differ.
        index: the index of the expected row in the test.
    """

    expected: Row | None = None
    found: Row | None = None
    columns: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    index: int | None = None


@dataclass(frozen=True)
class RowComparison:
    """The difference between expected and found rows.

    Attributes:
        problems: what is wrong with the expected rows themselves, such as an unknown column.
        mismatches: rows that differ.
    """

    problems: Sequence[str] = ()
    mismatches: Sequence[RowMismatch] = ()


def compare_rows(
    expected: Sequence[Row], found: Sequence[Row], columns: pa.Schema, *, in_order: bool = False
) -> RowComparison:
    """Compare expected rows with those found.

    A column that an expected row leaves out is not compared. Values are compared as the column's
    type has them: `10.5` equals a decimal of 10.50, and a text equals the timestamp that it says.
    Bytes are given as their text, or in base64.

    Args:
        expected: the rows of the test.
        found: the rows of the pipeline.
        columns: their columns.
        in_order: whether the order of the rows counts.
    """
    problems: dict[str, None] = {}
    typed = [_typed(row, columns, problems) for row in expected]
    if problems:
        return RowComparison(tuple(problems))
    pairs = _in_order(typed, found) if in_order else _matches(typed, found)
    missing = [number for number in range(len(typed)) if number not in pairs]
    surplus = [number for number in range(len(found)) if number not in pairs.values()]
    mismatches = []
    for number in missing:
        closest = number if in_order else _closest(typed[number], found, surplus)
        if closest not in surplus:
            mismatches.append(RowMismatch(expected=expected[number], index=number))
            continue
        surplus.remove(closest)
        differing = {
            name: (value, found[closest][name])
            for name, value in typed[number].items()
            if not _equal(value, found[closest][name])
        }
        mismatches.append(RowMismatch(expected[number], found[closest], differing, number))
    mismatches += [RowMismatch(found=found[number]) for number in surplus]
    return RowComparison((), mismatches)


def _typed(row: Row, columns: pa.Schema, problems: dict[str, None]) -> dict[str, Any]:
    """Return an expected row with values of the columns' types."""
    typed = {}
    for name, value in row.items():
        index = columns.get_field_index(name)
        if index < 0:
            hint = did_you_mean(name, columns.names)
            names = ", ".join(columns.names) or "none"
            problems[f"there is no column {name!r}. {hint}Columns: {names}"] = None
            continue
        column = columns.field(index).remove_metadata().with_nullable(True)
        if pa.types.is_binary(column.type) and isinstance(value, str):
            typed[name] = value
            continue
        given = pa.array([json.dumps({name: value}).encode()], pa.binary())
        outcome = JsonDecoder().decode(given, pa.schema([column]))
        if outcome.bad or outcome.new_fields:
            kind = type_name(column.type)
            problems[f"column {name!r} is a {kind}, and never has the value {value!r}"] = None
            continue
        typed[name] = outcome.rows.column(0)[0].as_py()
    return typed


def _in_order(expected: Sequence[Row], found: Sequence[Row]) -> dict[int, int]:
    pairs = zip(range(len(expected)), range(len(found)), strict=False)
    return {one: other for one, other in pairs if _fits(expected[one], found[other])}


def _matches(expected: Sequence[Row], found: Sequence[Row]) -> dict[int, int]:
    """Pair expected rows with found ones, as many as possible.

    An expected row may fit several, so a pair is given up for another where that makes one more.
    """
    options = [
        [number for number, row in enumerate(found) if _fits(wanted, row)] for wanted in expected
    ]
    owners: dict[int, int] = {}

    def assign(number: int, tried: set[int]) -> bool:
        for option in options[number]:
            if option in tried:
                continue
            tried.add(option)
            if option not in owners or assign(owners[option], tried):
                owners[option] = number
                return True
        return False

    for number in range(len(expected)):
        assign(number, set())
    return {number: option for option, number in owners.items()}


def _fits(expected: Row, found: Row) -> bool:
    return all(_equal(value, found[name]) for name, value in expected.items())


def _closest(expected: Row, found: Sequence[Row], among: Sequence[int]) -> int:
    """Return the row that has most values in common; -1 if none has any."""
    common = {
        number: sum(_equal(value, found[number][name]) for name, value in expected.items())
        for number in among
    }
    best = max(common, key=lambda number: common[number], default=-1)
    return best if common.get(best) else -1


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=TOLERANCE)
    if isinstance(one, str) and isinstance(other, bytes):
        return other in (one.encode(), _from_base64(one))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
