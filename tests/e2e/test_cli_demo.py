"""`icestream demo`, and the scripts that it leaves for other engines."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.command_line import run_icestream

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    ended = run_icestream("demo", "--seconds", "1", "--dir", str(folder), folder=folder.parent)
    assert ended.code == 0, ended.err
    return folder, ended.out


def test_demo_shows_a_query_and_keeps_its_folder(demo: tuple[Path, str]) -> None:
    folder, out = demo
    assert "(5 rows)" in out
    assert f"All files are in {folder}" in out
    ended = run_icestream("snapshots", "--output", "json", folder=folder)
    assert ended.document["snapshots"][0]["pipeline"] == "shop"


@pytest.mark.parametrize("engine", ["duckdb", "polars", "spark"])
def test_demo_leaves_a_script_that_reads_the_table(demo: tuple[Path, str], engine: str) -> None:
    folder, out = demo
    script = folder / f"read_with_{engine}.py"
    for line in script.read_text(encoding="utf-8").splitlines():
        assert line in out
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "purchase" in done.stdout


def test_demo_leaves_another_file_alone(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    ended = run_icestream("demo", "--dir", str(folder), folder=folder)
    assert (ended.code, ended.err) == (
        2,
        f"error: {folder}: the folder already has an icestream.yaml\n"
        f"  Choose another folder, or continue with "
        f"`icestream run --config {folder}/icestream.yaml`.\n",
    )
