"""Large files are read in several batches, and by several tasks, with the same rows."""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.quick_files import QuickFiles

from icestream.errors import BadRecordError
from icestream.sources.files import FilesOptions, FilesSource
from icestream.sources.files.readers import cut_blocks
from icestream.testing.source_suite import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icestream.contracts.offset import Offset

AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}


def write(path: Path, rows: list[int], kind: str) -> None:
    if kind == "json":
        # Some lines are empty, some are long, some end as on Windows.
        lines = [json.dumps({"id": n}) + " " * (n % 7 * 10) + "\r" * (n % 2) for n in rows]
        path.write_bytes("\n\n".join(lines).encode())
    elif kind == "csv":
        path.write_bytes(b"\xef\xbb\xbfid\n" + b"".join(b"%d\n" % n for n in rows))
    elif kind == "parquet":
        pq.write_table(pa.table({"id": rows}), path, row_group_size=max(3, len(rows) // 10))
    else:
        with path.open("wb") as file:
            fastavro.writer(
                file, AVRO, [{"id": n} for n in rows], sync_interval=min(1_000, len(rows))
            )


def steps(source: FilesSource, start: Offset, end: Offset, max_rows: int) -> list[list[Any]]:
    found = []
    while start != end:
        there = source.limit(start, end, max_rows)
        assert there != start
        assert source.rows_between(start, there) > 0
        found.append(rows_of(source, start, there))
        start = there
    return found


@pytest.mark.parametrize("kind", ["json", "csv", "avro", "parquet"])
@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    max_rows=st.integers(1, 30),
    block=st.integers(1, 64),
    batch_bytes=st.integers(20, 400),
)
def test_file_split_anywhere_gives_every_row_once(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    counts: list[int],
    max_rows: int,
    block: int,
    batch_bytes: int,
) -> None:
    monkeypatch.setattr("icestream.sources.files.text.BLOCK_BYTES", max(block, 8))
    monkeypatch.setattr("icestream.sources.files.source.MIN_TASK_BYTES", 30)
    monkeypatch.setattr("icestream.sources.files.source.MIN_TASK_ROWS", 2)
    folder = tmp_path_factory.mktemp("in")
    for number, count in enumerate(counts):
        write(folder / f"{number}", list(range(100 * number, 100 * number + count)), kind)
    schema = {"schema": "id bigint"} if kind in {"avro", "parquet"} else {}
    source = QuickFiles(FilesOptions(path=str(folder), format=kind, **schema))
    start = source.initial()
    end = source.latest(start)
    whole = rows_of(source, start, end)

    monkeypatch.setattr("icestream.sources.files.source.BATCH_BYTES", batch_bytes)
    in_steps = steps(source, start, end, max_rows)

    assert [row for step in in_steps for row in step] == whole
    assert rows_of(source, start, end, slots=3) == whole
    assert len(whole) == sum(counts)


@pytest.mark.parametrize("kind", ["json", "csv", "avro", "parquet"])
def test_batch_of_a_large_file_respects_the_row_limit(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a", list(range(20_000)), kind)
    source = QuickFiles(FilesOptions(path=str(tmp_path), format=kind))
    start = source.initial()

    found = steps(source, start, source.latest(start), 6_000)

    sizes = [len(step) for step in found]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 6_000
    assert len(sizes) <= 8


def test_rows_of_small_files_are_estimated_from_sampled_ones(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.json").write_bytes(b"1\n" * 1_000)
    source = QuickFiles(FilesOptions(path=str(tmp_path)))
    start = source.initial()
    end = source.latest(start)

    assert source.rows_between(start, end) == 100_000
    assert len(rows_of(source, start, source.limit(start, end, 10_000))) == 10_000


def test_lines_of_a_later_batch_have_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id\n" + b"".join(b"%d\n" % n for n in range(10)))
    source = QuickFiles(FilesOptions(path=str(tmp_path), format="csv"))
    source.keep_state_in(tmp_path / ".state")
    start = source.initial()
    end = source.latest(start)

    middle = source.limit(start, end, 3)

    assert rows_of(source, start, middle) == [
        (b"0", f"{tmp_path}/a.csv:2"),
        (b"1", f"{tmp_path}/a.csv:3"),
    ]
    assert rows_of(source, middle, end)[0] == (b"2", f"{tmp_path}/a.csv:4")


def test_compressed_file_is_a_batch_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.files.source.BATCH_BYTES", 20)
    for name in ("a", "b"):
        with gzip.open(tmp_path / f"{name}.json.gz", "wb") as file:
            file.write(b"1\n" * 100)
    source = QuickFiles(FilesOptions(path=str(tmp_path)))
    start = source.initial()

    assert [len(step) for step in steps(source, start, source.latest(start), 10)] == [100, 100]


class CountingFile(io.BytesIO):
    """A file that knows how many bytes were read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.count += len(found)
        return found


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_cutting_an_avro_file_reads_no_rows_and_no_earlier_blocks(codec: str) -> None:
    file = CountingFile()
    fastavro.writer(file, AVRO, [{"id": n} for n in range(50_000)], codec, sync_interval=1_000)
    blocks = [(b.offset + b.size, b.num_records) for b in fastavro.block_reader(_rewound(file))]
    file.count = 0

    cuts = [(0, 0)]
    while (found := cut_blocks(file, cuts[-1][0], 1, 1 << 20, "a")) is not None:
        cuts.append(found)

    assert cuts[1:] == blocks[:-1]
    assert len(cuts) > 20
    # The header once, and of each block its two numbers and the marker, twice.
    assert file.count < 1_000 + 100 * len(cuts)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data, end: data[: end - 3],
        lambda data, end: data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:],
    ],
)
def test_broken_avro_block_is_reported(damage: Callable[[bytes, int], bytes]) -> None:
    file = io.BytesIO()
    fastavro.writer(file, AVRO, [{"id": n} for n in range(3_000)], sync_interval=1_000)
    first, second, *_ = fastavro.block_reader(_rewound(file))
    broken = io.BytesIO(damage(file.getvalue(), second.offset + second.size))

    with pytest.raises(BadRecordError) as caught:
        cut_blocks(broken, first.offset, 10_000, 1 << 20, "a.avro")

    assert caught.value.what == (
        f"file 'a.avro' cannot be read as avro: the block at byte {second.offset} "
        "does not end with the sync marker"
    )


def _rewound(file: io.BytesIO) -> io.BytesIO:
    file.seek(0)
    return file
