"""Output of commands: text and JSON, tables, counts, sizes and durations."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import click
import pytest

from icestream.cli import output


def test_table_fits_its_cells_and_aligns_numbers_right() -> None:
    text = click.unstyle(
        output.format_table(("name", "rows"), [("orders", 5), ("x", None), ("y", 1200)])
    )
    assert text.splitlines() == ["name    rows", "orders     5", "x", "y       1200"]


def test_table_without_rows_is_its_header() -> None:
    assert click.unstyle(output.format_table(("name", "rows"), [])) == "name  rows"


def test_cells_show_no_control_characters() -> None:
    text = click.unstyle(output.format_table(("value",), [("a\x1b[31m\nb",), (True,)]))
    assert text.splitlines() == ["value", "a\\x1b[31m\\nb", "true"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (22_647, "22.6 kB"), (3_400_000_000, "3.4 GB")]
)
def test_size_is_shown_in_the_largest_fitting_unit(number: int, text: str) -> None:
    assert output.format_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.8 s"), (42, "42 s"), (600, "10 min"), (4 * 3600, "4 h"), (3 * 86400, "3 days")],
)
def test_duration_is_shown_in_the_largest_fitting_unit(seconds: float, text: str) -> None:
    assert output.format_duration(seconds) == text


def test_age_of_nothing_is_never() -> None:
    now = datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert output.format_age(None) == "never"
    assert output.format_age(now - timedelta(seconds=30), now) == "30 s ago"
