"""Rows without a value that the table, or its key, can't do without: bad records like others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import ids, planned, row, scripted, tables
from tests.spark.test_expectations import steps

from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import RecordsFailed
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

KEYED: dict[str, Any] = {"commit_mode": "upsert", "key_fields": ("id",)}


def records(*values: bytes) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(values)
    return source


def failed(lake: Lake) -> list[tuple[int, int]]:
    return [(e.count, e.dead_letters) for e in lake.events if isinstance(e, RecordsFailed)]


def nulled(lake: Lake, on_error: str) -> PipelinePlan:
    """Return a pipeline whose transform takes a value away that the table requires."""
    lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    lake.sql("CREATE TABLE lake.db.events (id bigint NOT NULL, name string) USING iceberg")
    source = records(b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}', b'{"id":3,"name":"c"}')
    emptied = steps(("select", ["nullif(id, 2) AS id", "name"]))
    return replace(lake.plan(source, on_error=on_error), transforms=emptied)


def test_null_after_a_transform_becomes_a_dead_letter(lake: Lake) -> None:
    lake.run(nulled(lake, "dead_letter"))

    assert sorted(row["id"] for row in lake.rows()) == [1, 3]
    assert [(row["raw"], row["reason"], row["position"]) for row in lake.rows("dead")] == [
        (
            b'{"id":2,"name":"b"}',
            "column 'id' is required by the table, and the row has no value for it",
            "scripted[1]",
        )
    ]
    assert failed(lake) == [(1, 1)]


def test_null_after_a_transform_fails_the_batch_by_default(lake: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(nulled(lake, "fail"))
    assert caught.value.what == (
        "column 'id' is required by the table, and a row has no value for it"
    )


@pytest.mark.parametrize("through_spark", [False, True], ids=["arrow", "spark"])
def test_change_without_its_key_becomes_a_dead_letter(lake: Lake, through_spark: bool) -> None:
    source = records(b'{"id":1,"name":"a"}', b'{"id":null,"name":"b"}', b"x", b'{"name":"d"}')
    plan = lake.plan(source, on_error="dead_letter", **KEYED)
    if through_spark:
        plan = replace(plan, transforms=steps(("filter", "name <> 'z'")))
    lake.run(plan)

    assert [(row["id"], row["name"]) for row in lake.rows()] == [(1, "a")]
    letters = sorted((row["position"], row["raw"]) for row in lake.rows("dead"))
    assert letters == [
        ("scripted[1]", b'{"id":null,"name":"b"}'),
        ("scripted[2]", b"x"),
        ("scripted[3]", b'{"name":"d"}'),
    ]
    assert failed(lake) == [(3, 3)]


def test_change_without_its_key_is_dropped_if_configured(lake: Lake) -> None:
    source = records(b'{"id":1,"name":"a"}', b'{"id":null,"name":"b"}')
    lake.run(lake.plan(source, on_error="drop", **KEYED))

    assert [row["id"] for row in lake.rows()] == [1]
    assert failed(lake) == [(1, 0)]


def test_change_without_its_key_fails_the_batch_by_default(lake: Lake) -> None:
    source = records(b'{"id":1,"name":"a"}', b'{"id":null,"name":"b"}')
    with pytest.raises(BadRecordError, match="column 'id' is part of the key"):
        lake.run(lake.plan(source, **KEYED))


@pytest.mark.parametrize("route_by", ["kind", "lower(kind)"], ids=["arrow", "spark"])
def test_change_without_its_key_becomes_a_dead_letter_in_a_fan_out(
    lake: Lake, route_by: str
) -> None:
    source = scripted(row(1, "a"), {"id": None, "kind": "a"}, row(2, "b"), row(3, None))
    lake.run(planned(lake, source, on_error="dead_letter", route_by=route_by, **KEYED))

    assert (ids(lake, "a"), ids(lake, "b")) == ([1], [2])
    assert sorted((letter["reason"], letter["raw"]) for letter in lake.rows("dead")) == [
        (
            "`route_by` is null for the row",
            b'{"id": 3, "kind": null, "note": null}',
        ),
        (
            "column 'id' is part of the key, and the row has no value for it",
            b'{"id": null, "kind": "a", "note": null}',
        ),
    ]


def test_change_without_its_key_is_dropped_in_a_fan_out(lake: Lake) -> None:
    source = scripted(row(1, "a"), {"id": None, "kind": "a"})
    lake.run(planned(lake, source, on_error="drop", **KEYED))

    assert ids(lake, "a") == [1]
    assert failed(lake) == [(1, 0)]


def test_change_without_its_key_stops_the_pipeline_before_a_table_is_created(lake: Lake) -> None:
    source = scripted(row(1, "a"), {"id": None, "kind": "b"})
    with pytest.raises(BadRecordError) as caught:
        lake.run(planned(lake, source, **KEYED))

    assert str(caught.value) == (
        "pipeline 'events', batch 0: column 'id' is part of the key, and the row has no value for "
        "it\n"
        "  Nothing of the batch was written. Leave such rows out with a `filter` transform, or "
        "set `on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`."
    )
    assert tables(lake) == []
