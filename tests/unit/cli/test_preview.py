"""`icestream preview`, where no JVM is needed."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.cli.preview import fit_columns
from icestream.sources.webhook.segments import NO_KEY, Arrival
from icestream.sources.webhook.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

FILE = """\
sources:
  orders: {connector: files, config: {path: in, format: json}}
sinks:
  lake: {connector: iceberg, config: {namespace: sales, table: orders}}
pipelines:
  orders: {source: orders, sink: lake}
"""


def write_lines(folder: Path, lines: list[str], name: str = "a.json") -> None:
    (folder / "in").mkdir(exist_ok=True)
    file = folder / "in" / name
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settle(file)


def settle(file: Path) -> None:
    """Make a file old enough to count as complete."""
    old = time.time() - 60
    os.utime(file, (old, old))


def write_config(folder: Path, text: str = FILE) -> None:
    (folder / "icestream.yaml").write_text(text, encoding="utf-8")


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_preview_shows_rows_types_and_bad_records(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path)
    write_lines(tmp_path, ['{"id": 1, "name": "ada", "tags": ["a"]}', '{"id": ', '{"id": 3}'])
    before = everything_in(tmp_path)
    ended = icestream("preview")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "lake.sales.orders",
        "    id  name    tags",
        "bigint  string  array",
        '     1  ada     ["a"]',
        "     3",
        "",
        "3 records read, 2 rows, 1 bad",
        "columns inferred from 3 records",
        f"✗ {tmp_path}/in/a.json:2: not JSON: expecting value at character 7; "
        "the object does not end here, write one object per record, in files one per line",
    ]
    assert everything_in(tmp_path) == before


def test_preview_as_json(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path)
    write_lines(tmp_path, ['{"id": 1, "at": "2024-05-01T10:00:00Z"}', "nonsense"])
    document = icestream("preview", "orders", "--output", "json").document
    assert document == {
        "format_version": 1,
        "pipeline": "orders",
        "source": "orders",
        "records": 2,
        "inferred": True,
        "tables": [
            {
                "table": "lake.sales.orders",
                "columns": [
                    {"name": "id", "type": "bigint"},
                    {"name": "at", "type": "timestamp"},
                ],
                "rows": [{"id": 1, "at": "2024-05-01T10:00:00+00:00"}],
                "rows_read": 1,
            }
        ],
        "left_out": None,
        "bad": [
            {
                "reason": document["bad"][0]["reason"],
                "position": f"{tmp_path}/in/a.json:2",
                "raw": "nonsense",
            }
        ],
        "expectations_failed": [],
    }
    assert document["bad"][0]["reason"].startswith("not JSON: ")


def test_rows_bound_what_is_read(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path)
    write_lines(tmp_path, [json.dumps({"id": number}) for number in range(50_000)])
    document = icestream("preview", "--rows", "2", "--output", "json").document
    assert document["records"] == 100
    assert document["tables"][0]["rows"] == [{"id": 0}, {"id": 1}]
    text = icestream("preview", "--rows", "2").out
    assert "The first 2 of 100 rows read.\n" in text
    assert icestream("preview", "--rows", "300", "--output", "json").document["records"] == 300


def test_large_row_group_is_cut_after_the_first_rows(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, FILE.replace("json", "parquet"))
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.parquet"
    pq.write_table(pa.table({"id": range(200_000)}), file)
    settle(file)
    document = icestream("preview", "--output", "json").document
    assert (document["records"], document["inferred"]) == (100, False)
    assert len(document["tables"][0]["rows"]) == 20


def test_routed_rows_are_shown_by_table(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, FILE.replace("table: orders", "route_by: kind"))
    lines = ['{"kind": "a", "id": 1}', '{"kind": "b", "id": 2}', '{"kind": "a", "id": 3}']
    write_lines(tmp_path, [*lines, '{"id": 4}'])
    document = icestream("preview", "--output", "json").document
    found = {one["table"]: [row["id"] for row in one["rows"]] for one in document["tables"]}
    assert found == {"lake.sales.a": [1, 3], "lake.sales.b": [2]}
    [bad] = document["bad"]
    assert (bad["reason"], bad["position"]) == (
        "`route_by` is null for the row",
        f"{tmp_path}/in/a.json:4",
    )
    chosen = icestream("preview", "--table", "sales.b", "--output", "json").document["tables"]
    assert [one["table"] for one in chosen] == ["lake.sales.b"]


def test_unknown_table_lists_those_found(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, FILE.replace("table: orders", "route_by: kind"))
    write_lines(tmp_path, ['{"kind": "a", "id": 1}'])
    ended = icestream("preview", "--table", "c")
    assert (ended.code, ended.err) == (
        2,
        "error: no table named 'c' is in the first records\n  Found: lake.sales.a.\n",
    )


def test_source_is_previewed_without_a_pipeline(icestream: Icestream, tmp_path: Path) -> None:
    text = "sources:\n  shop: {connector: datagen, config: {schema: 'id bigint, name string'}}\n"
    write_config(tmp_path, text)
    document = icestream("preview", "--source", "shop", "--output", "json").document
    assert (document["pipeline"], document["source"], document["records"]) == (None, "shop", 100)
    assert document["tables"][0]["columns"] == [
        {"name": "id", "type": "bigint"},
        {"name": "name", "type": "string"},
    ]


def test_datagen_gives_no_more_rows_than_it_has(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, "sources:\n  shop: {connector: datagen, config: {rows: 3}}\n")
    document = icestream("preview", "--source", "shop", "--output", "json").document
    assert document["records"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--source", "ordes"],
            "icestream.yaml: no source is named 'ordes'\n"
            "  Did you mean 'orders'? Available: orders.\n",
        ),
        (
            ["ordes"],
            "icestream.yaml: no pipeline is named 'ordes'\n"
            "  Did you mean 'orders'? Available: orders.\n",
        ),
        (
            ["orders", "--source", "orders"],
            "icestream preview: PIPELINE and --source are mutually exclusive\n"
            "  See `icestream preview --help`.\n",
        ),
    ],
)
def test_unknown_names_are_usage_errors(
    icestream: Icestream, tmp_path: Path, arguments: list[str], message: str
) -> None:
    write_config(tmp_path)
    ended = icestream("preview", *arguments)
    assert (ended.code, ended.err) == (2, f"error: {message}")


def test_one_of_several_pipelines_must_be_named(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, f"{FILE}  again: {{source: orders, sink: lake}}\n")
    ended = icestream("preview")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: the file has 2 pipelines\n  Name one of them: orders, again.\n",
    )


def test_file_without_a_pipeline_points_to_the_sources(
    icestream: Icestream, tmp_path: Path
) -> None:
    write_config(tmp_path, "sources:\n  shop: {connector: datagen}\n")
    ended = icestream("preview")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: the file has no pipeline\n"
        "  Add one under `pipelines`, or preview a source with `--source NAME`.\n",
    )


def test_columns_that_no_table_can_have_are_refused(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, FILE.replace("table: orders", "table: o, partitioning: [day(at)]"))
    write_lines(tmp_path, ['{"id": 1}'])
    ended = icestream("preview")
    assert ended.code == 5
    assert ended.err == (
        "error: pipeline 'orders': partitioning: the rows have no column 'at'\n"
        "  Their columns: id.\n"
    )


def test_empty_folder_has_nothing_to_show(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "in").mkdir()
    ended = icestream("preview")
    assert (ended.code, ended.out, ended.err) == (
        0,
        "",
        "No records: a new pipeline would wait here for the first one.\n",
    )


WEBHOOK = """\
sources:
  hooks:
    connector: webhook
    config: {path: /events, port: 8080}
