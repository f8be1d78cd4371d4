"""Random histories of a table: a pipeline continues if and only if its rows are still there."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fixtures.sink_batches import PIPELINE, mark, written

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.sinks.iceberg.sink import IcebergTableSink

STEPS = ("ours", "ours", "theirs", "theirs", "roll back", "expire", "replace", "tag")


class History:
    """A table, what was done to it, and whether rows of the pipeline went missing.

    Attributes:
        line: who made each snapshot of the main branch, the oldest first.
        expired: how many of them are expired.
        lost: whether a snapshot of ours is no longer in the line.
        hidden: whether the metadata no longer shows it.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.table = f"t{uuid.uuid4().hex[:12]}"
        self.epoch = 0
        self.line: list[str] = []
        self.expired = 0
        self.lost = self.hidden = False
        self.commit_ours()
        self.other = self._opened("other")

    def _opened(self, pipeline: str) -> IcebergTableSink:
        sink = self.lake.sink(self.table)
        sink.open(self.lake.spark, pipeline)
        return sink

    def _java(self) -> Any:
        java = self.other.target.handle.java
        java.refresh()
        return java

    def do(self, step: str) -> None:
        if step == "ours":
            sink = self._opened(PIPELINE)
            assert bool(sink.lost_rows()) == self.lost, f"{self.line}, {self.expired} expired"
            if self.lost:
                sink.accept_lost_rows()
                self.lost = False
            self.commit_ours(sink)
        elif step == "theirs":
            self.other.commit_unmarked(written(self.other, pa.table({"id": [-1]})))
            self.line.append("theirs")
        elif step == "roll back" and len(self.line) - 1 > self.expired:
            java = self._java()
            java.manageSnapshots().rollbackTo(java.currentSnapshot().parentId()).commit()
            self.lost |= self.line.pop() == "ours"
        elif step == "expire" and self.line:
            later = int(time.time() * 1000) + 86_400_000
            self._java().expireSnapshots().expireOlderThan(later).retainLast(1).commit()
            # Commits on top of what was rolled back to, and everything between them expired,
            # leave the same metadata as plain expiry.
            self.hidden = self.lost and self.line[-1] == "theirs" and len(self.line) > 1
            self.expired = len(self.line) - 1
        elif step == "tag" and self.line:
            java = self._java()
            name, head = f"tag-{uuid.uuid4().hex}", java.currentSnapshot().snapshotId()
            java.manageSnapshots().createTag(name, head).commit()
        elif step == "replace":
            catalog: Any = self.other.target._java
            identifier = catalog._identifier(("db",), self.table)
            builder = catalog._catalog.buildTable(identifier, self._java().schema())
            builder.replaceTransaction().commitTransaction()
            self.line, self.expired, self.lost = [], 0, True

    def commit_ours(self, sink: IcebergTableSink | None = None) -> None:
        sink = sink or self._opened(PIPELINE)
        sink.commit(written(sink, pa.table({"id": [self.epoch]})), mark(self.epoch, rows=1))
        self.epoch += 1
        self.line.append("ours")


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(steps=["tag", "theirs", "theirs", "expire"])
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=10))
def test_pipeline_continues_if_and_only_if_its_rows_are_there(lake: Lake, steps: list[str]) -> None:
    history = History(lake)
    for step in steps:
        history.do(step)
        if history.hidden:
            return
    history.do("ours")
