"""Broken set-ups are found by `check`, with the message that they end with; good ones pass.

A case is a file of `tests/corpus`, or a folder with an `icestream.yaml`. The comments at the end of
a broken one hold what `check` prints: `# exit: 2`, then the messages. `# online` before that runs
`check` with its connections, to the embedded catalog and local files.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fixtures.command_line import Icestream

CORPUS = Path(__file__).parents[1] / "corpus"
EXPECTED = re.compile(
    r"^(?P<online># online\n)?# exit: (?P<code>\d)\n(?P<text>(?:#.*\n)+)\Z", re.MULTILINE
)
BROKEN = sorted((CORPUS / "broken").iterdir())
GOOD = sorted((CORPUS / "good").iterdir())


@dataclass(frozen=True)
class Expected:
    """How `check` ends for a broken set-up."""

    offline: bool
    code: int
    text: str


def expected(case: Path) -> Expected:
    found = EXPECTED.search(text_of(case))
    assert found is not None, f"{case} does not end with the expected output"
    lines = [line.removeprefix("#").removeprefix(" ") for line in found["text"].splitlines()]
    return Expected(not found["online"], int(found["code"]), "\n".join(lines))


def text_of(case: Path) -> str:
    return (case / "icestream.yaml" if case.is_dir() else case).read_text()


def set_up(case: Path, folder: Path) -> None:
    if case.is_dir():
        shutil.copytree(case, folder, dirs_exist_ok=True)
    else:
        shutil.copy(case, folder / "icestream.yaml")


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.stem)
def test_broken_set_up_is_found(icestream: Icestream, tmp_path: Path, case: Path) -> None:
    wanted = expected(case)
    set_up(case, tmp_path)

    ended = icestream("check", *(["--offline"] if wanted.offline else []))

    printed = ended.err.removeprefix("error: ").rstrip("\n") or _reasons(ended.out)
    assert printed.replace(str(tmp_path), ".") == wanted.text
    assert ended.code == wanted.code


def _reasons(out: str) -> str:
    """Return the errors of the failed steps, without the steps."""
    reasons = [line[6:] for line in out.splitlines() if line.startswith(" " * 6)]
    return "\n".join(reasons)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.stem)
def test_good_set_up_passes(icestream: Icestream, tmp_path: Path, case: Path) -> None:
    set_up(case, tmp_path)
    online = text_of(case).rstrip().endswith("# online")

    ended = icestream("check", *([] if online else ["--offline"]))

    assert (ended.code, ended.err) == (0, "")
    assert " ! " not in ended.out


def test_corpus_is_large_enough() -> None:
    assert len(BROKEN) >= 60
    assert len(GOOD) >= 30
