"""Every row of the page on outside changes is proven by the test that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "outside-changes.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [
    line
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| What changes"))
]


@pytest.mark.parametrize("row", ROWS)
def test_row_names_a_test_that_exists(row: str) -> None:
    named = NAMED.findall(row.rsplit("|", 2)[1])

    assert named, "the last column names no test, as `tests/FOLDER/FILE.py::TEST`"
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