"""


def test_webhook_without_events_says_when_they_come(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, WEBHOOK)
    ended = icestream("preview", "--source", "hooks")
    assert ended.code == 1
    assert ended.err.endswith(
        " holds no events\n"
        "  A webhook source receives events only while `icestream run` runs. Its pipeline can be "
        "tried on records of yours with `icestream test`.\n"
    )
    assert everything_in(tmp_path) == {"icestream.yaml"}


def test_waiting_webhook_events_are_shown_and_kept(icestream: Icestream, tmp_path: Path) -> None:
    write_config(tmp_path, WEBHOOK.replace("path: /events", "path: /events, spool: spool"))
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    events = [json.dumps({"id": number}).encode() for number in range(3)]
    spool.append([Arrival(b"s", 1, NO_KEY, b"", b"", events)])
    before = everything_in(tmp_path)
    # The pipeline that receives them still runs, and holds the spool's lock.
    document = icestream("preview", "--source", "hooks", "--output", "json").document
    assert [row["id"] for row in document["tables"][0]["rows"]] == [0, 1, 2]
    assert everything_in(tmp_path) == before
    spool.close()


@pytest.mark.parametrize(
    ("width", "expected", "left_out"),
    [
        (None, [["id", "a long name"], ["1", "some text here"]], 0),
        (12, [["id", "a long …"], ["1", "some te…"]], 0),
        (5, [["id"], ["1"]], 1),
    ],
)
def test_cells_are_cut_to_the_width_of_the_terminal(
    width: int | None, expected: list[list[str]], left_out: int
) -> None:
    lines = [["id", "a long name"], ["1", "some text here"]]
    assert fit_columns(lines, width, [False, False]) == (expected, left_out)


def test_terminal_width_is_respected(
    icestream: Icestream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    write_config(tmp_path)
    write_lines(tmp_path, [json.dumps({f"column_{n}": "x" * 30 for n in range(8)})])
    lines = icestream("preview").out.splitlines()
    assert max(map(len, lines[:4])) <= 40
    assert lines[4] == "3 more columns: column_5, column_6, column_7"
