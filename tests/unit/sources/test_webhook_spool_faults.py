"""The spool when the disk, its database or the number of open files gives out."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from icestream.sources.webhook.ids import SeenIds, id_key
from icestream.sources.webhook.segments import NO_KEY, Arrival, make_splits, read_slices
from icestream.sources.webhook.spool import FREE_BYTES, Spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", max_bytes=4096)
    yield spool
    spool.close()


def arrival(event: bytes, event_id: bytes = b"") -> Arrival:
    key = id_key(b"s", event_id) if event_id else NO_KEY
    return Arrival(b"s", 7, key, event_id, b"", [event])


def events_of(spool: Spool) -> list[bytes]:
    return [
        value
        for split in make_splits(spool.segments, spool.first, spool.end, 1)
        for records in read_slices(split.what, [])
        for value in records.values.to_pylist()
    ]


def refuse(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_events_are_durable_if_the_acknowledged_mark_cannot_be_written(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool._acknowledged, "write", refuse)
    assert spool.append([arrival(b"a", b"1")]) == [True]
    monkeypatch.undo()
    assert "cannot record how far events were acknowledged" in caplog.text
    assert spool.append([arrival(b"a", b"1"), arrival(b"b")]) == [False, True]
    spool.close()
    anew = Spool(spool.folder, max_bytes=4096)
    assert events_of(anew) == [b"a", b"b"]
    anew.close()


def test_segment_stays_in_use_when_the_next_cannot_be_opened(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append([arrival(b"a" * 1200)])
    real = os.open

    def too_many(path: Any, flags: int, *mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_CREAT) == os.O_WRONLY:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        spool.append([arrival(b"b")])
    monkeypatch.undo()
    # The number of a file that was closed may be another file's by now.
    os.fstat(spool._file)
    assert spool.append([arrival(b"c")]) == [True]
    assert events_of(spool) == [b"a" * 1200, b"c"]


def test_spool_filled_by_one_write_is_emptied_by_its_commit(spool: Spool) -> None:
    spool.append([arrival(b"a" * 3900, b"1")])
    spool.release(1)
    assert spool.append([arrival(b"b" * 3900)]) == [True]
    assert (spool.first, spool.end) == (1, 2)
    assert events_of(spool) == [b"b" * 3900]
    spool.close()
    anew = Spool(spool.folder, max_bytes=4096)
    assert anew.append([arrival(b"a", b"1")]) == [False]
    anew.close()


def test_full_disk_does_not_stop_a_commit(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool.append([arrival(b"a" * 3000)])
    monkeypatch.setattr(os, "fsync", refuse)
    spool.release(1)
    monkeypatch.undo()
    assert "cannot remove committed events from the spool yet: [Errno 28]" in caplog.text
    assert (spool.first, spool.end) == (0, 1)
    spool.release(1)
    assert (spool.first, spool.end) == (1, 1)


def test_disk_space_is_reserved_for_ids(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs(spool._file)
    full = os.statvfs_result((*real[:4], FREE_BYTES // real.f_frsize, *real[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    with pytest.raises(OSError, match="No space left on device"):
        spool.append([arrival(b"a")])
    monkeypatch.undo()
    assert spool.append([arrival(b"a")]) == [True]


def test_size_of_an_arrival_is_that_of_its_record() -> None:
    each = Arrival(b"stream", 7, NO_KEY, b"id", b"[]", [b"{}", b'{"a": 1}'])
    assert each.size == len(each.pack(5))


class FullOnce:
    """A database whose disk is full once."""

    def __init__(self, real: sqlite3.Connection, at: str) -> None:
        self._real, self._at = real, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statement: str, *given: Any) -> Any:
        if self._at and statement.startswith(self._at):
            self._at = ""
            raise sqlite3.OperationalError("database or disk is full")
        return self._real.execute(statement, *given)


@pytest.mark.parametrize("at", ["COMMIT", "SELECT name"])
def test_ids_are_flushed_after_a_full_disk_has_space_again(tmp_path: Path, at: str) -> None:
    taken = SeenIds(tmp_path / "ids.db", remember_days=4)
    taken.add(id_key(b"s", b"1"))
    real = taken._db
    taken._db = FullOnce(real, at)  # type: ignore[assignment]
    with pytest.raises(OSError, match="database or disk is full"):
        taken.flush(1)
    assert taken.flushed_up_to == 0
    taken.flush(1)
    assert (taken.flushed_up_to, taken.find_seen([id_key(b"s", b"1")])) == (1, {id_key(b"s", b"1")})
    taken.close()
