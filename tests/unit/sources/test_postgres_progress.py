"""Positions of `postgres-cdc`, the lag of its slot, and what it thinks waits in the log."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

from icestream.sources.postgres_cdc import PostgresCdcOptions, PostgresCdcSource
from icestream.sources.postgres_cdc.driver import ReplicationLag
from icestream.sources.postgres_cdc.offset import PgOffset, PgTableState, SnapshotCursor
from icestream.sources.postgres_cdc.slot import SavedLsn
from icestream.sources.postgres_cdc.source import (
    MAX_COUNTED_BYTES,
    PEEK_BYTES,
    Backlog,
)
from icestream.sources.postgres_cdc.timeline import Anchor

FAR = 1 << 40


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Log:
    """Stands for the driver: where the log ends, and how many changes it holds."""

    def __init__(self) -> None:
        self.end = 1000
        self.changes = 0
        self.counts = 0
        self.places: list[int] = []  # where each transaction ends, of one change each
        self.looks: list[tuple[int, int]] = []

    def end_of_log(self) -> int:
        return self.end

    def count_changes(self, end: int) -> int:
        assert end == self.end
        self.counts += 1
        return self.changes

    def lsn_after(self, start: int, end: int, rows: int) -> int | None:
        self.looks.append((start, end))
        changes = [place for place in self.places if start < place <= end]
        return changes[rows - 1] if len(changes) > rows else None


def ended(waiting: Backlog, log: Log, start: int) -> int:
    return waiting.batch_end(cast("Any", log), start)


def test_offsets_survive_json() -> None:
    place = PgOffset(
        system="1",
        lsn=7,
        tables={"public.a": PgTableState("1:1"), "public.b": PgTableState("2:1", 3, "5:9:7", 70)},
        pending=("public.c", "public.d"),
        cursor=SnapshotCursor(
            "public.c", ("x", "2"), PgTableState("3:1,2", 4, "5:9:", 70), "a text, b int4"
        ),
        unconfirmed={"public.e": PgTableState("4:")},
        refresh="r",
        timeline=2,
        confirmed=5,
    )
    assert PgOffset.from_json(json.loads(json.dumps(place.to_json()))) == place


def test_minimal_offset_has_only_the_required_keys() -> None:
    assert PgOffset("1", 7).to_json() == {"system": "1", "lsn": 7, "tables": {}}


def test_snapshot_visibility_is_dropped_at_the_lsn_of_the_snapshot() -> None:
    place = PgOffset("1", 5, {"a": PgTableState("1:1", 2, "5:9:", 70)})
    assert place.advance_to(69).tables["a"] == PgTableState("1:1", 2, "5:9:", 70)
    assert place.advance_to(70).tables["a"] == PgTableState("1:1", 2)


def test_anchor_includes_the_lsn_of_the_newest_snapshot() -> None:
    place = PgOffset("1", 5, {"a": PgTableState("1:1", 2, "5:9:", 70)}, timeline=3, confirmed=4)
    assert place.anchor == Anchor("1", timeline=3, lsn=5, snapshot_lsn=70, confirmed=4)
    assert place.advance_to(70).anchor == Anchor(
        "1", timeline=3, lsn=70, snapshot_lsn=0, confirmed=4
    )


def test_slot_is_saved_once_a_later_checkpoint_started() -> None:
    saved = SavedLsn()
    saved.record(confirmed=10, log_end=20, redo=5)
    saved.record(confirmed=15, log_end=20, redo=20)
    assert saved.lsn == 0
    saved.record(confirmed=18, log_end=30, redo=21)
    assert saved.lsn == 10
    saved.record(confirmed=25, log_end=40, redo=31)
    assert saved.lsn == 18


def test_log_without_changes_starts_no_batch_before_the_heartbeat() -> None:
    clock, log = Clock(), Log()
    waiting = Backlog(10, clock)
    log.end = 1200
    assert ended(waiting, log, 1000) == 1000
    clock.now += 9
    assert ended(waiting, log, 1000) == 1000
    clock.now += 2
    assert ended(waiting, log, 1000) == 1200
    assert waiting.estimate_rows(1000, 1200) == 1


def test_changes_are_counted_at_most_once_a_second() -> None:
    clock, log = Clock(), Log()
    waiting = Backlog(1000, clock)
    for _ in range(10):
        log.end += 10
        ended(waiting, log, 1000)
        clock.now += 0.1
    assert log.counts == 1
    clock.now += 1
    log.changes = 3
    log.end += 10
    assert ended(waiting, log, 1000) == log.end
    assert waiting.estimate_rows(1000, log.end) == 3


def test_large_log_range_is_estimated_and_not_counted() -> None:
    clock, log = Clock(), Log()
    waiting = Backlog(1000, clock)
    log.end = 1000 + MAX_COUNTED_BYTES
    assert ended(waiting, log, 1000) == log.end
    assert log.counts == 0
    assert waiting.estimate_rows(1000, log.end) == MAX_COUNTED_BYTES // 150
    waiting.learn(100_000, 1000)
    assert waiting.estimate_rows(1000, log.end) == MAX_COUNTED_BYTES // 100
    waiting.learn(300_000, 1000)
    assert waiting.estimate_rows(1000, log.end) == MAX_COUNTED_BYTES // 200


def capped(waiting: Backlog, log: Log, start: int, end: int, rows: int) -> int:
    return waiting.limit(cast("Any", log), start, end, rows)


def test_large_steps_are_estimated_while_they_contain_rows() -> None:
    waiting, log = Backlog(10), Log()
    assert capped(waiting, log, 0, FAR, 10_000) == 1_500_000
    assert log.looks == []


def test_empty_step_is_followed_by_longer_counted_steps() -> None:
    waiting, log = Backlog(10), Log()
    log.places = [1 << 35]
    steps = []
    for _ in range(3):
        steps.append(capped(waiting, log, 0, FAR, 10_000))
        waiting.learn(steps[-1], 0)
    assert steps == [1_500_000, 4 * PEEK_BYTES, 16 * PEEK_BYTES]
    waiting.learn(24_000_000, 160_000)
    assert capped(waiting, log, 0, FAR, 10_000) == 1_500_000


def test_longer_step_ends_at_the_requested_rows() -> None:
    waiting, log = Backlog(10), Log()
    waiting.learn(MAX_COUNTED_BYTES, 0)
    log.places = [1000 * number for number in range(1, 20_001)]
    assert capped(waiting, log, 0, FAR, 10_000) == 10_000_000


def test_small_step_skips_changes_of_other_databases() -> None:
    waiting, log = Backlog(10), Log()
    log.places = [500_000, 500_100, 900_000]
    assert capped(waiting, log, 0, 1_000_000, 2) == 500_100
    assert capped(waiting, log, 0, 1_000_000, 4) == 1_000_000
    assert capped(waiting, log, 0, FAR, 4) == PEEK_BYTES


def test_batch_without_log_does_not_change_the_estimate() -> None:
    waiting = Backlog(10)
    waiting.learn(0, 100_000)
    assert waiting.estimate_rows(0, 1500) == 10
    waiting.learn(100_000, 100_000_000)
    assert waiting.estimate_rows(0, 1500) == 150


def test_limit_is_never_beyond_the_end() -> None:
    waiting, log = Backlog(10), Log()
    assert capped(waiting, log, 0, 1500, 10) == 1500
    assert capped(waiting, log, 0, 10, 1) == 10
    assert waiting.estimate_rows(10, 10) == 0


def test_lag_is_bytes_and_the_age_of_the_oldest_of_them() -> None:
    clock = Clock()
    lag = ReplicationLag(clock)
    assert lag.measure() == {}
    lag.record_log_end(100)
    lag.record_confirmed(100)
    assert lag.measure() == {"slot_lag_bytes": 0.0, "slot_lag_seconds": 0.0}
    lag.record_log_end(150)
    clock.now += 5
    lag.record_log_end(400)
    clock.now += 1
    assert lag.measure() == {"slot_lag_bytes": 300.0, "slot_lag_seconds": 6.0}
    lag.record_confirmed(150)
    assert lag.measure() == {"slot_lag_bytes": 250.0, "slot_lag_seconds": 1.0}


def test_tables_removed_from_the_options_are_not_loaded() -> None:
    notes = {
        label: PgTableState("1:1") for label in ("public.orders", "public.log", "public.rates")
    }
    place = PgOffset("1", 7, tables={"public.orders": notes["public.orders"]}, unconfirmed=notes)
    place = replace(place, cursor=SnapshotCursor("public.items", ("1",), PgTableState("2:1")))

    def loaded(*tables: str) -> object:
        source = PostgresCdcSource(
            PostgresCdcOptions(host="h", database="d", user="u", tables=tables, slot_name="s")
        )
        return source.loaded_tables(place.to_json())

    names = {"orders", "log", "rates", "items"}
    assert loaded() == {("public", name) for name in names}
    assert loaded("public.orders", "public.r*") == {("public", "orders"), ("public", "rates")}
