"""Dead letters replayed once they pass: each exactly once, despite crashes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.spark.test_expectations import expectation, steps

from icestream.contracts.decoder import Records
from icestream.engine.dead_letters.replay import Replay
from icestream.engine.dead_letters.table import PipelineDeadLetters
from icestream.errors import SupersededError
from icestream.formats.json import JsonDecoder
from icestream.sinks.iceberg.ledger import read_marks
from icestream.tables.lookup import find_table
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.spark import Lake

    from icestream.contracts.source import Split
    from icestream.engine.dead_letters.replay import ReplayResult
    from icestream.plan.plan import PipelinePlan
    from icestream.tables.lookup import NamedTable


class PowerCutError(Exception):
    pass


@dataclass
class ReplayHarness:
    """Replays dead letters of one lake's pipeline."""

    lake: Lake

    def find(self) -> NamedTable:
        return find_table((self.lake.name, "db", "dead"), {self.lake.name: self.lake.catalog})

    def box(self) -> PipelineDeadLetters:
        return PipelineDeadLetters(self.find, "events", self.lake.spark)

    def begin(self, plan: PipelinePlan, box: PipelineDeadLetters | None = None) -> Replay:
        replay = Replay(self.lake.spark, plan, self.lake.state, box or self.box())
        replay.open()
        return replay

    def replay(self, plan: PipelinePlan, **chosen: Any) -> ReplayResult:
        replay = self.begin(plan)
        replay.run(self.box().read(**chosen))
        return replay.outcome


@pytest.fixture
def replays(lake: Lake) -> ReplayHarness:
    return ReplayHarness(lake)


def with_offsets() -> ScriptedSource:
    """Return a source with an offset for each record, as Kafka has."""

    # Made here so that it travels to Spark's workers by value: they can't import this module.
    class WithOffsets(ScriptedSource):
        def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
            for block in super().read(split):
                assert isinstance(block, Records)
                low, rows = split.what
                offsets = pa.array(range(low, low + len(rows)), pa.int64())
                yield Records(block.values, {"offset": offsets}, block.position)

        def extra_columns(self) -> pa.Schema:
            return pa.schema([pa.field("offset", pa.int64(), nullable=False)])

    return WithOffsets(decoder=JsonDecoder())


def prices(*given: bytes, into: ScriptedSource | None = None) -> ScriptedSource:
    source = into or ScriptedSource(decoder=JsonDecoder())
    source.append_values(b'{"id":%d,"price":%s}' % (n, price) for n, price in enumerate(given))
    return source


def cast(plan: PipelinePlan, kind: str = "int") -> PipelinePlan:
    return replace(plan, transforms=steps(("cast", {"price": kind})))


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def positions(lake: Lake) -> list[str]:
    return sorted(row["position"] for row in lake.rows("dead"))


def test_dead_letters_that_now_pass_are_written_and_the_rest_stay(
    lake: Lake, replays: ReplayHarness
) -> None:
    source = prices(b'"1"', b'"2.5"', b'"x"', b'"4"', b'"5.5"')
    lake.run(cast(lake.plan(source, on_error="dead_letter")))
    assert positions(lake) == ["scripted[1]", "scripted[2]", "scripted[4]"]
    wider = replace(
        lake.plan(source, on_error="dead_letter"),
        transforms=steps(("select", ["id", "CAST(CAST(price AS double) AS int) AS price"])),
    )
    lenient = replace(
        wider, transforms=steps(("cast", {"price": "double"}), ("cast", {"price": "int"}))
    )
    outcome = replays.replay(lenient)

    assert sorted((row["id"], row["price"]) for row in lake.rows()) == [
        (0, 1),
        (1, 2),
        (3, 4),
        (4, 5),
    ]
    assert positions(lake) == ["scripted[2]"]
    assert lake.rows("dead")[0]["reason"] == "column 'price': 'x' is not an int", "as it was"
    assert (outcome.letters, outcome.replayed, outcome.rows) == (3, 2, 2)
    assert dict(outcome.still_bad) == {"column 'price': 'x' is not a double": 1}
    properties = lake.catalog.client().load_table(("db", "events")).properties
    assert sorted(read_marks(properties)) == ["events", "events/dlq"]


