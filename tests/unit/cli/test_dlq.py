"""`icestream dlq list`, over dead letters made by hand; no Spark runs here."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.unit.cli.shop import FILE, plan_of, write_file

from icestream.cli.dlq import parse_timestamp
from icestream.engine.dead_letters.buffer import DEAD_LETTERS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

WITH_LETTERS = FILE.replace(
    "table: events}", "table: events, on_error: dead_letter, dead_letter: bad}"
)
MIRROR_WITH_LETTERS = """\
version: "1.0"
sources:
  shop:
    connector: kafka
    config: {brokers: ["localhost:9"], topics: [shop], format: debezium-json}
sinks:
  lake:
    connector: iceberg
    config: {namespace: shop, on_error: dead_letter, dead_letter: bad}
pipelines:
  shop: {source: shop, sink: lake}
"""
AT = datetime(2026, 11, 15, 10, 0, tzinfo=timezone.utc)


def letter(number: int, **given: Any) -> dict[str, Any]:
    row = {
        "raw": b'{"id": %d' % number,
        "reason": "not JSON",
        "position": f"shop[{number}]",
        "pipeline": "shop",
        "epoch": number // 10,
        "failed_at": AT + timedelta(minutes=number),
        "extra": None,
    }
    return {**row, **given}


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    write_file(tmp_path, WITH_LETTERS)
    client = plan_of(tmp_path).catalogs["lake"].client()
    client.create_namespace_if_not_exists("demo")
    table = client.create_table(("demo", "bad"), schema=DEAD_LETTERS)
    table.append(pa.Table.from_pylist([letter(n) for n in range(3)], schema=DEAD_LETTERS))
    newer = [
        letter(20, reason="column 'id': 'x' is not a bigint", raw=b"\xff"),
        letter(21, pipeline="other", raw=None),
    ]
    table.append(pa.Table.from_pylist(newer, schema=DEAD_LETTERS))
    return tmp_path


def test_dead_letters_are_counted_by_reason_and_the_newest_are_shown(
    icestream: Icestream, letters: Path
) -> None:
    ended = icestream("dlq", "list", "--limit", "2")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "lake.demo.bad: 5 dead letters",
        "",
        "letters  pipeline  newest (UTC)         reason",
        "      3  shop      2026-11-15 10:02:00  not JSON",
        "      1  other     2026-11-15 10:21:00  not JSON",
        "... and 1 more reason",
        "",
        "Newest:",
        "failed at (UTC)      pipeline  batch  position  reason                            record",
        "2026-11-15 10:21:00  other         2  shop[21]  not JSON",
        "2026-11-15 10:20:00  shop          2  shop[20]  column 'id': 'x' is not a bigint  \\xff",
    ]


def test_dead_letters_of_one_pipeline_as_json(icestream: Icestream, letters: Path) -> None:
    document = icestream(
        "dlq", "list", "--pipeline", "shop", "--limit", "2", "--output", "json"
    ).document
    (table,) = document["tables"]
    assert (table["table"], table["total"]) == ("lake.demo.bad", 4)
    assert table["reasons"] == [
        {
            "pipeline": "shop",
            "reason": "not JSON",
            "count": 3,
            "newest": "2026-11-15T10:02:00.000+00:00",
        },
        {
            "pipeline": "shop",
            "reason": "column 'id': 'x' is not a bigint",
            "count": 1,
            "newest": "2026-11-15T10:20:00.000+00:00",
        },
    ]
    newest, older = table["letters"]
    assert (newest["raw"], newest["raw_base64"], newest["position"]) == (None, "/w==", "shop[20]")
    assert (older["raw"], older["failed_at"]) == ('{"id": 2', "2026-11-15T10:02:00.000+00:00")


def test_table_that_does_not_exist_yet_has_no_dead_letters(
    icestream: Icestream, tmp_path: Path
) -> None:
    write_file(tmp_path, WITH_LETTERS)
    assert icestream("dlq", "list").out == (
        "lake.demo.bad: no dead letters, the table does not exist yet\n"
    )


@pytest.mark.parametrize("arguments", [["list", "--pipeline", "shop"], ["list"]])
def test_file_without_dead_letters_is_reported(
    icestream: Icestream, tmp_path: Path, arguments: list[str]
) -> None:
    path = write_file(tmp_path)
    ended = icestream("dlq", *arguments)
    who = "the pipeline 'shop' has no" if "--pipeline" in arguments else "no pipeline has a"
    assert (ended.code, ended.err) == (
        2,
        f"error: {path.name}: {who} dead-letter table\n"
        "  Set `on_error: dead_letter` and `dead_letter: NAMESPACE.TABLE` on its sink.\n",
    )


def test_unknown_pipeline_is_reported(icestream: Icestream, letters: Path) -> None:
    ended = icestream("dlq", "list", "--pipeline", "shap")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: unknown pipeline 'shap'\n  Pipelines: shop.\n",
    )


def test_replay_into_an_overwritten_table_is_refused(icestream: Icestream, tmp_path: Path) -> None:
    write_file(
        tmp_path, WITH_LETTERS.replace("table: events,", "table: events, commit_mode: overwrite,")
    )
    ended = icestream("dlq", "replay", "--pipeline", "shop")
    assert (ended.code, ended.err) == (
        2,
        "error: pipeline 'shop': dead letters can't be replayed with commit_mode 'overwrite': they "
        "would replace the table's rows\n"
        "  Reload the whole batch instead.\n",
    )


def test_replay_of_a_mirror_is_refused(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, MIRROR_WITH_LETTERS)
    ended = icestream("dlq", "replay", "--pipeline", "shop")
    assert (ended.code, ended.err) == (
        2,
        "error: pipeline 'shop': dead letters of a mirror can't be replayed: the changes of a "
        "row must be applied in order\n"
        "  Fix the cause, then read the source again: icestream run --pipeline shop "
        "--start-over\n",
    )


def test_replay_without_dead_letters_needs_no_spark(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, WITH_LETTERS)
    ended = icestream("dlq", "replay", "--pipeline", "shop")
    assert (ended.code, ended.out) == (
        0,
        "shop: 0 dead letters read, 0 replayed, 0 rows written to lake.demo.events\n",
    )


def test_times_are_utc_or_relative_to_now() -> None:
    assert parse_timestamp("2026-11-15") == datetime(2026, 11, 15, tzinfo=timezone.utc)
    assert parse_timestamp("2026-11-15T10:30Z") == datetime(
        2026, 11, 15, 10, 30, tzinfo=timezone.utc
    )
    assert parse_timestamp("2026-11-15T10:30+02:00").utcoffset() == timedelta(hours=2)
    before = datetime.now(tz=timezone.utc)
    assert (
        timedelta(0)
        <= parse_timestamp("90m") - (before - timedelta(minutes=90))
        < timedelta(minutes=1)
    )


def test_invalid_time_is_refused(icestream: Icestream, tmp_path: Path) -> None:
    ended = icestream("dlq", "replay", "--pipeline", "shop", "--since", "yesterday")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream dlq replay: --since: expected a time such as 2026-11-15T10:30 or 2h, "
        "found 'yesterday'\n"
        "  See `icestream dlq replay --help`.\n",
    )
