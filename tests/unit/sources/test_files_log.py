"""Late, touched, changed and vanished files: none is lost or doubled in silence."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.quick_files import QuickFiles, quick

from icestream.errors import SourceChangedError
from icestream.sources.files import FilesOptions, FilesSource
from icestream.sources.files.folder import FileEntry, stat_file
from icestream.testing.source_suite import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.offset import Offset

DAY_NS = 86_400 * 10**9
REMEDY = (
    "\n  Restore the original file. Files in the folder must not change: write them elsewhere,\n  "
    "move them in under a new name, and delete them only after their rows are in the table."
)

CHANGED_AFTER_REMEDY = (
    "\n  If it is a new file, rename it: under an unused name, it is read as a whole.\n  If rows "
    "were added to a file that was read, restore the original and deliver the new rows in a new "
    "file.\n  A name can be reused only after a running pipeline has listed the folder without it."
)


class PatientFiles(FilesSource):
    settle_secs = 0.05
    listing_pause = 0.0


def await_next_tick(folder: Path) -> None:
    """Let the file system's clock move on, so that what comes next is seen to come later."""
    probe = folder / ".probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    deadline = time.monotonic() + 120
    while probe.stat().st_ctime_ns == before:
        assert time.monotonic() < deadline
        probe.touch()


def change_mode(path: Path) -> None:
    await_next_tick(path.parent)
    path.chmod(0o600)


def put(folder: Path, name: str, text: str = "", *, days_old: int = 0) -> Path:
    await_next_tick(folder)
    path = folder / name
    path.write_text((text or name) + "\n")
    if days_old:
        written_ns = path.stat().st_mtime_ns - days_old * DAY_NS
        os.utime(path, ns=(written_ns, written_ns))
    return path


def values(source: FilesSource, start: Offset, end: Offset) -> list[str]:
    return [row[0].decode() for row in rows_of(source, start, end)]  # type: ignore[index]


def await_newest(source: FilesSource, here: Offset) -> Offset:
    deadline = time.monotonic() + 120
    while (later := source.latest(here)) == here:
        assert time.monotonic() < deadline
    return later


def read_all(source: FilesSource) -> Offset:
    return source.latest(source.initial())


def test_file_moved_in_long_after_it_was_written_is_read(tmp_path: Path) -> None:
    source = quick(tmp_path)
    put(tmp_path, "new")
    here = read_all(source)

    put(tmp_path, "old", days_old=30)

    assert values(source, here, source.latest(here)) == ["old"]


def test_file_moved_in_late_while_the_pipeline_was_down_is_read(tmp_path: Path) -> None:
    put(tmp_path, "new")
    here = read_all(quick(tmp_path))

    put(tmp_path, "old", days_old=30)

    restarted = quick(tmp_path)
    assert values(restarted, here, restarted.latest(here)) == ["old"]


