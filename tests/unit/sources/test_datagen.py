"""Made-up rows are the same rows at every reading."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from icestream.contracts.registry import find
from icestream.errors import ConfigError
from icestream.sources.datagen import DatagenOptions, DatagenSource
from icestream.testing.source_suite import SourceSuite, System, rows_of

EPOCH_MS = 1_700_000_000_000


class StoppedClock(DatagenSource):
    """A source whose time a test moves."""

    milliseconds = EPOCH_MS

    def now_ms(self) -> int:
        return self.milliseconds


class Clockwork:
    """Rows become due as a test moves the clock."""

    def __init__(self) -> None:
        self._made: list[StoppedClock] = []
        self._now = EPOCH_MS

    def source(self) -> StoppedClock:
        source = StoppedClock(DatagenOptions(rows_per_second=1_000))
        source.milliseconds = self._now
        self._made.append(source)
        return source

    def add(self, rows: int) -> None:
        self._now += rows
        for source in self._made:
            source.milliseconds = self._now


class TestDatagen(SourceSuite):
    @pytest.fixture
    def system(self) -> System:
        return Clockwork()


def all_rows(source: DatagenSource) -> pa.Table:
    start = {"row": 0, "epoch_ms": EPOCH_MS}
    splits = source.splits(start, source.latest(start), 2)
    return pa.Table.from_batches([block for split in splits for block in source.read(split)])


def test_datagen_is_found_by_name() -> None:
    assert find("sources", "datagen") is DatagenSource


def test_row_depends_on_seed_and_number_alone() -> None:
    source = DatagenSource(DatagenOptions(rows=50_100))
    other_seed = DatagenSource(DatagenOptions(rows=50_100, seed=7))
    end = {"row": 50_100, "epoch_ms": EPOCH_MS}

    whole = rows_of(source, {"row": 0, "epoch_ms": EPOCH_MS}, end)
    tail = rows_of(source, {"row": 50_090, "epoch_ms": EPOCH_MS}, end)

    assert tail == whole[-10:]
    assert rows_of(other_seed, {"row": 50_090, "epoch_ms": EPOCH_MS}, end) != tail


def test_rows_are_due_by_the_clock() -> None:
    source = StoppedClock(DatagenOptions(rows_per_second=200, rows=1_000))
    start = source.initial()

    source.milliseconds = EPOCH_MS + 1_500
    assert source.latest(start) == {"row": 300, "epoch_ms": EPOCH_MS}

    source.milliseconds = EPOCH_MS + 60_000
    assert source.latest(start) == {"row": 1_000, "epoch_ms": EPOCH_MS}


def test_clock_set_back_removes_no_rows() -> None:
    source = StoppedClock(DatagenOptions())
    current = {"row": 500, "epoch_ms": EPOCH_MS}

    assert source.latest(current) is current


def test_rows_without_a_rate_are_available_immediately() -> None:
    source = StoppedClock(DatagenOptions(rows=1_000))

    newest = source.latest(source.initial())

    assert newest["row"] == 1_000
    assert source.ends(newest)
    assert not source.ends({**newest, "row": 999})


def test_source_without_rows_never_ends() -> None:
    assert not DatagenSource(DatagenOptions()).ends({"row": 10**12, "epoch_ms": EPOCH_MS})


def test_event_time_follows_the_rate() -> None:
    source = StoppedClock(DatagenOptions(rows_per_second=4, rows=9))
    source.milliseconds += 10_000

    times = all_rows(source)["event_time"].to_pylist()

    began = datetime.fromtimestamp(EPOCH_MS / 1_000, tz=timezone.utc)
    assert times == [began + timedelta(milliseconds=250 * row) for row in range(9)]


def test_rows_available_immediately_have_past_timestamps() -> None:
    times = all_rows(StoppedClock(DatagenOptions(rows=1_000)))["event_time"]

    assert max(times.to_pylist()) < datetime.fromtimestamp(EPOCH_MS / 1_000, tz=timezone.utc)


def test_shop_events_look_like_a_shop() -> None:
    rows = all_rows(DatagenSource(DatagenOptions(rows=100_000)))

    counts = Counter(rows["event_type"].to_pylist())
    assert [kind for kind, _ in counts.most_common()] == ["view", "cart", "purchase", "refund"]
    assert counts["view"] == pytest.approx(70_000, rel=0.02)
    assert rows["event_id"].to_pylist() == list(range(100_000))
    assert set(rows["quantity"].to_pylist()) == {1, 2, 3, 4, 5}
    prices = rows["price"].to_pylist()
    assert min(prices) == Decimal("2.79")
    assert max(prices) == Decimal("1299.00")
    assert rows["customer_id"].to_pandas().between(1, 10_000).all()
    assert all(column.null_count == 0 for column in rows.columns)


def test_range_is_shared_among_tasks_only_if_it_is_large() -> None:
    source = DatagenSource(DatagenOptions())
    start = {"row": 5, "epoch_ms": EPOCH_MS}

    small = source.splits(start, {"row": 105, "epoch_ms": EPOCH_MS}, 4)
    large = source.splits(start, {"row": 100_005, "epoch_ms": EPOCH_MS}, 4)

    assert [split.rows for split in small] == [100]
    assert [split.rows for split in large] == [25_000] * 4


def test_blocks_hold_at_most_fifty_thousand_rows() -> None:
    source = DatagenSource(DatagenOptions(rows=120_000))
    start = {"row": 0, "epoch_ms": EPOCH_MS}

    [split] = source.splits(start, source.latest(start), 1)

    assert [block.num_rows for block in source.read(split)] == [50_000, 50_000, 20_000]


def test_template_and_schema_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="`template` and `schema` exclude each other"):
        DatagenOptions(template="shop_events", schema="id bigint")


def test_schema_given_as_ddl_is_the_rows_schema() -> None:
    source = DatagenSource(
        DatagenOptions(
            rows=1_000,
            schema="id bigint, name string, paid boolean, at timestamp, price decimal(8,2)",
        )
    )

    rows = all_rows(source)

    assert rows.schema.equals(source.schema())
    assert rows.column_names == ["id", "name", "paid", "at", "price"]
    assert rows["id"].to_pylist() == list(range(1_000))
    assert max(rows["price"].to_pylist()) < 1_000
    assert source.identity() == "datagen schema seed 42"


def test_a_million_rows_are_generated_in_a_few_seconds() -> None:
    began = time.process_time()

    assert all_rows(DatagenSource(DatagenOptions(rows=1_000_000))).num_rows == 1_000_000
    assert time.process_time() - began < 10
