from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bench.process_tree import Usage
from bench.results import Result, Run, keep, read, show

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _result(case: str, contender: str, *seconds: float, rows: int = 1_000) -> Result:
    runs = [Run(each, each + 5, Usage(each * 2, 100 + each)) for each in seconds]
    return Result.of_runs(case, contender, runs, {"b": "2", "a": "1"}, rows=rows)


def test_rate_is_that_of_the_median_run() -> None:
    result = _result("append", "ours", 1.0, 10.0, 2.0)

    assert result.seconds == [1.0, 10.0, 2.0]
    assert result.wall_s == [6.0, 15.0, 7.0]
    assert result.rows_per_s == 500
    assert result.cpu_s == 4.0
    assert result.peak_rss_mb == 110
    assert list(result.versions) == ["a", "b"]


def test_case_that_moves_no_rows_has_no_rate() -> None:
    assert _result("startup", "help", 1.0, rows=0).rows_per_s is None


def test_results_of_a_case_replace_its_earlier_results(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    keep([_result("append", "ours", 1), _result("append", "gone", 2)], path)
    keep([_result("startup", "help", 3)], path)
    keep([_result("append", "theirs", 4), _result("append", "ours", 5)], path)

    kept = [(each["case"], each["contender"], each["seconds"]) for each in read(path)]
    assert kept == [
        ("append", "ours", [5]),
        ("append", "theirs", [4]),
        ("startup", "help", [3]),
    ]


def test_results_file_has_the_documented_keys(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    keep([_result("append", "ours", 1)], path)

    (row,) = json.loads(path.read_text())
    assert set(row) == {
        *("case", "contender", "rows", "seconds", "rows_per_s"),
        *("wall_s", "cpu_s", "peak_rss_mb", "versions", "when", "figures"),
    }
    assert path.read_text().endswith("]\n")


def test_table_compares_each_contender_with_the_best_of_its_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([_result("append", "ours", 1), _result("append", "theirs", 4)])

    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "append" in line]
    assert [line[-6] for line in lines] == ["100%", "25%"]