def test_replay_does_not_affect_the_next_run(lake: Lake, replays: ReplayHarness) -> None:
    source = prices(b'"1"', b'"2.5"')
    plan = cast(lake.plan(source, on_error="dead_letter"))
    lake.run(plan)
    replays.replay(replace(plan, transforms=steps(("select", ["id", "int(1) AS price"]))))
    source.append_values([b'{"id":7,"price":"7"}', b'{"id":8,"price":"y"}'])
    lake.run(plan)

    assert ids(lake) == [0, 1, 7]
    assert positions(lake) == ["scripted[3]"]


def test_dead_letters_of_a_rolled_back_replay_are_replayed_again(
    lake: Lake, replays: ReplayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = prices(b'"1"', b'"2.5"')
    lake.run(cast(lake.plan(source, on_error="dead_letter")))
    before = lake.catalog.client().load_table("db.events").metadata.current_snapshot_id
    any_price = replace(
        lake.plan(source, on_error="dead_letter"),
        transforms=steps(("select", ["id", "int(1) AS price"])),
    )

    def cut(point: str) -> None:
        if point == "after-commit":
            raise PowerCutError

    monkeypatch.setattr("icestream.engine.dead_letters.replay.crash_point", cut)
    with pytest.raises(PowerCutError):
        replays.replay(any_price)
    monkeypatch.undo()
    assert (ids(lake), positions(lake)) == ([0, 1], ["scripted[1]"])
    lake.sql(f"CALL {lake.name}.system.rollback_to_snapshot('db.events', {before})")

    outcome = replays.replay(any_price)
    assert (outcome.finished, outcome.replayed) == (0, 1)
    assert (ids(lake), positions(lake)) == ([0, 1], [])


def test_undecodable_dead_letters_are_decoded_with_their_metadata_columns(
    lake: Lake, replays: ReplayHarness
) -> None:
    source = prices(b"1", b"2", into=with_offsets())
    lake.run(lake.plan(source, on_error="dead_letter"))
    source.append_values([b'{"id": 2, "price": true}', b'{"id": "three"}'])
    lake.run(lake.plan(source, on_error="dead_letter"))
    assert [row["extra"] for row in sorted(lake.rows("dead"), key=lambda row: row["position"])] == [
        '{"offset": 2}',
        '{"offset": 3}',
    ]
    spark_table = f"{lake.name}.db.events"
    lake.spark.sql(f"ALTER TABLE {spark_table} DROP COLUMN price")
    lake.spark.sql(f"ALTER TABLE {spark_table} ADD COLUMN price boolean")
    outcome = replays.replay(lake.plan(source, on_error="dead_letter"))

    assert (outcome.replayed, sum(outcome.still_bad.values())) == (1, 1)
    assert sorted((row["id"], row["offset"], row["price"]) for row in lake.rows()) == [
        (0, 0, None),
        (1, 1, None),
        (2, 2, True),
    ]
    assert positions(lake) == ["scripted[3]"]


def test_row_of_a_row_source_is_restored_from_its_json(lake: Lake, replays: ReplayHarness) -> None:
    schema = pa.schema([("id", pa.int64()), ("blob", pa.binary()), ("amount", pa.decimal128(9, 2))])
    source = ScriptedSource(schema=schema)
    source.append_rows([{"id": 1, "blob": b"\xff", "amount": None}, {"id": -1, "blob": b"\x00"}])
    strict = lake.plan(
        source,
        on_error="dead_letter",
        expect=[expectation("positive", "id > 0", "dead_letter")],
    )
    lake.run(strict)
    assert ids(lake) == [1]
    assert replays.replay(strict).replayed == 0
    assert replays.replay(lake.plan(source, on_error="dead_letter")).replayed == 1

    assert sorted((row["id"], row["blob"]) for row in lake.rows()) == [(-1, b"\x00"), (1, b"\xff")]
    assert lake.rows("dead") == []


def test_fail_expectation_keeps_the_dead_letter_in_a_replay(
    lake: Lake, replays: ReplayHarness
) -> None:
    source = prices(b'"1"', b'"x"', b'"-5"', b'"y"')
    lake.run(cast(lake.plan(source, on_error="dead_letter")))
    rules = [expectation("known", "price IS NOT NULL", "fail")]
    plan = replace(
        lake.plan(source, on_error="dead_letter", expect=rules),
        transforms=steps(("select", ["id", "CASE price WHEN 'x' THEN 9 END AS price"])),
    )
    outcome = replays.replay(plan)

    assert dict(outcome.still_bad) == {"expectation 'known' is not met: price IS NOT NULL": 1}
    assert ids(lake) == [0, 1, 2]
    assert positions(lake) == ["scripted[3]"]


def test_dead_letters_are_selected_by_reason_and_time(lake: Lake, replays: ReplayHarness) -> None:
    source = prices(b'"x"', b'"y"')
    plan = cast(lake.plan(source, on_error="dead_letter"))
    lake.run(plan)
    now = max(row["failed_at"] for row in lake.rows("dead"))
    any_price = replace(plan, transforms=steps(("cast", {"price": "string"})))
    any_price = replace(any_price, sink=lake.sink("others"))
    assert replays.replay(any_price, since=now.replace(year=now.year + 1)).letters == 0
    assert replays.replay(any_price, reason="'X' is").replayed == 1
    assert positions(lake) == ["scripted[1]"]
    assert replays.replay(any_price, since=now.replace(year=now.year - 1)).replayed == 1
    assert sorted(row["price"] for row in lake.rows("others")) == ["x", "y"]


@pytest.mark.parametrize("point", ["save_replay", "remove", "forget_replay"])
def test_crash_in_a_replay_neither_loses_nor_duplicates(
    lake: Lake, replays: ReplayHarness, point: str
) -> None:
    class Crashing(PipelineDeadLetters):
        pass

    def crash(*_: object) -> None:
        raise PowerCutError

    source = prices(b'"1"', b'"x"', b'"y"')
    plan = cast(lake.plan(source, on_error="dead_letter"))
    lake.run(plan)
    mended = replace(plan, transforms=steps(("select", ["id", "int(1) AS price"])))
    setattr(Crashing, point, crash)
    broken = Crashing(replays.find, "events", lake.spark)
    first = replays.begin(mended, broken)
    with pytest.raises(PowerCutError):
        first.run(broken.read())
    assert len(ids(lake)) == (1 if point == "save_replay" else 3)
    outcome = replays.replay(mended)

    assert ids(lake) == [0, 1, 2]
    assert lake.rows("dead") == []
    assert (outcome.finished, outcome.replayed) == ((0, 2) if point == "save_replay" else (2, 0))
    assert list(lake.folder.rglob("replays/*.arrow")) == []


def test_concurrent_replay_is_refused(lake: Lake, replays: ReplayHarness) -> None:
    source = prices(b'"x"')
    plan = cast(lake.plan(source, on_error="dead_letter"))
    source.append_values([b'{"id":5,"price":"5"}'])
    lake.run(plan)
    mended = replace(plan, transforms=steps(("select", ["id", "int(1) AS price"])))
    slow = replays.begin(replace(mended, sink=lake.sink("events")))
    letters = list(replays.box().read())
    replays.replay(mended)
    with pytest.raises(SupersededError):
        slow.run(letters)

    assert ids(lake) == [0, 5]


def test_pipeline_may_run_during_a_replay(lake: Lake, replays: ReplayHarness) -> None:
    source = prices(b'"1"', b'"x"')
    plan = cast(lake.plan(source, on_error="dead_letter"))
    lake.run(plan)
    mended = replace(
        plan, transforms=steps(("select", ["id", "int(1) AS price"])), sink=lake.sink("events")
    )
    replaying = replays.begin(mended)
    letters = list(replays.box().read())
    source.append_values([b'{"id":7,"price":"7"}', b'{"id":8,"price":"y"}'])
    lake.run(plan)
    replaying.run(letters)
    source.append_values([b'{"id":9,"price":"9"}'])
    lake.run(plan)

    assert ids(lake) == [0, 1, 7, 9]
    assert positions(lake) == ["scripted[3]"]


def test_dead_letters_without_a_record_are_left_alone(lake: Lake, replays: ReplayHarness) -> None:
    source = prices(b"1", b"2")
    plan = replace(
        lake.plan(
            source, on_error="dead_letter", expect=[expectation("few", "n < 2", "dead_letter")]
        ),
        transforms=steps(("select", ["count(*) AS n"])),
    )
    lake.run(plan)
    outcome = replays.replay(plan)

    assert (outcome.letters, outcome.untraced, outcome.replayed) == (1, 1, 0)
    assert len(lake.rows("dead")) == 1
