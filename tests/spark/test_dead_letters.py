"""Rows that a `cast` can't take, and dead letters when a checkpoint is gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from tests.fixtures.power_cut import power_cut_before_rows
from tests.spark.test_expectations import steps

from icestream.contracts.options import Options
from icestream.contracts.transform import Transform
from icestream.errors import AttentionError, BadRecordError, CheckpointLostError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import RecordsFailed
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.fixtures.spark import Lake

NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("prices", pa.list_(pa.string())),
        ("by_name", pa.map_(pa.string(), pa.string())),
        ("who", pa.struct([("age", pa.string())])),
    ]
)


def prices(*given: str | None) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(
        b'{"id":%d,"price":%s}' % (n, b"null" if price is None else b'"%s"' % price.encode())
        for n, price in enumerate(given)
    )
    return source


def failed(lake: Lake) -> list[tuple[int, int]]:
    return [(e.count, e.dead_letters) for e in lake.events if isinstance(e, RecordsFailed)]


def wipe_checkpoint(lake: Lake) -> None:
    shutil.rmtree(lake.state)


CAST = ("cast", {"price": "decimal(9,2)"})


def test_row_with_a_failed_cast_is_dropped_and_counted(lake: Lake) -> None:
    plan = replace(
        lake.plan(prices("1.25", "cheap", None, "3"), on_error="drop"), transforms=steps(CAST)
    )
    lake.run(plan)

    found = sorted((row["id"], str(row["price"])) for row in lake.rows())
    assert found == [(0, "1.25"), (2, "None"), (3, "3.00")]
    assert failed(lake) == [(1, 0)]


def test_row_with_a_failed_cast_is_kept_whatever_later_steps_do(lake: Lake) -> None:
    plan = replace(
        lake.plan(prices("1.25", "cheap", "12345678.9", "-1"), on_error="dead_letter"),
        transforms=steps(
            CAST,
            ("filter", "price > 0"),
            ("rename", {"price": "cost"}),
            ("select", ["*", "cost * 2 AS twice"]),
            ("drop", ["id"]),
            ("cast", {"twice": "string"}),
        ),
    )
    lake.run(plan)

    assert [(str(row["cost"]), row["twice"]) for row in lake.rows()] == [("1.25", "2.50")]
    letters = sorted(lake.rows("dead"), key=lambda row: str(row["position"]))
    assert [(row["raw"], row["reason"], row["position"]) for row in letters] == [
        (
            b'{"id":1,"price":"cheap"}',
            "column 'price': 'cheap' is not a decimal(9,2)",
            "scripted[1]",
        ),
        (
            b'{"id":2,"price":"12345678.9"}',
            "column 'price': '12345678.9' is not a decimal(9,2)",
            "scripted[2]",
        ),
    ]
    assert failed(lake) == [(2, 2)]


def test_nested_value_is_not_silently_lost(lake: Lake) -> None:
    source = ScriptedSource(schema=NESTED)
    good: dict[str, Any] = {"prices": ["1", None], "by_name": {"a": "1"}, "who": {"age": "1"}}
    bad: list[dict[str, Any]] = [
        {},
        {"prices": ["1", "x"]},
        {"by_name": {"a": "y"}},
        {"who": {"age": "z"}},
    ]
    source.append_rows({"id": n, **good, **each} for n, each in enumerate(bad))
    casts = {
        "prices": "array<int>",
        "by_name": "map<string,int>",
        "who": "struct<age:int>",
        "id": "int",
    }
    lake.run(replace(lake.plan(source, on_error="dead_letter"), transforms=steps(("cast", casts))))

    assert [(row["id"], row["prices"], row["who"]) for row in lake.rows()] == [
        (0, [1, None], {"age": 1})
    ]
    assert sorted(row["reason"] for row in lake.rows("dead")) == [
        'column \'by_name\': {"a":"y"} is not a map<string,int>',
        'column \'prices\': ["1","x"] is not an array<int>',
        'column \'who\': {"age":"z"} is not a struct<age:int>',
    ]


def test_failed_cast_fails_the_batch_by_default(lake: Lake) -> None:
    plan = replace(lake.plan(prices("cheap")), transforms=steps(CAST))
    with pytest.raises(BadRecordError) as caught:
        lake.run(plan)

    assert caught.value.what.startswith("a transform can't be applied to a row: ")
    assert "'cheap'" in caught.value.what


class NoOptions(Options):
    """A transform of somebody else's needs none."""


class Newest(Transform[NoOptions]):
    """Keeps one row of each key, and knows nothing of faults."""

    options_type: ClassVar[type[Options]] = NoOptions

    def apply(self, rows: DataFrame) -> DataFrame:
        return rows.groupBy("price").agg({"id": "max"}).withColumnRenamed("max(id)", "id")