def test_change_of_mode_does_not_make_a_file_new(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    here = read_all(source)

    change_mode(path)

    assert source.latest(here) == here


def test_change_of_mode_right_after_planning_does_not_make_a_file_new(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.initial()
    end = source.latest(start)

    change_mode(path)

    assert values(source, start, end) == ["a"]
    assert source.latest(end) == end


def test_change_of_mode_while_the_pipeline_was_down_does_not_make_a_file_new(
    tmp_path: Path,
) -> None:
    paths = [put(tmp_path, name) for name in ("a", "b")]
    here = read_all(quick(tmp_path))
    paths[0].unlink()
    change_mode(paths[1])
    put(tmp_path, "c")

    restarted = quick(tmp_path)

    assert values(restarted, here, restarted.latest(here)) == ["c"]


def test_replayed_batch_reads_the_files_that_it_was_planned_with(tmp_path: Path) -> None:
    """A file that turns up late, with an older time, is read by a later batch."""
    source = quick(tmp_path)
    start = source.initial()
    paths = [put(tmp_path, name) for name in ("b", "c")]
    middle = source.latest(start)
    put(tmp_path, "a", days_old=30)
    for path in paths:
        change_mode(path)

    restarted = quick(tmp_path)

    assert values(restarted, start, middle) == ["b", "c"]
    assert values(restarted, middle, restarted.latest(middle)) == ["a"]


@pytest.mark.parametrize("clock", [-DAY_NS, DAY_NS])
def test_clock_jump_skips_no_file(
    tmp_path: Path, clock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = quick(tmp_path)
    put(tmp_path, "a")
    here = read_all(source)
    put(tmp_path, "b")

    def stat_shifted(folder: str, path: str) -> FileEntry | None:
        entry = stat_file(folder, path)
        return entry and entry._replace(ctime_ns=entry.ctime_ns + clock)

    monkeypatch.setattr("icestream.sources.files.folder.stat_file", stat_shifted)

    assert values(source, here, source.latest(here)) == ["b"]


def test_file_is_read_once_two_listings_show_it_unchanged(tmp_path: Path) -> None:
    put(tmp_path, "a")
    source = PatientFiles(FilesOptions(path=str(tmp_path)))
    start = source.initial()

    here = source.latest(start)
    assert values(source, start, here) == ["a"], "the first call waits for what is there"
    put(tmp_path, "b")
    assert source.latest(here) == here
    assert values(source, here, await_newest(source, here)) == ["b"]


def test_growing_file_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, "a")
    source = PatientFiles(FilesOptions(path=str(tmp_path)))
    here = read_all(source)
    path = put(tmp_path, "b", "1")
    assert source.latest(here) == here
    for text in ("1\n2\n", "1\n2\n3\n"):
        time.sleep(2 * source.settle_secs)  # long enough for a file that does not change
        path.write_text(text)
        assert source.latest(here) == here

    assert values(source, here, await_newest(source, here)) == ["1", "2", "3"]


def test_file_is_not_new_after_the_folder_was_unmounted(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    here = read_all(source)
    path.rename(tmp_path / ".a")
    assert source.latest(here) == here
    (tmp_path / ".a").rename(path)

    assert source.latest(here) == here
    assert quick(tmp_path).latest(here) == here


@pytest.mark.parametrize("kind", [QuickFiles, PatientFiles])
def test_reused_name_is_read_after_the_old_file_was_removed(
    tmp_path: Path, kind: type[FilesSource]
) -> None:
    source = kind(FilesOptions(path=str(tmp_path)))
    put(tmp_path, "a", "old")
    here = read_all(source)
    (tmp_path / "a").unlink()
    assert source.latest(here) == here
    put(tmp_path, "a", "new content")

    assert values(source, here, await_newest(source, here)) == ["new content"]


def test_file_that_vanishes_while_it_is_listed_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = quick(tmp_path)
    put(tmp_path, "a", "old")
    here = read_all(source)
    (tmp_path / "a").unlink()
    assert source.latest(here) == here
    with monkeypatch.context() as patched:
        patched.setattr("icestream.sources.files.folder.list_paths", lambda *_: ["a"])
        assert source.latest(here) == here
    put(tmp_path, "a", "new content")

    assert values(source, here, source.latest(here)) == ["new content"]


def test_lost_log_is_rebuilt_if_all_files_are_present(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "old", days_old=3)
    put(tmp_path, "b")
    here = read_all(quick(tmp_path))
    shutil.rmtree(tmp_path / ".state")
    put(tmp_path, "c")

    restarted = quick(tmp_path)

    assert values(restarted, here, restarted.latest(here)) == ["c"]
    assert [record.getMessage() for record in caplog.records] == [
        f"the file log {tmp_path}/.state/files/{here['log']} was lost, and was rebuilt from "
        "the 2 files that were read"
    ]


def test_lost_log_that_cannot_be_rebuilt_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "a").rename(tmp_path / "b")
    put(tmp_path, "c")
    here = read_all(quick(tmp_path))
    shutil.rmtree(tmp_path / ".state")
    (tmp_path / "b").unlink()
    put(tmp_path, "d")

    with pytest.raises(SourceChangedError) as caught:
        quick(tmp_path).latest(here)

    assert str(caught.value) == (
        f"the file log {tmp_path}/.state/files/{here['log']} is lost and cannot be rebuilt, "
        f"because files in '{tmp_path}' were removed or changed (the last of 2 files that "
        "were read is 'c')\n"
        "  Restore the state folder. If that is not possible, move the files that were read out of "
        "the folder,\n"
        "  and use `icestream run --start-over`."
    )


def test_offset_of_an_older_version_is_refused(tmp_path: Path) -> None:
    old = {"arrived_ns": 1, "path": "a", "mtime_ns": 1, "files": 1, "checksum": "0f"}

    with pytest.raises(SourceChangedError) as caught:
        quick(tmp_path).latest(old)

    assert str(caught.value) == (
        "the offset was written by an older version, which identified files by their timestamps: "
        f"{old}\n"
        "  Move the files that were read out of the folder, and start over with `icestream run "
        "--start-over`."
    )


def test_starting_over_reads_every_file_again_and_removes_the_old_log(tmp_path: Path) -> None:
    put(tmp_path, "a")
    source = quick(tmp_path)
    before = read_all(source)

    start = source.initial()
    after = source.latest(start)

    assert values(source, start, after) == ["a"]
    assert len(list((tmp_path / ".state/files").iterdir())) == 2
    source.committed(after, 1)
    assert [path.name for path in (tmp_path / ".state/files").iterdir()] == [after["log"]]
    assert before["log"] != after["log"]


def test_files_that_were_read_may_be_removed(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    here = read_all(source)
    path.unlink()
    put(tmp_path, "b")

    assert values(source, here, source.latest(here)) == ["b"]
    restarted = quick(tmp_path)
    assert values(restarted, here, restarted.latest(here)) == ["b"]


def test_file_that_changes_after_it_was_read_stops_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.files.folder.CHECK_SECS", 0.0)
    source = quick(tmp_path)
    put(tmp_path, "a")
    here = read_all(source)
    source.latest(here)

    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        source.latest(here)
    assert (
        str(caught.value) == f"file '{tmp_path}/a' changed after it was read{CHANGED_AFTER_REMEDY}"
    )


def test_file_that_vanishes_between_planning_and_reading_is_reported(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.initial()
    splits = source.splits(start, source.latest(start), 1)

    path.unlink()

    with pytest.raises(SourceChangedError) as caught:
        list(source.read(splits[0]))
    assert str(caught.value) == f"file '{path}' was removed before its rows were written{REMEDY}"


def test_file_that_changes_between_planning_and_reading_is_reported(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.initial()
    splits = source.splits(start, source.latest(start), 1)

    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        list(source.read(splits[0]))
    assert str(caught.value) == f"file '{path}' changed before its rows were written{REMEDY}"


def test_file_that_changes_while_it_is_read_is_reported(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.initial()
    [split] = source.splits(start, source.latest(start), 1)
    reading = source.read(split)
    next(reading)

    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        list(reading)
    assert str(caught.value) == f"file '{path}' changed before its rows were written{REMEDY}"


@pytest.mark.parametrize("is_removed", [True, False])
def test_file_deleted_or_changed_before_its_batch_is_replayed_is_reported(
    tmp_path: Path, is_removed: bool
) -> None:
    source = quick(tmp_path)
    start = source.initial()
    put(tmp_path, "a")
    path = put(tmp_path, "b")
    end = source.latest(start)
    if is_removed:
        path.unlink()
    else:
        put(tmp_path, "b", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        values(quick(tmp_path), start, end)
    fault = "was removed" if is_removed else "changed"
    assert str(caught.value) == f"file '{path}' {fault} before its rows were written{REMEDY}"


def test_offset_stays_small(tmp_path: Path) -> None:
    source = quick(tmp_path)
    for number in range(300):
        put(tmp_path, f"{number:04}")

    assert len(str(read_all(source))) < 200
