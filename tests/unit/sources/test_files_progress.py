"""Late, touched, changed and vanished files: none is lost or doubled in silence."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

import pytest

from icestream.errors import SourceChangedError
from icestream.sources.files import FilesOptions, FilesSource
from icestream.testing.source_suite import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.position import Position

DAY_NS = 86_400 * 10**9
REMEDY = (
    "\n  Put it back as it was. Files must not change once they are in the folder: "
    "write them elsewhere,\n  move them in under a new name, and remove them only when their rows "
    "are in the table."
)


class QuickFiles(FilesSource):
    settle_secs = 0.0


def quick(folder: Path) -> QuickFiles:
    return QuickFiles(FilesOptions(path=str(folder)))


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


def values(source: FilesSource, start: Position, end: Position) -> list[str]:
    return [row[0].decode() for row in rows_of(source, start, end)]  # type: ignore[index]


def read_all(source: FilesSource) -> Position:
    return source.newest(source.first())


def test_file_moved_in_long_after_it_was_written_is_read(tmp_path: Path) -> None:
    source = quick(tmp_path)
    put(tmp_path, "new")
    here = read_all(source)

    put(tmp_path, "old", days_old=30)

    assert values(source, here, source.newest(here)) == ["old"]


def test_file_moved_in_late_while_the_pipeline_was_down_is_read(tmp_path: Path) -> None:
    put(tmp_path, "new")
    here = read_all(quick(tmp_path))

    put(tmp_path, "old", days_old=30)

    restarted = quick(tmp_path)
    assert values(restarted, here, restarted.newest(here)) == ["old"]


def test_change_of_mode_does_not_make_a_file_new(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    here = read_all(source)

    change_mode(path)

    assert source.newest(here) == here


def test_change_of_mode_right_after_planning_does_not_make_a_file_new(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.first()
    end = source.newest(start)

    change_mode(path)

    assert values(source, start, end) == ["a"]
    assert source.newest(end) == end


def test_change_of_mode_while_the_pipeline_was_down_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [put(tmp_path, name) for name in ("a", "b")]
    here = read_all(quick(tmp_path))
    for path in paths:
        change_mode(path)
    put(tmp_path, "c")

    restarted = quick(tmp_path)
    with caplog.at_level(logging.WARNING):
        end = restarted.newest(here)

    assert values(restarted, here, end) == ["c"]
    assert [record.getMessage() for record in caplog.records] == [
        f"file '{tmp_path}/{name}' was read before, or is new but no newer than the files read, "
        "and is not read; to have it read, touch it"
        for name in ("a", "b")
    ]


def test_batch_is_found_again_after_a_crash_and_a_change_of_mode(tmp_path: Path) -> None:
    put(tmp_path, "a")
    source = quick(tmp_path)
    middle = read_all(source)
    paths = [put(tmp_path, name) for name in ("b", "c")]
    end = source.newest(middle)
    put(tmp_path, "d")
    for path in paths:
        change_mode(path)

    assert values(quick(tmp_path), middle, end) == ["b", "c"]


def test_touched_file_that_was_passed_over_is_read(tmp_path: Path) -> None:
    gone, late = put(tmp_path, "gone"), put(tmp_path, "late", days_old=1)
    here = read_all(quick(tmp_path))
    gone.unlink()
    change_mode(late)
    source = quick(tmp_path)
    assert source.newest(here) == here

    await_next_tick(tmp_path)
    later_ns = late.stat().st_mtime_ns + 2 * DAY_NS
    os.utime(late, ns=(later_ns, later_ns))

    restarted = quick(tmp_path)
    assert values(restarted, here, restarted.newest(here)) == ["late"]


def test_files_that_were_read_may_be_removed(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    here = read_all(source)
    path.unlink()
    put(tmp_path, "b")

    assert values(source, here, source.newest(here)) == ["b"]
    restarted = quick(tmp_path)
    assert values(restarted, here, restarted.newest(here)) == ["b"]


def test_file_that_changes_after_it_was_read_stops_the_pipeline(tmp_path: Path) -> None:
    source = quick(tmp_path)
    put(tmp_path, "a")
    here = read_all(source)
    source.newest(here)

    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        source.newest(here)
    assert str(caught.value) == f"file '{tmp_path}/a' changed after it was read{REMEDY}"


def test_file_that_vanishes_between_planning_and_reading_is_named(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.first()
    splits = source.splits(start, source.newest(start), 1)

    path.unlink()

    with pytest.raises(SourceChangedError) as caught:
        list(source.read(splits[0]))
    assert str(caught.value) == f"file '{path}' is gone before its rows were written{REMEDY}"


def test_file_that_changes_between_planning_and_reading_is_named(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.first()
    splits = source.splits(start, source.newest(start), 1)

    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        list(source.read(splits[0]))
    assert str(caught.value) == f"file '{path}' changed before its rows were written{REMEDY}"


def test_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    source = quick(tmp_path)
    path = put(tmp_path, "a")
    start = source.first()
    [split] = source.splits(start, source.newest(start), 1)
    reading = source.read(split)
    next(reading)

    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        list(reading)
    assert str(caught.value) == f"file '{path}' changed before its rows were written{REMEDY}"


def test_file_removed_before_its_batch_is_replayed_is_named(tmp_path: Path) -> None:
    source = quick(tmp_path)
    start = source.first()
    put(tmp_path, "a")
    path = put(tmp_path, "b")
    end = source.newest(start)
    path.unlink()

    with pytest.raises(SourceChangedError) as caught:
        quick(tmp_path).splits(start, end, 1)
    assert str(caught.value) == f"file 'b' is gone before its rows were written{REMEDY}"


def test_file_changed_before_its_batch_is_replayed_is_noticed(tmp_path: Path) -> None:
    source = quick(tmp_path)
    start = source.first()
    put(tmp_path, "a")
    put(tmp_path, "b")
    end = source.newest(start)
    put(tmp_path, "a", "something longer")

    with pytest.raises(SourceChangedError) as caught:
        quick(tmp_path).splits(start, end, 1)
    assert str(caught.value) == (
        f"of 2 files to read, up to 'b', some are gone or changed; 1 are there{REMEDY}"
    )


def test_position_stays_small(tmp_path: Path) -> None:
    source = quick(tmp_path)
    for number in range(300):
        put(tmp_path, f"{number:04}")

    assert len(str(read_all(source))) < 200
