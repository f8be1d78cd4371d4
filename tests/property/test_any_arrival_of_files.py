"""However files arrive, and whatever a listing shows of them, each is read once."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from icestream.sources.files import FilesOptions, FilesSource
from icestream.sources.files.folder import FileEntry, list_paths, stat_file
from icestream.testing.source_suite import rows_of

if TYPE_CHECKING:
    from icestream.contracts.offset import Offset

WRITERS = 4
FILES_A_WRITER = 400


class EagerFiles(FilesSource):
    settle_secs = 0.0
    listing_pause = 0.0


def open_source(folder: Path, kind: type[FilesSource] = EagerFiles) -> FilesSource:
    source = kind(FilesOptions(path=str(folder), glob="**/*"))
    source.keep_state_in(folder / ".state")
    return source


def read(source: FilesSource, start: Offset, end: Offset) -> list[str]:
    return [row[0].decode() for row in rows_of(source, start, end)]  # type: ignore[index]


class FilesModel(RuleBasedStateMachine):
    """A pipeline over a folder whose listings miss new files and whose clock jumps."""

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.folder = Path(tempfile.mkdtemp(prefix="files-model-"))
        self.created_rows: list[str] = []
        self.listed: set[str] = set()
        self.clock = 0
        self.rows: list[str] = []
        self.batches: list[tuple[Offset, Offset, list[str]]] = []
        self.source = open_source(self.folder)
        self.here = self.source.initial()

    @rule(count=st.integers(1, 4), lines=st.integers(1, 3), jump=st.integers(-1000, 1000))
    def create(self, count: int, lines: int, jump: int) -> None:
        self.clock += jump
        for _ in range(count):
            name = f"{self.random.choice(['', 'sub/'])}{self.random.getrandbits(64):016x}"
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{name} {line}\n" for line in range(lines)))
            self.created_rows += [f"{name} {line}" for line in range(lines)]

    @rule(max_rows=st.integers(1, 5), once_more=st.booleans())
    def write_a_batch(self, max_rows: int, once_more: bool) -> None:
        self._step(max_rows, once_more, misses=True)

    @rule()
    def restart(self) -> None:
        """A process that died keeps only its offsets and the state folder."""
        self.source = open_source(self.folder)

    @rule()
    def replay(self) -> None:
        for start, end, rows in self.batches[-1:]:
            assert read(open_source(self.folder), start, end) == rows

    @rule()
    def lose_mode(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and ".state" not in path.parts:
                path.chmod(0o600)

    @invariant()
    def no_row_is_read_twice(self) -> None:
        if hasattr(self, "rows"):
            assert len(self.rows) == len(set(self.rows))

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        before = None
        while before != self.here:
            before = self.here
            self._step(1_000, commits=True, misses=False)
        assert sorted(self.rows) == sorted(self.created_rows)
        shutil.rmtree(self.folder)

    def _step(self, max_rows: int, commits: bool, *, misses: bool) -> None:
        with (
            patch("icestream.sources.files.folder.list_paths", self._listing(misses=misses)),
            patch("icestream.sources.files.folder.stat_file", self._look),
        ):
            newest = self.source.latest(self.here)
        end = self.source.limit(self.here, newest, max_rows)
        if end == self.here:
            return
        rows = read(self.source, self.here, end)
        self.batches.append((self.here, end, rows))
        self.rows += rows
        self.here = end
        if commits:
            self.source.committed(end, len(rows))
            self.batches.clear()

    def _listing(self, *, misses: bool):  # type: ignore[no-untyped-def]
        def listing(folder: str, glob: str) -> list[str]:
            found = sorted(list_paths(folder, glob))
            # What a listing may miss: any of the files that were created since the last one.
            shown = [
                path
                for path in found
                if path in self.listed or not misses or self.random.random() < 0.6
            ]
            self.listed.update(shown)
            self.random.shuffle(shown)
            return shown

        return listing

    def _look(self, folder: str, path: str) -> FileEntry | None:
        entry = stat_file(folder, path)
        return entry and entry._replace(ctime_ns=10**18 + self.clock)


TestFilesModel = FilesModel.TestCase
TestFilesModel.settings = settings(deadline=None, max_examples=25, stateful_step_count=20)


def test_files_moved_in_while_the_folder_is_listed_are_read_once(tmp_path: Path) -> None:
    """Threads add files at full speed while batches are admitted, read and replayed."""

    class RacingFiles(FilesSource):
        settle_secs = 0.02
        listing_pause = 0.0

    (tmp_path / "_making").mkdir()
    seed = random.randrange(1 << 32)  # noqa: S311 - no secret
    rng = random.Random(seed)  # noqa: S311 - no secret
    writers = [
        threading.Thread(target=_write_files, args=(tmp_path, number, rng.random()))
        for number in range(WRITERS)
    ]
    source = open_source(tmp_path, RacingFiles)
    here = source.initial()
    counts: Counter[str] = Counter()
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 120
    while sum(counts.values()) < WRITERS * FILES_A_WRITER:
        assert time.monotonic() < deadline, f"seed {seed}: {sum(counts.values())} rows"
        end = source.limit(here, source.latest(here), rng.randint(1, 200))
        rows = read(source, here, end)
        if rng.random() < 0.1:
            source = open_source(tmp_path, RacingFiles)
            assert read(source, here, end) == rows, f"seed {seed}"
        counts.update(rows)
        here = end
    for writer in writers:
        writer.join()
    assert source.latest(here) == here
    assert set(counts.values()) == {1}, f"seed {seed}"


def _write_files(folder: Path, writer: int, pause: float) -> None:
    for number in range(FILES_A_WRITER):
        name = f"{hash((writer, number)) & 0xFFFFFFFF:08x}-{writer}-{number}"
        (folder / "_making" / name).write_text(f"{name}\n")
        (folder / "_making" / name).rename(folder / name)
        time.sleep(pause / 500)
