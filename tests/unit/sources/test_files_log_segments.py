"""The files of a log: written once, by one process, folded when they are done."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.quick_files import quick

from icestream.errors import CorruptStateError, SupersededError
from icestream.sources.files.folder import FileEntry
from icestream.sources.files.log import FileLog
from icestream.testing.source_suite import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.offset import Offset
    from icestream.sources.files import FilesSource


def put(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(name + "\n")
    return path


def values(source: FilesSource, start: Offset, end: Offset) -> list[str]:
    return [row[0].decode() for row in rows_of(source, start, end)]  # type: ignore[index]


def read_all(source: FilesSource) -> Offset:
    return source.latest(source.initial())


def test_missing_or_corrupt_segment_is_reported(tmp_path: Path) -> None:
    source = quick(tmp_path)
    put(tmp_path, "a")
    here = read_all(source)
    put(tmp_path, "b")
    source.latest(here)
    first, second = sorted((tmp_path / ".state/files" / here["log"]).iterdir())
    todo = (
        "\n  Restore it from a backup, or delete the folder: the log is rebuilt if all files that "
        "were read\n  are still in place."
    )

    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(CorruptStateError) as missing:
        quick(tmp_path).latest(here)
    first.write_bytes(kept[:-20])
    with pytest.raises(CorruptStateError) as broken:
        quick(tmp_path).latest(here)

    assert str(missing.value) == (
        f"the file log {second} cannot be read: its files 0 to 0 are missing{todo}"
    )
    assert broken.value.what.startswith(f"the file log {first} cannot be read: ")


@pytest.fixture(params=["hard links", "no hard links"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if request.param == "no hard links":
        monkeypatch.setattr("icestream.sources.files.log.os.link", refuse)


@pytest.mark.usefixtures("file_system")
def test_second_process_that_appends_to_the_log_is_refused(tmp_path: Path) -> None:
    one, other = quick(tmp_path), quick(tmp_path)
    here = one.initial()
    put(tmp_path, "a")
    assert other.latest(here) != here

    with pytest.raises(SupersededError) as caught:
        one.latest(here)

    assert str(caught.value) == (
        "another process has written 000000000000.jsonl of the file log "
        f"{tmp_path}/.state/files/{here['log']}\n"
        "  Run one instance of a pipeline at a time."
    )


@pytest.mark.usefixtures("file_system")
def test_one_of_several_processes_appends_a_segment(tmp_path: Path) -> None:
    logs = [FileLog(tmp_path / "log") for _ in range(4)]
    entries = [FileEntry(f"{number}", 1, 1) for number in range(len(logs))]
    together = Barrier(len(logs))

    def append(number: int) -> bool:
        together.wait()
        try:
            logs[number].append([entries[number]])
        except SupersededError:
            return False
        return True

    with ThreadPoolExecutor(len(logs)) as pool:
        has_appended = list(pool.map(append, range(len(logs))))

    assert has_appended.count(True) == 1
    assert FileLog(tmp_path / "log").files(0, 1) == [entries[has_appended.index(True)]]
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["000000000000.jsonl"]


@pytest.mark.parametrize("name", ["000000000001.jsonl", "000000000001.seen"])
def test_empty_file_of_the_log_is_reported(tmp_path: Path, name: str) -> None:
    """A crash can leave one on a file system without hard links."""
    put(tmp_path, "a")
    here = read_all(quick(tmp_path))
    empty = tmp_path / ".state/files" / here["log"] / name
    empty.touch()

    with pytest.raises(CorruptStateError) as caught:
        quick(tmp_path).latest(here)

    assert str(caught.value) == (
        f"the file log has an empty file {empty}: the process that created it was killed, or is "
        "still writing it\n"
        "  Make sure that no other instance of the pipeline is running, then delete the file. "
        "Nothing refers to it yet."
    )
    empty.unlink()
    assert quick(tmp_path).latest(here) == here


def test_unfinished_segment_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log")
    log.append([FileEntry("a", 1, 1)])
    for name in ("000000000001.jsonl.0af1.new", "000000000001.seen.0af1.new"):
        (log.folder / name).write_bytes(b"{")

    again = FileLog(log.folder)
    again.append([FileEntry("b", 1, 1)])
    assert FileLog(log.folder).files(0, 2) == [FileEntry("a", 1, 1), FileEntry("b", 1, 1)]


def test_folder_that_cannot_be_synced_stops_the_log_only_if_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, fault = os.fsync, errno.EINVAL

    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(fault, os.strerror(fault))
        sync(handle)

    monkeypatch.setattr("icestream.sources.files.log.os.fsync", refuse_folders)
    log = FileLog(tmp_path / "log")
    log.append([FileEntry("a", 1, 1)])
    fault = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        log.append([FileEntry("b", 1, 1)])


def test_committed_files_are_folded_and_still_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.files.log.FOLD_SEGMENTS", 3)
    source = quick(tmp_path)
    here = source.initial()
    for number in range(10):
        put(tmp_path, f"{number}")
        here = source.latest(here)
        source.committed(here, 1)
    log = tmp_path / ".state/files" / here["log"]
    assert len(list(log.iterdir())) <= 5

    put(tmp_path, "new")
    restarted = quick(tmp_path)

    assert values(restarted, here, restarted.latest(here)) == ["new"]


def read_and_remove(source: FilesSource, folder: Path, here: Offset, count: int) -> Offset:
    for number in range(count):
        path = put(folder, f"{number}")
        here = source.latest(here)
        source.committed(here, 1)
        path.unlink()
    return here


def known_names(folder: Path, here: Offset) -> int:
    [seen] = (folder / ".state/files" / str(here["log"])).glob("*.seen")
    return seen.stat().st_size // 16


@pytest.fixture
def few_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.files.log.FOLD_SEGMENTS", 1)
    monkeypatch.setattr("icestream.sources.files.log.REMEMBERED_FILES", 4)


@pytest.mark.usefixtures("few_remembered")
def test_only_removed_files_are_forgotten_and_only_past_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.files.folder.ABSENT_SECS", 0.0)
    source = quick(tmp_path)
    put(tmp_path, "stays")
    here = read_and_remove(source, tmp_path, source.latest(source.initial()), 20)

    assert known_names(tmp_path, here) <= 6
    assert quick(tmp_path).latest(here) == here


@pytest.mark.usefixtures("few_remembered")
def test_file_that_a_listing_misses_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = quick(tmp_path)
    put(tmp_path, "missed")
    here = read_and_remove(source, tmp_path, source.latest(source.initial()), 10)
    with monkeypatch.context() as patched:
        patched.setattr("icestream.sources.files.folder.list_paths", lambda *_: ["new"])
        put(tmp_path, "new")
        here = source.latest(here)
        source.committed(here, 1)

    assert known_names(tmp_path, here) == 12
    assert source.latest(here) == here


@pytest.mark.usefixtures("few_remembered")
def test_file_that_returns_within_the_hour_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    here = read_and_remove(source, tmp_path, source.latest(source.initial()), 10)
    with monkeypatch.context() as patched:
        patched.setattr("icestream.sources.files.folder.ABSENT_SECS", 0.0)
        path.rename(tmp_path / ".a")
        put(tmp_path, "b")
        here = source.latest(here)  # the hour begins
    (tmp_path / ".a").rename(path)
    assert source.latest(here) == here
    path.rename(tmp_path / ".a")
    monkeypatch.setattr("icestream.sources.files.folder.ABSENT_SECS", 0.0)
    assert source.latest(here) == here  # the hour ends, and `a` is gone once more
    (tmp_path / ".a").rename(path)

    assert source.latest(here) == here


@pytest.mark.usefixtures("few_remembered")
def test_empty_listing_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.files.folder.ABSENT_SECS", 0.0)
    source = quick(tmp_path)
    here = source.initial()
    for number in range(10):
        put(tmp_path, f"{number}")
        here = source.latest(here)
        source.committed(here, 1)
    with monkeypatch.context() as patched:
        patched.setattr("icestream.sources.files.folder.list_paths", lambda *_: [])
        for _ in range(3):
            source.latest(here)

    assert source.latest(here) == here