def test_bad_row_is_removed_before_a_transform_that_would_lose_it(lake: Lake) -> None:
    plan = replace(
        lake.plan(prices("1", "cheap", "1", "dear"), on_error="dead_letter"),
        transforms=(*steps(CAST), Newest(NoOptions()), *steps(("cast", {"id": "int"}))),
    )
    lake.run(plan)

    assert [(row["id"], str(row["price"])) for row in lake.rows()] == [(2, "1.00")]
    assert sorted(row["position"] for row in lake.rows("dead")) == ["scripted[1]", "scripted[3]"]
    assert failed(lake) == [(2, 2)]


def undecodable(good: int, bad: int) -> list[bytes]:
    return [*(b'{"id": %d}' % n for n in range(good)), *[b"x"] * bad]


def test_resumed_pipeline_does_not_duplicate_the_dead_letters_of_a_bad_batch(
    lake: Lake,
) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    plan = lake.plan(source, on_error="dead_letter")
    for values in (undecodable(3, 1), undecodable(0, 2), undecodable(0, 1)):
        source.append_values(values)
        lake.run(plan)
    wipe_checkpoint(lake)
    source.append_values(undecodable(1, 1))
    with pytest.raises(CheckpointLostError):
        lake.run(plan)
    lake.run(plan, recovery="resume")

    assert sorted(row["id"] for row in lake.rows()) == [0, 0, 1, 2]
    assert len(lake.rows("dead")) == 5
    assert len({row["position"] for row in lake.rows("dead")}) == 5


def test_dead_letters_of_a_bad_first_batch_are_not_duplicated(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(undecodable(1, 0))
    plan = replace(
        lake.plan(source, on_error="dead_letter"), transforms=steps(("filter", "id > 5"))
    )
    source.append_values(undecodable(0, 2))
    lake.run(plan)
    wipe_checkpoint(lake)
    source.append_values([b'{"id": 9}', b"y"])
    lake.run(plan)

    assert [row["id"] for row in lake.rows()] == [9]
    assert sorted(row["position"] for row in lake.rows("dead")) == [
        "scripted[1]",
        "scripted[2]",
        "scripted[4]",
    ]


def test_checkpoint_lost_after_a_crash_between_the_commits_loses_and_duplicates_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(undecodable(2, 1))
    plan = lake.plan(source, on_error="dead_letter")
    lake.run(plan)
    source.append_values(undecodable(2, 2))
    with power_cut_before_rows():
        lake.run(plan)
    wipe_checkpoint(lake)
    source.append_values(undecodable(1, 1))
    lake.run(plan, recovery="resume")

    assert sorted(row["id"] for row in lake.rows()) == [0, 0, 0, 1, 1]
    assert len(lake.rows("dead")) == 4


def test_rules_that_change_between_the_commits_of_a_batch_lose_no_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(undecodable(3, 1))
    plan = lake.plan(source, on_error="dead_letter")
    with power_cut_before_rows():
        lake.run(plan)
    expect = ({"name": "small", "expr": "id < 2", "on_fail": "dead_letter"},)
    with pytest.raises(AttentionError) as caught:
        lake.run(lake.plan(source, on_error="dead_letter", expect=expect))

    assert str(caught.value) == (
        "pipeline 'events', batch 0: the batch was interrupted after writing 1 dead letters to "
        f"{lake.name}.db.dead; on replay it has 2, because what counts as a bad record has changed"
        "\n  Nothing else of the batch was written. Undo the change (to `expect`, `on_error`, the "
        "transforms or the columns) until this batch is committed, then apply it again: `icestream "
        "dlq replay` replays dead letters that now pass. If a condition uses `now()`, replace it "
        "with the original timestamp."
    )
    assert len(lake.rows("dead")) == 1
    lake.run(plan)
    assert sorted(row["id"] for row in lake.rows()) == [0, 1, 2]
    assert len(lake.rows("dead")) == 1


def test_dead_letters_of_a_dropped_table_do_not_count_for_its_successor(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values([b'{"id": 0}', b"x", b'{"id": 1}', b"y"])
    plan = lake.plan(source, on_error="dead_letter", batching=Batching(1, 0.1, 2))
    lake.run(plan)
    lake.sql("DROP TABLE lake.db.events")
    wipe_checkpoint(lake)
    lake.events.clear()
    lake.run(plan)

    assert sorted(row["id"] for row in lake.rows()) == [0, 1]
    assert failed(lake) == [(1, 1), (1, 1)], "in batches of their usual size, every letter kept"


def test_pipeline_that_starts_over_writes_every_dead_letter_again(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values([b'{"id": 0}', b"x"])
    plan = lake.plan(source, on_error="dead_letter", batching=Batching(1, 0.1, 1))
    lake.run(plan)
    lake.events.clear()
    lake.run(plan, recovery="start-over")

    assert failed(lake) == [(1, 1)]
    assert len(lake.rows("dead")) == 2
