"""A batch is acknowledged to its source once Spark can no longer replay it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.engine.runner import Acknowledgements

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.offset import Offset


class RecordingSource:
    def __init__(self) -> None:
        self.commits: list[tuple[Offset, int]] = []

    def committed(self, position: Offset, rows: int) -> None:
        self.commits.append((position, rows))


def confirmation(checkpoint: Path) -> tuple[Any, Acknowledgements]:
    source: Any = RecordingSource()
    return source, Acknowledgements(source, checkpoint)


def done(checkpoint: Path, epoch: int) -> None:
    folder = checkpoint / "commits"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(epoch)).write_text("v1\n{}")


def test_batch_is_acknowledged_after_spark_logged_it(tmp_path: Path) -> None:
    source, written = confirmation(tmp_path)
    written.record(0, {"at": 1}, 5)

    written.send()
    assert source.commits == []

    done(tmp_path, 0)
    written.send()
    assert source.commits == [({"at": 1}, 5)]


def test_batch_is_acknowledged_once(tmp_path: Path) -> None:
    source, written = confirmation(tmp_path)
    written.record(0, {"at": 1}, 5)
    done(tmp_path, 0)

    written.send()
    written.send()

    assert source.commits == [({"at": 1}, 5)]


def test_rows_of_unacknowledged_batches_add_up(tmp_path: Path) -> None:
    source, written = confirmation(tmp_path)
    written.record(0, {"at": 1}, 5)
    written.record(1, {"at": 2}, 7)
    done(tmp_path, 1)

    written.send()

    assert source.commits == [({"at": 2}, 12)]
