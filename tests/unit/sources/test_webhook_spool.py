from __future__ import annotations

import errno
import os
import sqlite3
import struct
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from icestream.errors import ConnectorError, CorruptStateError
from icestream.sources.webhook import ids
from icestream.sources.webhook.ids import DAY_US, SeenIds, id_key
from icestream.sources.webhook.segments import NO_KEY, SEGMENT, Arrival, make_splits, read_slices
from icestream.sources.webhook.spool import Spool, SpoolFullError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TODO = (
    "\n  Restore it from a backup. It holds events that were acknowledged, so it must not be "
    "skipped."
)


def arrival(*events: bytes, event_id: bytes = b"") -> Arrival:
    key = id_key(b"s", event_id) if event_id else NO_KEY
    return Arrival(b"s", int(time.time() * 1e6), key, event_id, b"", events)


def events_of(spool: Spool, begin: int = 0, slots: int = 1) -> list[bytes]:
    return [
        value
        for split in make_splits(spool.segments, begin, spool.end, slots)
        for records in read_slices(split.what, ["event_id"])
        for value in records.values.to_pylist()
    ]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.events"))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", max_bytes=4096)
    yield spool
    spool.close()


def reopened(spool: Spool, **changes: Any) -> Spool:
    spool.close()
    return Spool(spool.folder, **{"max_bytes": 4096, **changes})


def test_events_are_numbered_and_read_back_in_order(spool: Spool) -> None:
    assert spool.append([arrival(b"a", b"b"), arrival(b"c")]) == [True, True]
    assert spool.append([arrival(b"d")]) == [True]
    assert (spool.first, spool.end) == (0, 4)
    assert events_of(spool) == [b"a", b"b", b"c", b"d"]
    assert events_of(spool, 1) == [b"b", b"c", b"d"]


def test_id_is_accepted_once_with_all_its_events(spool: Spool) -> None:
    one = arrival(b"a", b"b", event_id=b"1")
    assert spool.append([one, one]) == [True, False]
    assert spool.append([one, arrival(b"c", event_id=b"2")]) == [False, True]
    assert events_of(spool) == [b"a", b"b", b"c"]


def test_same_id_on_another_stream_is_a_different_id(spool: Spool) -> None:
    assert id_key(b"a", b"bc") != id_key(b"ab", b"c")


def test_spool_is_private_to_the_user(spool: Spool) -> None:
    spool.append([arrival(b"a", event_id=b"1")])
    assert spool.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in spool.folder.iterdir()} == {0o600}


def test_reopened_spool_continues(spool: Spool) -> None:
    one = arrival(b"a", event_id=b"1")
    spool.append([one])
    anew = reopened(spool)
    assert anew.id == spool.id
    assert anew.append([one, arrival(b"b")]) == [False, True]
    assert events_of(anew) == [b"a", b"b"]
    anew.close()


@pytest.mark.parametrize("tail", [b"\x00", b"\x00" * 100, b"\xff" * 7, b"\x60\x00\x00\x00half"])
def test_unacknowledged_tail_is_truncated(spool: Spool, tail: bytes) -> None:
    spool.append([arrival(b"a")])
    (file,) = files_of(spool.folder)
    whole = file.read_bytes()
    file.write_bytes(whole + tail)
    anew = reopened(spool)
    assert file.read_bytes() == whole
    assert anew.append([arrival(b"b")]) == [True]
    assert events_of(anew) == [b"a", b"b"]
    anew.close()


def test_torn_record_is_truncated_wherever_it_ends(spool: Spool) -> None:
    spool.append([arrival(b"a")])
    (file,) = files_of(spool.folder)
    whole = file.read_bytes()
    torn = arrival(b"b" * 50, event_id=b"2").pack(1)
    for length in range(1, len(torn)):
        file.write_bytes(whole + torn[:length])
        anew = reopened(spool)
        assert events_of(anew) == [b"a"]
        anew.close()


