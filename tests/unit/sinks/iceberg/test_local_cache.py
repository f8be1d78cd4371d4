"""The folder of a machine for indexes of keys: where it is, whose it is, and what is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from icestream.errors import ConnectorError
from icestream.sinks.iceberg.upsert.key_index import (
    CACHE_VARIABLE,
    UNUSED_SECS,
    IndexSettings,
    evict_unused,
    local_cache_folder,
    touch,
)

if TYPE_CHECKING:
    from pathlib import Path

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))


def test_folder_is_in_the_user_cache_and_private(tmp_path: Path) -> None:
    assert local_cache_folder() == tmp_path / "home" / ".cache" / "icestream"
    assert local_cache_folder().stat().st_mode & 0o777 == 0o700


def test_folder_can_be_set_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "fast disk"))
    assert local_cache_folder() == tmp_path / "fast disk"
    index = IndexSettings((1,), None, "some-uuid", {})
    assert index.index_path("a.parquet").parent == tmp_path / "fast disk" / "keys" / "some-uuid"


def test_user_without_a_home_gets_a_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert local_cache_folder() == tmp_path / "tmp" / f"icestream-{os.getuid()}"


def test_folder_created_by_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    place = tmp_path / "tmp" / "icestream-4242"
    place.mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(ConnectorError) as caught:
        local_cache_folder()
    assert str(caught.value) == (
        "the key index needs a folder on the machine of the task, and none can be used: "
        f"{tmp_path}/home/.cache/icestream (not a directory), {place} (not writable, or of another "
        "user)\n"
        "  Set ICESTREAM_CACHE_DIR in the environment of the workers to a folder that their user "
        "can write, or for all of them with `spark.conf: "
        "{spark.executorEnv.ICESTREAM_CACHE_DIR: /path}`."
    )


def file(folder: Path, name: str, *, days: float, size: int = 0) -> Path:
    path = folder / "table" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    when = time.time() - days * DAY
    os.utime(path, (when, when))
    return path


def test_files_unused_for_days_are_removed_periodically(tmp_path: Path) -> None:
    fresh, old = file(tmp_path, "a", days=1), file(tmp_path, "b", days=9)
    used = file(tmp_path, "c", days=9)
    touch(used)
    evict_unused(tmp_path)
    assert (fresh.exists(), old.exists(), used.exists()) == (True, False, True)

    again = file(tmp_path, "b", days=9)
    evict_unused(tmp_path)
    assert again.exists(), "it was tidied a moment ago"
    os.utime(tmp_path / "tidied", (0, 0))
    evict_unused(tmp_path)
    assert not again.exists()


def test_least_recently_used_files_are_removed_above_the_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file(tmp_path, f"{n}", days=n / 10, size=100) for n in range(5)]
    usage = SimpleNamespace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    evict_unused(tmp_path)
    assert [each.exists() for each in files] == [True, True, True, False, False]


def test_concurrent_tasks_may_clean_up(tmp_path: Path) -> None:
    for number in range(200):
        file(tmp_path, f"{number}", days=UNUSED_SECS / DAY + 1)
    faults: list[BaseException] = []

    def body() -> None:
        try:
            evict_unused(tmp_path)
        except BaseException as exc:  # noqa: BLE001 - told by the test
            faults.append(exc)

    threads = [threading.Thread(target=body) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_missing_folder_needs_no_cleanup(tmp_path: Path) -> None:
    evict_unused(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_touching_a_missing_file_does_not_create_it(tmp_path: Path) -> None:
    touch(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
