"""What users of such systems complain about, one test a complaint, each by a whole pipeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from icestream.formats.json import JsonDecoder
from icestream.plan.plan import Batching
from icestream.sinks.iceberg.upsert.key_index import local_cache_folder
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

KEYED: dict[str, Any] = {"commit_mode": "upsert", "key_fields": ("id",), "op_field": "op"}


def records(*values: dict[str, Any] | bytes) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    add(source, *values)
    return source


def add(source: ScriptedSource, *values: dict[str, Any] | bytes) -> None:
    encoded = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in values)
    source.append_values(encoded)


def upsert(lake: Lake, source: ScriptedSource, **options: Any) -> PipelinePlan:
    return lake.plan(source, **{**KEYED, **options})


def found(lake: Lake, columns: str = "id, name") -> list[tuple[Any, ...]]:
    rows = lake.sql(f"select {columns} from lake.db.events order by id")  # noqa: S608
    return [tuple(row) for row in rows]


def test_pain_06_change_events_of_a_topic_become_rows_by_key(lake: Lake) -> None:
    source = records({"id": 1, "name": "a", "op": "c"}, {"id": 2, "name": "b", "op": "c"})
    lake.run(upsert(lake, source))
    add(source, {"id": 1, "name": "A", "op": "u"}, {"id": 2, "op": "d"})
    lake.run(upsert(lake, source))
    assert found(lake) == [(1, "A")]
    assert "op" not in lake.rows()[0]


@pytest.mark.parametrize("version", [2, 3])
def test_pain_07_readers_never_see_equality_deletes(lake: Lake, version: int) -> None:
    source = records(*({"id": n, "name": "a"} for n in range(50)))
    lake.run(upsert(lake, source, format_version=version))
    for turn in range(3):
        add(source, *({"id": n, "name": str(turn)} for n in range(turn, 50, 5)))
        lake.run(upsert(lake, source, format_version=version))
    kinds = lake.sql("select distinct content from lake.db.events.delete_files")
    assert [row[0] for row in kinds] == [1]  # by position
    deletes = lake.sql("select count(*) from lake.db.events.delete_files")
    files = lake.sql("select count(*) from lake.db.events.data_files")
    assert deletes[0][0] <= files[0][0]  # one a data file at most, however many batches


def test_pain_08_upsert_reads_only_files_that_may_contain_its_keys(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    for first in (0, 1000, 2000):
        add(source, *({"id": first + n, "name": "a"} for n in range(100)))
        lake.run(upsert(lake, source))
    table = lake.catalog.client().load_table("db.events")
    indexes = local_cache_folder() / "keys" / str(table.metadata.table_uuid)
    for path in indexes.glob("*.keys"):
        path.unlink()
    add(source, {"id": 2050, "name": "b"}, {"id": 5000, "name": "new"})
    lake.run(upsert(lake, source))
    assert len(list(indexes.glob("*.keys"))) == 1
    assert found(lake)[-51:-49] == [(2050, "b"), (2051, "a")]


def test_pain_09_key_that_changes_its_partition_and_delete_without_one(lake: Lake) -> None:
    source = records(*({"id": n, "name": "north"} for n in (1, 2, 3)))
    lake.run(upsert(lake, source, partitioning=("name",)))
    add(source, {"id": 1, "name": "south"}, {"id": 2, "op": "d"})
    lake.run(upsert(lake, source, partitioning=("name",)))
    assert found(lake) == [(1, "south"), (3, "north")]


def test_pain_10_last_record_of_a_batch_wins_and_insert_follows_delete(lake: Lake) -> None:
    source = records(
        {"id": 1, "name": "first"},
        {"id": 1, "name": "last"},
        {"id": 2, "name": "a"},
        {"id": 2, "op": "d"},
        {"id": 2, "name": "again"},
    )
    lake.run(upsert(lake, source))
    assert found(lake) == [(1, "last"), (2, "again")]


def test_pain_11_no_key_is_ever_duplicated(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    for turn in range(4):
        add(source, *({"id": n * 7 % 60, "name": str(turn)} for n in range(turn * 10, 60)))
        lake.run(upsert(lake, source, partitioning=("bucket(4, id)",)))
    counts = lake.sql("select count(*), count(distinct id) from lake.db.events")
    assert tuple(counts[0]) == (60, 60)


def test_pain_17_schema_change_stops_nothing_and_needs_no_restart(lake: Lake) -> None:
    source = records({"id": 1, "name": "a"}, {"id": 2, "name": "b", "size": 2**40})
    add(source, {"id": 1, "name": "c", "at": {"zip": "0150"}}, {"id": 3, "name": "d"})
    lake.run(upsert(lake, source, batching=Batching(1, 0.01, 1)))
    assert found(lake, "id, name, size, at.zip") == [
        (1, "c", None, "0150"),
        (2, "b", 2**40, None),
        (3, "d", None, None),
    ]


def test_pain_18_one_bad_record_stops_nothing(lake: Lake) -> None:
    source = records({"id": 1, "name": "a"}, b"{not json", {"name": "no key"}, {"id": 2})
    lake.run(upsert(lake, source, on_error="dead_letter"))
    assert found(lake) == [(1, "a"), (2, None)]
    assert len(lake.rows("dead")) == 2


def test_pain_19_key_and_partitions_are_the_users_choice(lake: Lake) -> None:
    source = records({"id": 1, "shop": "x", "name": "a"}, {"id": 1, "shop": "y", "name": "b"})
    options = {
        "key_fields": ("shop", "id"),
        "partitioning": ("bucket(8, shop)", "truncate(1, name)"),
    }
    lake.run(upsert(lake, source, **options))
    add(source, {"id": 1, "shop": "y", "name": "c"})
    lake.run(upsert(lake, source, **options))
    assert sorted(found(lake, "id, shop, name")) == [(1, "x", "a"), (1, "y", "c")]
    spec = lake.catalog.client().load_table(("db", "events")).spec()
    assert [str(field.transform) for field in spec.fields] == ["bucket[8]", "truncate[1]"]
