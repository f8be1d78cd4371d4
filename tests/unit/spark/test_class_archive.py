"""Which archive of classes a start finds, and which jars it needs for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.contracts.jars import SQLITE
from icestream.spark import class_archive
from icestream.spark.class_archive import (
    add_archived_jars,
    archive_folder,
    class_path,
    find_archive,
)
from icestream.spark.jars import cache_path, iceberg_runtime, jar_name

RUNTIME = iceberg_runtime()
INSTALLATION = "0123456789ab"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(class_archive, "_installation_id", lambda: INSTALLATION)


def write_archive(size: int = 3) -> Path:
    archive_folder().mkdir(parents=True)
    path = archive_folder() / f"{INSTALLATION}-{size}.jsa"
    path.write_bytes(b"abc")
    return path


def write_jars(*coordinates: str) -> None:
    cache_path("jars").mkdir(parents=True)
    for each in coordinates:
        (cache_path("jars") / jar_name(each)).touch()


def test_search_for_an_archive_creates_no_folder() -> None:
    assert find_archive() is None
    assert not cache_path("").exists()


def test_archive_is_used_if_its_size_matches_its_name() -> None:
    assert find_archive() is None
    path = write_archive()
    assert find_archive() == path

    path.write_bytes(b"a")
    assert find_archive() is None


def test_archive_replaced_during_the_search_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = archive_folder() / f"{INSTALLATION}-3.jsa"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([gone]))

    assert find_archive() is None


def test_archived_jars_are_added_to_those_of_the_plan() -> None:
    write_jars(RUNTIME, SQLITE)
    assert add_archived_jars([RUNTIME, "a:other:1"]) == (RUNTIME, "a:other:1")

    write_archive()
    assert add_archived_jars([RUNTIME, "a:other:1"]) == (RUNTIME, "a:other:1", SQLITE)


def test_no_jar_is_downloaded_only_for_an_archive() -> None:
    write_archive()
    write_jars(RUNTIME)

    assert add_archived_jars([RUNTIME, "a:other:1"]) == (RUNTIME, "a:other:1")


def test_archived_jars_come_first_in_their_order() -> None:
    runtime, sqlite = Path("/jars", jar_name(RUNTIME)), Path("/jars", jar_name(SQLITE))
    others = [Path("/jars/z.jar"), Path("/jars/a.jar")]

    assert class_path([others[0], sqlite, others[1], runtime]) == [runtime, sqlite, *others]
    assert class_path([others[0], runtime]) == [runtime, others[0]]
