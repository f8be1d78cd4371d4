"""Runs one pipeline: admits batches, writes them, restarts after transient faults, and stops."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import BatchMark, superseded_error
from icestream.engine.batch.batch import batch_events, write_once
from icestream.engine.batch.columns import StreamColumns
from icestream.engine.crash_points import crash_point
from icestream.engine.progress import Progress
from icestream.engine.recovery.start import begin_load, end_load, resolve_start
from icestream.engine.state import PipelineState, await_done, read_checkpoint
from icestream.errors import (
    CommitError,
    CommitUnknownError,
    ConnectorError,
    IcestreamError,
    RefusedError,
    SupersededError,
    TransientError,
    first_line,
)
from icestream.metrics.events import CommitFailed, LagMeasured, PipelineRestarted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Source
    from icestream.engine.batch.batch import BatchResult
    from icestream.engine.run import RunChoices
    from icestream.metrics.events import Event
    from icestream.plan.plan import Batching, PipelinePlan
    from icestream.spark.offset_stream import QueryStarter

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECS = 60.0
POLL_SECS = 0.2


def is_retryable(error: BaseException, *, has_worked: bool = False) -> bool:
    """Return whether restarting the pipeline may help.

    Our own errors say so by their class. Anything else comes from Spark or the network:
    a lost executor or a broken connection looks like that, and the batch is replayed safely.

    Args:
        error: what stopped the pipeline.
        has_worked: whether it has written a batch since its start. Then a server's
            error is new, and credentials that worked before may be renewed.
    """
    if isinstance(error, RefusedError | ConnectorError):
        return has_worked or isinstance(error, TransientError)
    if isinstance(error, IcestreamError):
        return isinstance(error, CommitUnknownError)
    from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError

    # Spark refused the plan or a type, and would refuse it again.
    return not isinstance(error, AnalysisException | PySparkTypeError | PySparkValueError)


def is_external(error: BaseException) -> bool:
    """Return whether a catalog, a store or Spark failed, so that connections may be broken."""
    ours = isinstance(error, IcestreamError)
    return not ours or isinstance(error, RefusedError | ConnectorError | CommitUnknownError)


def pause_secs(attempt: int, backoff_secs: float) -> float:
    """Return how long to wait before restart number `attempt`, the first being 1."""
    # Five restarts, the default, cover an outage of a minute and a half. The exponent is capped,
    # since a pipeline may restart for weeks.
    return min(backoff_secs * 3.0 ** min(attempt - 1, 32), LONGEST_PAUSE_SECS)


@dataclass(frozen=True)
class Lag:
    """How far a pipeline is behind: the pending rows, and how long the oldest has waited."""

    rows: int
    seconds: float


class Admission:
    """Admits a batch at `batch_size` pending rows, or when the oldest is `flush_interval_secs` old.

    `batch_size` is a trigger, never a limit: all pending rows go into the batch, up to
    `max_batch_rows`.

    Args:
        running: returns how many running pipelines of this process share the driver's memory.
        target: if given, everything up to this offset is admitted at once, and nothing after it.
    """

    def __init__(
        self,
        source: Source[Any],
        batching: Batching,
        *,
        target: Offset | None = None,
        clock: Callable[[], float] = time.monotonic,
        running: Callable[[], int] = lambda: 1,
    ) -> None:
        self._source = source
        self._batching = batching
        self._target = target
        self._clock = clock
        self._running = running
        self._waiting_since: float | None = None
        self.lag = Lag(0, 0.0)

    def next_end(self, current: Offset) -> Offset | None:
        """Return the end offset for a batch that starts at `current`, or None to wait."""
        latest = self._target if self._target is not None else self._source.latest(current)
        rows = self._source.rows_between(current, latest)
        if rows == 0:
            self._waiting_since = None
            self.lag = Lag(0, 0.0)
            return None
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        waited = now - self._waiting_since
        self.lag = Lag(rows, waited)
        enough = (
            rows >= self._batching.batch_size
            or waited >= self._batching.flush_interval_secs
            or self._target is not None
            or self._source.ends(latest)
        )
        if not enough:
            return None
        max_rows = self._batching.max_rows(self._running())
        end = self._source.limit(current, latest, max_rows)
        # Rows left out of this batch keep their waiting time.
        self._waiting_since = None if end == latest else self._waiting_since
        return end


class Acknowledgements:
    """Committed batches that are not yet acknowledged to the source.

    Spark may replay a batch until its commit log lists it. A source may delete what has been
    acknowledged, so batches are acknowledged only then, not right after the table's commit.
    """

    def __init__(self, source: Source[Any], checkpoint: Path) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._written: tuple[int, Offset, int] | None = None
        self._lock = threading.Lock()

    def record(self, epoch: int, end: Offset, rows: int) -> None:
        """Record a batch that was committed to the table."""
        with self._lock:
            unsent_rows = self._written[2] if self._written is not None else 0
            self._written = (epoch, end, unsent_rows + rows)

    def send(self) -> None:
        """Acknowledge the recorded batches, once Spark has logged the last of them as done."""
        written = self._written
        if written is None or read_checkpoint(self._checkpoint).done < written[0]:
            return
        with self._lock:
            if self._written is written:
                self._written = None
        self._source.committed(written[1], written[2])


# Every pipeline that runs in this process.
_running: set[PipelineRunner] = set()


class PipelineRunner:
    """One pipeline from start to stop. `run` blocks; `stop` may be called from any thread."""

    def __init__(
        self,
        plan: PipelinePlan,
        *,
        spark: SparkSession,
        state_root: Path,
        emit: Callable[[Event], None],
        choices: RunChoices,
        pipelines: Collection[str] = (),
    ) -> None:
        self.plan = plan
        self._instance = uuid.uuid4().hex
        self.state = PipelineState(state_root, plan.name, self._instance)
        self.progress = Progress(plan.name, plan.sink.identity())
        self.error: BaseException | None = None
        self._spark = spark
        self._emit = emit
        self._choices = choices
        self._pipelines = pipelines
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._fault: BaseException | None = None
        self._attempt = 0
        self._has_worked = False
        self._columns: StreamColumns | None = None
        self._acks = Acknowledgements(plan.source, self.state.checkpoint)
        self._load = ""
        self._current: Offset = {}
        self._admitted: Offset | None = None
        self._target: Offset | None = None
        self._last: BatchMark | None = None
        self._stream: QueryStarter | None = None

    def stop(self) -> None:
        """Ask the pipeline to finish its current batch and stop."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Run until the source ends, `stop` is called, or a fault persists.

        Raises:
            IcestreamError: a fault that a restart does not fix, or that outlasted every restart.
        """
        self.state.make()
        _running.add(self)
        try:
            with self.state.locked(take_over=self._choices.take_over):
                self._run_reporting()
        except BaseException as exc:
            self.error = exc
            self.progress.fail(exc)
            raise
        finally:
            _running.discard(self)
            self.plan.source.close()

    def _run_reporting(self) -> None:
        """Run, and write to the status file how it ended."""
        self.state.clean_up()
        self.plan.source.keep_state_in(self.state.folder / "source")
        self.progress.restore(self.state.status())
        try:
            self._run_with_restarts()
            self.progress.set_state("stopped" if self._stopping.is_set() else "finished")
        except SupersededError:
            # The status file now belongs to the other instance.
            raise
        except BaseException as exc:
            self.progress.fail(exc)
            self.state.write_status(self.progress.to_json())
            raise
        self.state.write_status(self.progress.to_json())

    def _run_with_restarts(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_until_fault()
            except Exception as fault:  # noqa: BLE001, PERF203 - a restart, not a hot loop
                self._attempt += 1
                exc = self._explain(fault)
                if is_external(exc):
                    self.plan.sink.disconnect(self._spark)
                is_over = self._attempt > self.plan.restart.max
                if is_over or not is_retryable(exc, has_worked=self._has_worked):
                    raise exc from exc.__cause__
                pause = pause_secs(self._attempt, self.plan.restart.backoff_secs)
                reason = first_line(exc)
                count = f"{self._attempt} of {self.plan.restart.max} in {pause:.1f} s"
                logger.warning("pipeline %s: restart %s: %s", self.plan.name, count, reason)
                self._emit(PipelineRestarted(self.plan.name, self._attempt, reason))
                self.progress.set_waiting(exc)
                self.state.write_status(self.progress.to_json())
                self._stopping.wait(pause)
            else:
                return

    def _explain(self, fault: Exception) -> Exception:
        """Return a known fault of the catalog or the store as our error, any other as it is."""
        if isinstance(fault, IcestreamError):
            return fault
        logger.debug("pipeline %s", self.plan.name, exc_info=fault)
        return self.plan.sink.explain(fault) or fault

    def _run_until_fault(self) -> None:
        self._fault = None
        stream = self._stream = self._stream or self._start_stream()
        self.plan.sink.open(self._spark, self.plan.name, self.state.sink_cache)
        if self.plan.dead_letter is not None:
            self.plan.dead_letter.open(self._spark, self.plan.name)
        self._refuse_if_overtaken()
        # A choice applies once; a restart continues from its result. The exception is a reload,
        # which the source's offset records only after the first batch.
        choice = self._choices.recovery
        if self._attempt > 0 and choice != "reload":
            choice = "ask"
        self._current, self._admitted = resolve_start(
            self.plan, self.state, choice, self._pipelines
        )
        self._load = begin_load(self.plan, self.state, choice, once=self._choices.once)
        self.progress.remember_commit(self.plan.sink.last_mark())
        if self._admitted is not None:
            # A replay reads by offsets alone: let the source first check that they are still valid.
            self.plan.source.latest(self._current)
        self.plan.source.committed(self._current, 0)
        self._columns = StreamColumns(self.plan, self.state)
        if self._choices.once and self._target is None:
            self._target = self.plan.source.latest(self._current)
        admission = Admission(
            self.plan.source,
            self.plan.batching,
            target=self._target,
            running=lambda: len(_running),
        )
        self.progress.set_state("running")
        query: StreamingQuery | None = None
        try:
            if self._admitted is not None:
                query = stream.query(self._on_batch)
            while not self._is_finished():
                query = self._step(admission, stream, query)
            await_done(self.state.checkpoint)
            self._acks.send()
            if not self._stopping.is_set():
                self.progress.measure(0, 0.0)
                end_load(self.state, self._load)
        finally:
            if query is not None:
                query.stop()

    def _start_stream(self) -> QueryStarter:
        # The module imports pyspark, which `status` and `check` do not need.
        from icestream.spark.offset_stream import QueryStarter

        state = self.state
        return QueryStarter(
            self._spark,
            self.plan.name,
            start=state.start_file,
            following=state.next_file,
            checkpoint=state.checkpoint,
        )

    def _refuse_if_overtaken(self) -> None:
        """Refuse to restart if another instance has taken over."""
        mark = self.plan.sink.last_mark()
        ours = mark is None or mark == self._last or mark.instance == self._instance
        if self._attempt > 0 and mark is not None and not ours:
            raise superseded_error(
                mark, f"pipeline {self.plan.name!r}, table {self.progress.table}"
            )
        self._last = mark

    def _step(
        self, admission: Admission, stream: QueryStarter, query: StreamingQuery | None
    ) -> StreamingQuery | None:
        self._wake.clear()
        self._acks.send()
        if self._admitted is None and not self._stopping.is_set():
            end = admission.next_end(self._current)
            lag, measures = admission.lag, self.plan.source.measure()
            self.progress.measure(lag.rows, lag.seconds)
            self._emit(LagMeasured(self.plan.name, lag.rows, lag.seconds, measures))
            if end is not None:
                self._admitted = end
                self.state.publish(end)
                return query or stream.query(self._on_batch)
        self._wake.wait(POLL_SECS)
        self._raise_fault(query)
        return query

    def _raise_fault(self, query: StreamingQuery | None) -> None:
        if self._fault is not None:
            raise self._fault
        if query is not None and not query.isActive:
            problem = query.exception()
            if self._fault is not None:
                raise self._fault
            raise problem or IcestreamError("the streaming query ended by itself")

    def _is_finished(self) -> bool:
        if self._fault is not None or self._admitted is not None:
            return False
        if self._stopping.is_set():
            return True
        if self._target is not None:
            return self.plan.source.rows_between(self._current, self._target) == 0
        return self.plan.source.ends(self._current)

    def _on_batch(self, rows: DataFrame, epoch: int) -> None:
        try:
            self._write(rows.sparkSession, epoch)
        except BaseException as exc:
            self._fault = exc
            self._wake.set()
            raise

    def _write(self, spark: SparkSession, epoch: int) -> None:
        checkpoint = read_checkpoint(self.state.checkpoint)
        end = checkpoint.end_of(epoch)
        start = checkpoint.end_of(epoch - 1) if epoch > 0 else self.state.start() or {}
        if start != end:
            mark = BatchMark(
                pipeline=self.plan.name,
                query_id=checkpoint.query_id or "",
                epoch=epoch,
                source=self.plan.source.identity(),
                start=start,
                end=end,
                span=self.plan.source.count_offsets(start, end),
                instance=self._instance,
                load=self._load,
            )
            assert self._columns is not None  # noqa: S101 - set before the query starts
            try:
                result = write_once(
                    spark, self.plan, self._columns, mark, self.state.dead_letters_end()
                )
            except CommitError as exc:
                table = self.plan.sink.identity()
                self._emit(CommitFailed(self.plan.name, table, exc.retries, exc.what))
                raise
            self._last = self.plan.sink.last_mark()
            self._has_worked = True
            self._report_batch(mark, result)
            self.plan.sink.publish(mark)
            self._acks.record(epoch, end, result.rows if result is not None else 0)
            self._attempt = 0
        self._current = end
        if self._admitted == end:
            self._admitted = None
        crash_point("after-batch")
        self._wake.set()

    def _report_batch(self, mark: BatchMark, result: BatchResult | None) -> None:
        for event in batch_events(self.plan, mark.epoch, result):
            self._emit(event)
        self.progress.remember_commit(self._last)
        if result is None:
            return
        self.progress.add(mark.epoch, result)
        self.state.write_status(self.progress.to_json())
