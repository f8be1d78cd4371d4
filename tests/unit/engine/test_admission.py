"""When a batch may begin, and where it ends."""

from __future__ import annotations

from tests.fixtures.counted_source import START, Clock, Counted, admission

from icestream.engine.runner import Admission, Lag
from icestream.plan.plan import Batching


def test_backlog_goes_into_one_batch_however_small_the_batch_size() -> None:
    assert admission(Counted(1_000_000)).next_end(START) == {"row": 1_000_000}


def test_backlog_larger_than_max_batch_rows_is_read_in_batches_of_that_size() -> None:
    admitted = admission(Counted(1_000_000), most=400_000)

    ends, here = [], START
    while (end := admitted.next_end(here)) is not None:
        ends.append(end["row"])
        here = end

    assert ends == [400_000, 800_000, 1_000_000]


def test_max_batch_rows_below_batch_size_is_still_the_limit() -> None:
    assert admission(Counted(50_000), most=500).next_end(START) == {"row": 500}


def test_limit_depends_on_the_number_of_running_pipelines() -> None:
    running = iter([1, 4, 2])
    batching = Batching(1, 60, 400_000, lambda pipelines: 400_000 // pipelines)
    admitted = Admission(Counted(1_000_000), batching, running=lambda: next(running))

    ends, here = [], START
    for _ in range(3):
        end = admitted.next_end(here)
        assert end is not None
        ends.append(end["row"])
        here = end

    assert ends == [400_000, 500_000, 700_000]


def test_batch_size_rows_start_a_batch_immediately() -> None:
    clock = Clock()

    assert admission(Counted(9_999), clock).next_end(START) is None
    assert admission(Counted(10_000), clock).next_end(START) == {"row": 10_000}


def test_few_rows_wait_for_the_flush_interval_since_they_were_seen() -> None:
    source, clock = Counted(0), Clock()
    admitted = admission(source, clock)
    assert admitted.next_end(START) is None
    clock.now += 1_000
    source.rows = 3
    assert admitted.next_end(START) is None, "the clock starts with the first row that waits"
    clock.now += 59.9
    source.rows = 5
    assert admitted.next_end(START) is None, "a later row does not start the clock again"
    clock.now += 0.1

    assert admitted.next_end(START) == {"row": 5}


def test_flush_interval_restarts_after_a_batch_of_every_row() -> None:
    source, clock = Counted(3), Clock()
    admitted = admission(source, clock)
    admitted.next_end(START)
    clock.now += 60
    assert admitted.next_end(START) == {"row": 3}
    source.rows = 4

    assert admitted.next_end({"row": 3}) is None
    clock.now += 59
    assert admitted.next_end({"row": 3}) is None
    clock.now += 1
    assert admitted.next_end({"row": 3}) == {"row": 4}


def test_rows_left_by_a_full_batch_do_not_wait_again() -> None:
    source, clock = Counted(3), Clock()
    admitted = admission(source, clock, most=2)
    admitted.next_end(START)
    clock.now += 60
    assert admitted.next_end(START) == {"row": 2}

    assert admitted.next_end({"row": 2}) == {"row": 3}


def test_target_is_reached_without_waiting_and_never_exceeded() -> None:
    source = Counted(7)
    admitted = admission(source, target={"row": 7}, most=5)
    source.rows = 1_000_000

    assert admitted.next_end(START) == {"row": 5}
    assert admitted.next_end({"row": 5}) == {"row": 7}, "two rows are few, but they are the last"
    assert admitted.next_end({"row": 7}) is None


def test_last_rows_of_a_source_that_ends_do_not_wait() -> None:
    assert admission(Counted(3, has_end=True)).next_end(START) == {"row": 3}
    assert admission(Counted(3, has_end=False)).next_end(START) is None


def test_lag_is_the_backlog_and_its_age() -> None:
    source, clock = Counted(3), Clock()
    admitted = admission(source, clock)
    assert admitted.lag == Lag(0, 0.0)
    admitted.next_end(START)
    clock.now += 12.5
    source.rows = 8
    admitted.next_end(START)
    assert admitted.lag == Lag(8, 12.5)

    admitted.next_end({"row": 8})
    assert admitted.lag == Lag(0, 0.0)
