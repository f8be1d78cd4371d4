"""Dead letters by the installed command: kept, listed, replayed, also after a kill half-way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.command_line import run_icestream

from icestream.engine.crash_points import VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

FILE = """\
version: "1.0"
sources:
  files:
    connector: files
    config: {path: incoming, format: json, schema: "id bigint, price string"}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: demo
      table: events
      on_error: dead_letter
      dead_letter: bad
      expect: [{name: positive, expr: id > 0, on_fail: dead_letter}]
pipelines:
  events: {source: files, sink: lake, transforms: [{cast: {price: int}}]}
metrics: {port: 0}
"""
RECORDS = """\
{"id": 1, "price": "1"}
{"id": 2, "price": "2.5"}
{"id": -3, "price": "3"}
{"id": "four", "price": "4"}
{"id": 5, "price": "dear"}
"""


def rows(icestream: Icestream) -> list[tuple[int, str]]:
    query = "SELECT id, CAST(price AS varchar) AS price FROM demo.events ORDER BY id"
    ended = icestream("query", query, "--output", "json")
    assert ended.code == 0, ended.err
    return [(row["id"], row["price"]) for row in ended.document["rows"]]


def reasons(icestream: Icestream) -> dict[str, int]:
    ended = icestream("dlq", "list", "--output", "json")
    assert ended.code == 0, ended.err
    (table,) = ended.document["tables"]
    return {one["reason"]: one["count"] for one in table["reasons"]}


@pytest.mark.timeout(600)
def test_dead_letters_are_listed_and_replayed_once_despite_crashes(
    tmp_path: Path, icestream: Icestream
) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.json").write_text(RECORDS, encoding="utf-8")
    (tmp_path / "icestream.yaml").write_text(FILE, encoding="utf-8")
    ran = run_icestream("run", "--once", folder=tmp_path)
    assert ran.code == 0, ran.err
    assert "events: expectation 'positive' failed for 1 record" in ran.err
    assert rows(icestream) == [(1, "1")]
    assert reasons(icestream) == {
        "column 'price': '2.5' is not an int": 1,
        "expectation 'positive' is not met: id > 0": 1,
        "column 'id': 'four' is not a bigint": 1,
        "column 'price': 'dear' is not an int": 1,
    }

    mended = FILE.replace("id > 0", "id <> 0")
    (tmp_path / "icestream.yaml").write_text(mended, encoding="utf-8")
    replay = ("dlq", "replay", "--pipeline", "events")
    crashing = {**os.environ, VARIABLE: "after-commit:1"}
    assert run_icestream(*replay, folder=tmp_path, env=crashing).code == -9
    assert rows(icestream) == [(-3, "3"), (1, "1")]
    assert len(reasons(icestream)) == 4, "its letter is still there"

    again = run_icestream(*replay, folder=tmp_path)
    assert again.code == 0, again.err
    assert again.out.splitlines()[:2] == [
        "removed 1 letter whose rows an earlier replay had already written",
        "events: 3 dead letters read, 0 replayed, 0 rows written to lake.demo.events",
    ]
    assert sorted(again.out.splitlines()[2:]) == [
        "still failing: 1 x column 'id': 'four' is not a bigint",
        "still failing: 1 x column 'price': '2.5' is not an int",
        "still failing: 1 x column 'price': 'dear' is not an int",
    ]
    assert rows(icestream) == [(-3, "3"), (1, "1")]
    assert "expectation 'positive' is not met: id > 0" not in reasons(icestream)