def test_complete_unacknowledged_record_is_kept_with_its_id(spool: Spool) -> None:
    spool.append([arrival(b"a")])
    late = arrival(b"b", event_id=b"2")
    (file,) = files_of(spool.folder)
    file.write_bytes(file.read_bytes() + late.pack(1))
    anew = reopened(spool)
    assert anew.append([late]) == [False]
    assert events_of(anew) == [b"a", b"b"]
    anew.close()
    # From now on it counts as answered, for it may be in the table.
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptStateError):
        Spool(spool.folder)


def test_corrupt_or_missing_acknowledged_record_is_an_error(spool: Spool) -> None:
    spool.append([arrival(b"a"), arrival(b"b")])
    spool.append([arrival(b"c")])
    spool.close()
    (file,) = files_of(spool.folder)
    whole = file.read_bytes()
    for place in (len(whole) - 1, len(whole) - 60, SEGMENT.size + 9):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptStateError, match=": it is intact up to byte"):
            Spool(spool.folder)
    file.write_bytes(whole[:-1])
    with pytest.raises(CorruptStateError) as caught:
        Spool(spool.folder)
    third = len(arrival(b"c").pack(2))
    assert str(caught.value) == (
        f"cannot read {file}: it is intact up to byte {len(whole) - third}, but events "
        f"up to byte {len(whole)} were acknowledged" + TODO
    )
    file.unlink()
    file.with_name("00000000000000000003.events").write_bytes(b"")
    with pytest.raises(CorruptStateError, match="its header is not from this spool"):
        Spool(spool.folder)


def test_corrupt_record_of_an_older_segment_is_reported(spool: Spool) -> None:
    for number in range(5):
        spool.append([arrival(b"%d" % number * 600)])
    spool.close()
    first, second, _ = files_of(spool.folder)
    whole = first.read_bytes()
    first.write_bytes(whole[:-1] + b"x")
    with pytest.raises(CorruptStateError) as caught:
        Spool(spool.folder)
    assert ": at byte " in str(caught.value)
    assert str(caught.value).endswith(": the checksum does not match" + TODO)
    first.write_bytes(whole)
    second.unlink()
    with pytest.raises(CorruptStateError, match="the segment before it ends at event 2"):
        Spool(spool.folder)


def test_spool_without_any_segment_is_an_error(spool: Spool) -> None:
    for number in range(4):
        spool.append([arrival(b"%d" % number * 600)])
    spool.close()
    for file in files_of(spool.folder):
        file.unlink()
    with pytest.raises(CorruptStateError, match=r"00000002.events: it does not exist"):
        Spool(spool.folder)


@pytest.mark.parametrize("name", ["spool.json", "answered", "ids.db"])
def test_corrupt_state_file_is_reported(spool: Spool, name: str) -> None:
    spool.append([arrival(b"a", event_id=b"1")])
    spool.close()
    (spool.folder / name).write_bytes(b"x" * 4096)
    with pytest.raises(CorruptStateError, match=name.replace(".", r"\.")):
        Spool(spool.folder)
    # The lock is free again.
    with pytest.raises(CorruptStateError):
        Spool(spool.folder)


def test_spool_without_its_id_gets_no_new_one(spool: Spool) -> None:
    spool.close()
    (spool.folder / "spool.json").unlink()
    with pytest.raises(CorruptStateError, match=r"spool.json: it does not exist"):
        Spool(spool.folder)


def test_released_segments_are_removed_except_the_newest(spool: Spool) -> None:
    for number in range(5):
        spool.append([arrival(b"%d" % number * 350, event_id=b"%d" % number)])
    assert len(files_of(spool.folder)) == 2
    spool.release(2)
    assert len(files_of(spool.folder)) == 2
    spool.release(5)
    assert [file.name for file in files_of(spool.folder)] == ["00000000000000000003.events"]
    assert (spool.first, spool.end) == (3, 5)
    anew = reopened(spool)
    again = [arrival(b"%d" % number * 350, event_id=b"%d" % number) for number in range(5)]
    assert anew.append(again) == [False] * 5
    anew.close()


