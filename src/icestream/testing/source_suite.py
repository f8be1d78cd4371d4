"""The conformance tests of every source, as a pytest class to subclass.

```python
class TestKafka(SourceSuite):
    not_held = {"ordered": "partitions are read in parallel"}

    @pytest.fixture
    def system(self, broker: Broker) -> System:
        return KafkaTopic(broker)
```
"""

# ruff: noqa: S101 - this is a test suite that happens to be shipped

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from icestream.contracts.decoder import Records
from icestream.testing.facts import ConformanceSuite, fact

if TYPE_CHECKING:
    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Source


class System(Protocol):
    """The external system that a source under test reads; it has no rows at first."""

    def source(self) -> Source[Any]:
        """Build a new source that reads the system."""
        ...

    def add(self, rows: int) -> None:
        """Make `rows` more rows available; they can be read when this returns."""
        ...


class SourceSuite(ConformanceSuite):
    """Proves that a source keeps its contract.

    A subclass defines the fixture `system`.
    """

    @fact("latest")
    def test_rows_added_after_the_initial_offset_are_read(self, system: System) -> None:
        source = system.source()
        start = source.initial()
        assert source.latest(start) == start, "an empty system has nothing new"

        system.add(25)

        end = source.latest(start)
        assert end != start
        assert len(rows_of(source, start, end)) == 25
        assert not source.ends(start)

    @fact("idle")
    def test_offsets_are_equal_exactly_if_nothing_is_new(self, system: System) -> None:
        source, start, end = _fill(system, 10)

        assert source.latest(end) == end
        assert source.rows_between(end, end) == 0
        assert rows_of(source, end, end) == []

        system.add(1)
        later = source.latest(end)
        assert later != end
        assert source.rows_between(end, later) > 0
        assert source.rows_between(start, later) > 0
        assert len(rows_of(source, end, later)) == 1

    @fact("exact_counts")
    def test_rows_between_is_the_number_of_rows_read(self, system: System) -> None:
        source, start, end = _fill(system, 37)

        assert source.rows_between(start, end) == 37
        assert source.rows_between(start, source.limit(start, end, 10)) == 10

    @fact("replayable")
    def test_range_read_twice_returns_the_same_rows(self, system: System) -> None:
        source, start, end = _fill(system, 40)
        once = rows_of(source, start, end)

        system.add(5)

        assert rows_of(source, start, end) == once
        assert rows_of(system.source(), start, end) == once, "a second source reads different rows"

    @fact("restart")
    def test_rebuilt_source_resumes_where_the_old_one_stopped(self, system: System) -> None:
        source, start, end = _fill(system, 12)
        before = rows_of(source, start, end)
        source.close()
        source.close()

        system.add(8)

        rebuilt = system.source()
        assert rebuilt.identity() == source.identity()
        after = rows_of(rebuilt, end, rebuilt.latest(end))
        assert len(after) == 8
        assert _row_counts(before + after) == _row_counts(
            rows_of(rebuilt, start, rebuilt.latest(start))
        )

    @fact("capped")
    def test_limited_batches_cover_every_row_once(self, system: System) -> None:
        source, start, _ = _fill(system, 20)
        for _ in range(3):
            system.add(10)
        end = source.latest(start)

        steps = _steps(source, start, end, max_rows=7)

        assert steps[-1] == end
        rows = [row for low, high in _pairs(start, steps) for row in rows_of(source, low, high)]
        assert _row_counts(rows) == _row_counts(rows_of(source, start, end))
        assert len(rows) == 50

    @fact("uncapped")
    def test_limit_beyond_the_end_is_the_end(self, system: System) -> None:
        source, start, end = _fill(system, 10)

        assert source.limit(start, end, 1_000_000) == end

    @fact("ordered")
    def test_limited_batches_keep_the_order_of_rows(self, system: System) -> None:
        source, start, _ = _fill(system, 20)
        for _ in range(3):
            system.add(10)
        end = source.latest(start)

        steps = _pairs(start, _steps(source, start, end, max_rows=7))

        in_steps = [row for low, high in steps for row in rows_of(source, low, high)]
        assert in_steps == rows_of(source, start, end)

    @fact("splits")
    @pytest.mark.parametrize("slots", [1, 2, 5])
    def test_splits_cover_a_range_exactly_once(self, system: System, slots: int) -> None:
        source, start, _ = _fill(system, 15)
        for _ in range(3):
            system.add(15)
        end = source.latest(start)

        splits = source.splits(start, end, slots)

        assert all(split.rows >= 0 for split in splits)
        assert _row_counts(rows_of(source, start, end, slots)) == _row_counts(
            rows_of(source, start, end)
        )
        assert len(rows_of(source, start, end, slots)) == 60

    @fact("pickled")
    def test_pickled_source_reads_pickled_splits(self, system: System) -> None:
        source, start, end = _fill(system, 10)
        rows = rows_of(source, start, end)

        pickled = pickle.dumps((source, source.splits(start, end, 1)))
        copy, splits = pickle.loads(pickled)  # noqa: S301 - our own bytes

        assert [row for split in splits for row in _read(copy, split)] == rows

    @fact("json_positions")
    def test_offsets_survive_json(self, system: System) -> None:
        source, start, end = _fill(system, 10)
        restored = [json.loads(json.dumps(offset)) for offset in (start, end)]

        assert restored == [start, end]
        assert rows_of(source, restored[0], restored[1]) == rows_of(source, start, end)

    @fact("shape")
    def test_blocks_have_the_declared_schema(self, system: System) -> None:
        source, start, end = _fill(system, 10)
        decodes = source.decoder() is not None
        extra = source.extra_columns()

        for split in source.splits(start, end, 2):
            for block in source.read(split):
                assert isinstance(block, Records) is decodes
                if isinstance(block, Records):
                    assert pa.types.is_binary(block.values.type)
                    assert list(block.extra) == ([] if extra is None else extra.names)
                    assert all(len(a) == len(block.values) for a in block.extra.values())
                    assert all(block.position(i) for i in range(len(block.values)))
                else:
                    assert block.schema.equals(source.schema())

    @fact("preview")
    def test_first_rows_are_read_beside_a_pipeline(self, system: System) -> None:
        source, start, end = _fill(system, 12)
        rows = rows_of(source, start, end)
        other = system.source()

        first = [row for block in other.first_rows(5) for row in _block_rows(block)]

        other.close()
        assert first, "there are rows, and none is shown"
        system.add(3)
        assert len(rows_of(source, end, source.latest(end))) == 3, "the pipeline lost rows"
        assert rows_of(source, start, end) == rows

    @fact("checked")
    def test_every_check_step_passes(self, system: System) -> None:
        system.add(3)

        for step in system.source().check():
            assert isinstance(step.run(), str), step.name


