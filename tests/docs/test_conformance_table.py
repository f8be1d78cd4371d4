"""The table of results claims no more than was seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from docs.conformance_table import FEATURES, conformance_page

if TYPE_CHECKING:
    from pathlib import Path

ALL_PASSED = dict.fromkeys(FEATURES, "passed")


@pytest.mark.parametrize(
    ("target", "results", "cells"),
    [
        ("rest", {**ALL_PASSED, "test_a": "passed"}, "1 of 1 | ✓ | ✓ | ✓ | ✓ | ✓ | ✓ | ✓ | ✓"),
        (
            "rest",
            {**ALL_PASSED, "test_upsert": "failed", "test_a": "passed", "test_b": "failed"},
            "1 of 2 | ✓ | ✗ | ✓ | ✓ | ✓ | ✓ | ✓ | ✓",
        ),
        (
            "rest, on S3",
            {**ALL_PASSED, "test_upsert": "skipped", "test_a": "skipped"},
            "not run | ✓ | not run | ✓ | ✓ | ✓ | ✓ | ✓ | ✓",
        ),
        ("rest", {"test_append": "passed"}, "not run | ✓" + " | not run" * 7),
        # Nested namespaces are refused by name, which is what its test then sees.
        ("glue, on S3", ALL_PASSED, "not run | ✓ | ✓ | ✓ | ✓ | ✓ in turns | ✓ | - | ✓"),
        ("glue, on S3", {}, "not run" + " | not run" * 8),
    ],
)
def test_row_of_a_target(target: str, results: dict[str, str], cells: str, tmp_path: Path) -> None:
    path = tmp_path / "conformance.json"
    path.write_text(json.dumps({target: results}), encoding="utf-8")

    page = conformance_page("<!-- notice -->", path)

    assert f"| {target} | {cells} |\n" in page