def test_full_spool_refuses_events_until_there_is_room(spool: Spool) -> None:
    big = arrival(b"x" * 1500)
    spool.append([big])
    spool.append([big])
    with pytest.raises(SpoolFullError):
        spool.append([big])
    assert spool.end == 2
    spool.release(1)
    assert spool.append([big]) == [True]
    assert events_of(spool, 1) == [b"x" * 1500] * 2


def test_full_disk_leaves_no_partial_write(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.append([arrival(b"a")])
    (file,) = files_of(spool.folder)
    whole = file.read_bytes()

    def half(handle: int, content: bytes, offset: int) -> int:
        if len(content) < 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, content[:30], offset)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        spool.append([arrival(b"b")])
    monkeypatch.undo()
    assert file.read_bytes() == whole
    assert spool.append([arrival(b"c")]) == [True]
    assert events_of(spool) == [b"a", b"c"]


def test_failed_fsync_makes_the_spool_unwritable(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        spool.append([arrival(b"b", event_id=b"1")])
    monkeypatch.undo()
    # The kernel may have dropped the page and says so only once.
    with pytest.raises(OSError, match="Input/output error"):
        spool.append([arrival(b"c")])
    anew = reopened(spool)
    assert anew.end == 0
    assert anew.append([arrival(b"b", event_id=b"1")]) == [True]
    anew.close()


def test_second_process_learns_which_process_holds_the_spool(spool: Spool) -> None:
    code = (
        "import pathlib, sys; from icestream.sources.webhook.spool import Spool; "
        "Spool(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, spool.folder], capture_output=True, text=True, check=False
    )
    assert f"ConnectorError: the spool {spool.folder} is in use by process {os.getpid()}" in (
        done.stderr
    )
    with pytest.raises(ConnectorError):
        Spool(spool.folder)


DAY_SECS = DAY_US / 1_000_000
TODAY = 20_000 * DAY_SECS


class Clock:
    """The time that passes, and the time that the system shows."""

    def __init__(self) -> None:
        self.passed, self.shown = 0.0, TODAY

    def wait(self, days: float) -> None:
        self.passed += days * DAY_SECS
        self.shown += days * DAY_SECS

    def ids(self, folder: Path) -> SeenIds:
        return SeenIds(
            folder / "ids.db",
            remember_days=4,
            monotonic=lambda: self.passed,
            wall=lambda: self.shown,
        )


def test_ids_survive_a_restart_and_expire_after_their_days(tmp_path: Path) -> None:
    clock = Clock()
    taken = clock.ids(tmp_path)
    days = {day: id_key(b"s", b"%d" % day) for day in range(8)}
    for day, key in days.items():
        taken.add(key)
        taken.flush(day + 1)
        clock.wait(1)
    # Four days, and one more that a jump of the system's clock may take away.
    assert taken.find_seen(days.values()) == {days[day] for day in range(2, 8)}
    taken.close()
    again = clock.ids(tmp_path)
    assert again.flushed_up_to == 8
    assert again.find_seen([*days.values(), id_key(b"s", b"x")]) == {
        days[day] for day in range(2, 8)
    }
    again.close()


@pytest.mark.parametrize("jump", [-TODAY, -3 * DAY_SECS, 3 * DAY_SECS, 1000 * TODAY])
@pytest.mark.parametrize("restarts", [(), (True,), (False,), (True, False)])
def test_clock_jump_expires_no_id(tmp_path: Path, jump: float, restarts: tuple[bool, ...]) -> None:
    clock = Clock()
    taken, key = clock.ids(tmp_path), id_key(b"s", b"1")
    taken.add(key)
    taken.flush(1)
    clock.wait(3)
    clock.shown += jump
    taken.flush(2)
    for is_wrong in restarts:
        taken.close()
        clock.shown = TODAY + clock.passed + (jump if is_wrong else 0)
        taken = clock.ids(tmp_path)
        taken.flush(3)
    clock.wait(0.9)
    taken.flush(4)
    assert taken.find_seen([key]) == {key}
    taken.close()


def test_ids_still_age_if_the_clock_is_reset_to_1970(tmp_path: Path) -> None:
    clock = Clock()
    keys = [id_key(b"s", b"%d" % number) for number in range(3)]
    for number, shown in enumerate([0.0, TODAY, 0.0]):
        clock.shown = shown
        taken = clock.ids(tmp_path)
        taken.add(keys[number])
        taken.flush(number)
        assert taken.find_seen(keys) == set(keys[: number + 1])
        taken.close()


def test_ids_of_an_earlier_version_age_from_the_newest_one(tmp_path: Path) -> None:
    clock, key = Clock(), id_key(b"s", b"1")
    taken = clock.ids(tmp_path)
    taken.add(key)
    taken.flush(1)
    taken.close()
    with closing(sqlite3.connect(tmp_path / "ids.db")) as database:
        database.execute("DROP TABLE clock")
    clock.shown += 1000 * DAY_SECS  # wrong when the new version first runs
    taken = clock.ids(tmp_path)
    taken.flush(2)
    assert taken.find_seen([key]) == {key}
    taken.close()


def test_ids_age_between_short_runs_too(tmp_path: Path) -> None:
    clock, key = Clock(), id_key(b"s", b"1")
    for day in range(8):
        taken = clock.ids(tmp_path)
        if day == 0:
            taken.add(key)
        taken.flush(day)
        found = taken.find_seen([key])
        taken.close()
        clock.shown += DAY_SECS
        assert found == ({key} if day < 6 else set()), day


def test_number_of_ids_in_memory_is_bounded(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "MAX_IN_MEMORY", 3)
    for number in range(10):
        spool.append([arrival(b"a", event_id=b"%d" % number)])
        assert len(spool._ids._recent) < 3
    assert spool._ids.flushed_up_to == 9
    again = [arrival(b"a", event_id=b"%d" % number) for number in range(10)]
    assert spool.append(again) == [False] * 10
    anew = reopened(spool)
    assert anew.append(again) == [False] * 10
    anew.close()


def test_events_of_one_id_are_split_where_a_batch_ends(spool: Spool) -> None:
    spool.append([arrival(*(b"%d" % number for number in range(10)))])
    (split,) = make_splits(spool.segments, 3, 7, 4)
    (records,) = read_slices(split.what, ["number", "stream"])
    assert records.values.to_pylist() == [b"3", b"4", b"5", b"6"]
    assert records.extra["webhook_number"].to_pylist() == [3, 4, 5, 6]
    assert records.position(1) == "event 4"


def test_slices_start_near_their_first_event(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for block in range(30):
        spool.append([arrival(b"%d" % (block * 1000 + place)) for place in range(1000)])
    parts = make_splits(spool.segments, 0, 30_000, 3)
    assert [split.rows for split in parts] == [10_000] * 3
    offsets = [part.offset for split in parts for part in split.what]
    size = spool.segments[0].size
    assert offsets[0] == SEGMENT.size
    assert abs(offsets[1] - size / 3) < size / 10
    assert [int(value) for value in events_of(spool, slots=3)] == list(range(30_000))
    spool.close()


def test_layout_on_disk_is_stable() -> None:
    packed = Arrival(b"s", 7, b"k" * 16, b"id", b"[]", [b"{}", b"{ }"]).pack(5)
    assert packed[8:] == (
        struct.pack("<QQ", 5, 7) + b"k" * 16 + struct.pack("<HHII", 1, 2, 2, 2)
        + b"sid[]" + struct.pack("<II", 2, 3) + b"{}{ }"
    )  # fmt: skip
    assert packed[:4] == struct.pack("<I", len(packed) - 8)
