"""Class archives: complete ones are found, incomplete ones refused, older ones replaced.

Those here are of Java's own classes: they are written in a second.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from icestream.spark.class_archive import archive_folder, find_archive, store_archive
from icestream.spark.java import require_java

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive_folder().mkdir(parents=True)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "written"
    option = f"-XX:ArchiveClassesAtExit={path}"
    command = [str(require_java().command), option, "-Xlog:disable", "--list-modules"]
    subprocess.run(command, check=True, capture_output=True)
    path.chmod(0o600)
    return path


def test_empty_cache_has_no_archive() -> None:
    assert find_archive() is None


def test_cached_archive_is_found(written: Path) -> None:
    kept = store_archive(written)

    assert kept is not None
    assert kept.parent == archive_folder()
    assert find_archive() == kept
    assert not written.exists()


def test_truncated_archive_is_neither_cached_nor_used(written: Path) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[: len(whole) // 2])
    assert store_archive(written) is None
    assert find_archive() is None

    written.write_bytes(whole)
    kept = store_archive(written)
    assert kept is not None
    with kept.open("r+b") as file:
        file.truncate(len(whole) // 2)
    assert find_archive() is None


def test_partially_written_archive_is_not_cached(written: Path) -> None:
    with written.open("r+b") as file:
        file.write(bytes(4096))  # the head, which Java writes last

    assert store_archive(written) is None


def test_archive_not_written_by_java_is_not_cached(tmp_path: Path) -> None:
    assert store_archive(tmp_path / "missing") is None


def test_newer_archive_replaces_the_previous_one(written: Path) -> None:
    older = store_archive(written)
    assert older is not None
    renamed = older.with_name(older.name.replace("-", "-1"))
    older.rename(renamed)

    newer = archive_folder() / "newer"
    newer.write_bytes(renamed.read_bytes())
    kept = store_archive(newer)

    assert [*archive_folder().iterdir()] == [kept]


def test_archives_of_another_java_stay(written: Path) -> None:
    other = archive_folder() / "0123456789ab-7.jsa"
    other.write_text("another")
    kept = store_archive(written)

    assert {*archive_folder().iterdir()} == {other, kept}
