"""Random histories against a plain dictionary: changes, reorderings, new columns, compactions,
crashes and replays end in the same rows, in every commit mode, on v2 and v3."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.sink_batches import PIPELINE, mark, written

from icestream.sinks.iceberg.java_table import Change, JavaTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake

    from icestream.contracts.mark import BatchMark
    from icestream.sinks.iceberg.sink import IcebergSink

Row = dict[str, Any]
names = itertools.count()

MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "overwrite": {"commit_mode": "overwrite", "partitioning": ("part",)},
    "overwrite_table": {"commit_mode": "overwrite_table"},
    "upsert": {"commit_mode": "upsert", "key_fields": ("id",), "op_field": "op"},
    "upsert by sequence": {
        "commit_mode": "upsert",
        "key_fields": ("id", "shop"),
        "op_field": "op",
        "sequence_field": "no",
        "partitioning": ("part",),
    },
}

rows = st.fixed_dictionaries(
    {
        "id": st.integers(0, 5),
        "shop": st.sampled_from(["a", "b"]),
        "part": st.sampled_from(["x", "y"]),
        "no": st.integers(0, 6),
        "value": st.integers(0, 10**6),
        "op": st.sampled_from([None, "u", "u", "d"]),
    }
)
batches = st.lists(st.lists(rows, min_size=1, max_size=6), min_size=1, max_size=2)
steps = st.one_of(
    st.tuples(st.just("batch"), batches),
    st.tuples(st.just("batch"), batches),
    st.tuples(st.just("batch that loses its answer"), batches),
    st.tuples(st.just("batch that dies before the commit"), batches),
    st.tuples(st.sampled_from(["compaction", "new column", "restart", "expiry"]), st.none()),
)
histories = st.lists(steps, min_size=3, max_size=7)


class Killed(BaseException):
    """The process ended here."""


@dataclass
class World:
    """A table, and what a dictionary says that it holds."""

    lake: Lake
    mode: str
    version: int
    table: str = field(default_factory=lambda: f"t{next(names)}")
    epoch: int = 0
    columns: int = 0
    held: list[Row] = field(default_factory=list)
    buried: dict[Any, int] = field(default_factory=dict)
    sink: IcebergSink | None = None

    def schema(self) -> pa.Schema:
        own = [("id", pa.int64()), ("shop", pa.string()), ("part", pa.string()), ("no", pa.int32())]
        added = [(f"c{n}", pa.int64()) for n in range(self.columns)]
        op = [("op", pa.string())] if "upsert" in self.mode else []
        return pa.schema([*own, ("value", pa.int64()), *added, *op])

    def open(self) -> IcebergSink:
        if self.sink is None:
            self.sink = self.lake.sink(self.table, format_version=self.version, **MODES[self.mode])
            # The index outlives a restart, as it does in a pipeline's state folder.
            self.sink.open(self.lake.spark, PIPELINE, self.lake.folder / self.table)
        return self.sink

    def commit(self, batch: list[list[Row]], batch_mark: BatchMark) -> None:
        sink = self.open()
        if sink.holds(batch_mark):
            return
        files = []
        for part in batch:
            given = [
                {**row, **{f"c{n}": row["value"] + n for n in range(self.columns)}} for row in part
            ]
            files += written(sink, pa.Table.from_pylist(given, schema=self.schema()))
        sink.commit(files, batch_mark)

    def expect(self, batch: list[list[Row]]) -> None:
        """Do to the dictionary what the batch should do to the table."""
        added = [
            {**row, **{f"c{n}": row["value"] + n for n in range(self.columns)}}
            for part in batch
            for row in part
        ]
        if self.mode == "append":
            self.held += added
        elif self.mode == "overwrite_table":
            self.held = added
        elif self.mode == "overwrite":
            touched = {row["part"] for row in added}
            self.held = [row for row in self.held if row["part"] not in touched] + added
        else:
            for row in added:
                self._expect_change(row)

    def _expect_change(self, row: Row) -> None:
        keys = MODES[self.mode]["key_fields"]
        by_sequence = "sequence_field" in MODES[self.mode]
        key = tuple(row[name] for name in keys)
        old = next((one for one in self.held if tuple(one[k] for k in keys) == key), None)
        newest = max(self.buried.get(key, -1), old["no"] if old is not None else -1)
        if by_sequence and row["no"] < newest:
            return
        if old is not None:
            self.held.remove(old)
        if row["op"] == "d":
            self.buried[key] = max(row["no"], self.buried.get(key, -1))
        else:
            self.held.append(row)

    def rows(self) -> list[tuple[Any, ...]]:
        shown = [name for name in self.schema().names if name != "op"]
        found = self.lake.sql(f"select {', '.join(shown)} from lake.db.{self.table}")  # noqa: S608
        return sorted((tuple(row) for row in found), key=str)

    def expected(self) -> list[tuple[Any, ...]]:
        shown = [name for name in self.schema().names if name != "op"]
        return sorted((tuple(row.get(name) for name in shown) for row in self.held), key=str)


def live(world: World, step: str, batch: list[list[Row]] | None) -> None:
    if batch is None:
        other(world, step)
        return
    batch_mark = mark(world.epoch)
    world.epoch += 1
    if step != "batch":
        with pytest.MonkeyPatch.context() as patch:
            keyed = "upsert" in world.mode
            patch.setattr(JavaTable, "commit", killer(keyed=keyed, after=step.endswith("answer")))
            with pytest.raises(Killed):
                world.commit(batch, batch_mark)
        world.sink = None
    world.commit(batch, batch_mark)
    world.expect(batch)


def killer(*, keyed: bool, after: bool) -> Callable[..., int]:
    original = JavaTable.commit

    def commit(table: JavaTable, change: Change, *arguments: Any) -> int:
        if change.keyed != keyed:
            return original(table, change, *arguments)  # the tombstones beside the table
        if after:
            original(table, change, *arguments)
        raise Killed

    return commit


def other(world: World, step: str) -> None:
    if step == "new column":
        world.columns += 1
    elif step == "restart":
        world.sink = None
    elif world.epoch and step == "compaction":
        world.lake.sql(
            f"call lake.system.rewrite_data_files(table => 'db.{world.table}', "
            "options => map('rewrite-all', 'true'))"
        )
    elif world.epoch and step == "expiry":
        world.lake.sql(
            f"call lake.system.expire_snapshots(table => 'db.{world.table}', "
            "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1)"
        )


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_any_history_ends_in_the_rows_of_a_dictionary(lake: Lake, mode: str, version: int) -> None:
    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(histories)
    def check(history: list[tuple[str, list[list[Row]] | None]]) -> None:
        world = World(lake, mode, version)
        for step, batch in history:
            live(world, step, batch)
        if world.epoch:
            assert world.rows() == world.expected()

    check()
