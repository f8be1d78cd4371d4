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


def test_folder_is_in_the_cache_of_the_user_and_for_the_user_alone(tmp_path: Path) -> None:
    assert local_cache_folder() == tmp_path / "home" / ".cache" / "icestream"
    assert local_cache_folder().stat().st_mode & 0o777 == 0o700


def test_folder_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "fast disk"))
    assert local_cache_folder() == tmp_path / "fast disk"
    index = IndexSettings((1,), None, "some-uuid", {})
    assert index.index_path("a.parquet").parent == tmp_path / "fast disk" / "keys" / "some-uuid"


def test_user_without_a_home_has_it_in_the_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert local_cache_folder() == tmp_path / "tmp" / f"icestream-{os.getuid()}"


def test_folder_that_another_user_put_there_is_refused(
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


def test_what_nobody_used_for_days_is_removed_once_in_a_while(tmp_path: Path) -> None:
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


def test_what_takes_too_much_of_the_disk_is_removed_the_longest_unused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file(tmp_path, f"{n}", days=n / 10, size=100) for n in range(5)]
    usage = SimpleNamespace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    evict_unused(tmp_path)
    assert [each.exists() for each in files] == [True, True, True, False, False]


def test_tasks_may_tidy_at_once(tmp_path: Path) -> None:
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


def test_folder_that_is_not_there_yet_needs_no_tidying(tmp_path: Path) -> None:
    evict_unused(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_file_that_is_gone_can_not_be_marked(tmp_path: Path) -> None:
    touch(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