def rows_of(source: Source[Any], start: Offset, end: Offset, slots: int = 1) -> list[object]:
    """Return every row between two offsets, in a form that can be compared."""
    return [row for split in source.splits(start, end, slots) for row in _read(source, split)]


def _read(source: Source[Any], split: Any) -> list[object]:
    return [row for block in source.read(split) for row in _block_rows(block)]


def _block_rows(block: Records | pa.RecordBatch) -> list[object]:
    if not isinstance(block, Records):
        rows: list[object] = block.to_pylist()
        return rows
    extras = [column.to_pylist() for column in block.extra.values()]
    positions = [block.position(index) for index in range(len(block.values))]
    return list(zip(block.values.to_pylist(), positions, *extras, strict=True))


def _row_counts(rows: list[object]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def _fill(system: System, rows: int) -> tuple[Source[Any], Offset, Offset]:
    source = system.source()
    start = source.initial()
    system.add(rows)
    return source, start, source.latest(start)


def _steps(source: Source[Any], start: Offset, end: Offset, max_rows: int) -> list[Offset]:
    steps: list[Offset] = []
    current = start
    while current != end:
        following = source.limit(current, end, max_rows)
        assert following != current, "`limit` does not advance"
        assert source.rows_between(current, following) > 0
        steps.append(following)
        current = following
        assert len(steps) <= 1_000, "`limit` never reaches the end"
    return steps


def _pairs(start: Offset, steps: list[Offset]) -> list[tuple[Offset, Offset]]:
    return list(zip([start, *steps[:-1]], steps, strict=True))
