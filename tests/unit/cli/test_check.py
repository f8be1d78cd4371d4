"""`icestream check`, `plan`, `init` and `json-schema`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.fixtures.ports import closed_port
from tests.unit.cli.shop import FILE, make_table, plan_of, write_file

from icestream.cli.check import StepReport, _exit_code, _run_step
from icestream.contracts.faults import CheckStep
from icestream.errors import IcestreamError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Ended, Icestream


def signs(out: str) -> list[tuple[str, str]]:
    """Return the sign and the name of each step that was shown."""
    steps = [line for line in out.splitlines() if line.startswith("  ") and line[2] in "✓✗-"]
    return [(line[2], line[4:24].strip()) for line in steps]


def test_check_tests_every_component(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("check")
    assert (ended.code, ended.err) == (0, "")
    assert signs(ended.out) == [
        ("✓", "configuration"),
        ("✓", "parse schema"),
        ("✓", "reach catalog"),
        ("✓", "write to warehouse"),
        ("✓", "find namespace"),
        ("✓", "find table"),
        ("✓", "bind columns"),
        ("✓", "fit table"),
    ]
    assert ended.out.splitlines()[-1] == "All checks passed."


def test_check_tests_only_the_named_component(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    parts = icestream("check", "--source", "shop", "--output", "json").document["parts"]
    assert [part["name"] for part in parts] == ["source 'shop' (datagen shop_events seed 42)"]


def test_check_of_an_unknown_component_lists_the_known_ones(
    icestream: Icestream, tmp_path: Path
) -> None:
    write_file(tmp_path)
    ended = icestream("check", "--sink", "lke")
    assert (ended.code, ended.err) == (
        2,
        "error: unknown sink 'lke'\n  Did you mean 'lake'? Configured: lake.\n",
    )


def test_check_offline_connects_to_nothing(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("check", "--offline")
    assert (ended.code, signs(ended.out)) == (0, [("✓", "configuration")])
    assert not (tmp_path / "lake").exists()


def test_steps_after_a_failed_one_are_skipped(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    (tmp_path / "lake").write_text("a file where a folder should be", encoding="utf-8")
    ended = icestream("check")
    assert signs(ended.out)[2:] == [
        ("✗", "reach catalog"),
        ("-", "write to warehouse"),
        ("-", "find namespace"),
        ("-", "find table"),
    ]
    assert ended.out.splitlines()[-1] == "1 of 2 components failed."
    document = icestream("check", "--output", "json").document
    assert document["ok"] is False
    states = [step["state"] for step in document["parts"][1]["steps"]]
    assert states == ["failed", "skipped", "skipped", "skipped"]
    assert document["error"]["exit_code"] == ended.code != 0


def details(ended: Ended) -> dict[str, str]:
    """Return the result of each step of every component."""
    return {
        step["name"]: step["detail"] for part in ended.document["parts"] for step in part["steps"]
    }


def shape_table(folder: Path, columns: pa.Schema | None) -> None:
    """Make the pipeline's table, with the columns of its source if none are given."""
    plan = plan_of(folder)
    client = plan.catalogs["lake"].client()
    client.create_namespace("demo")
    columns = columns or plan.pipelines[0].source.schema()
    assert columns is not None
    client.create_table(("demo", "events"), schema=columns)


def test_check_reports_whether_rows_fit_the_table(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    assert details(icestream("check", "--output", "json"))["fit table"] == (
        "the table will be created from the source schema"
    )
    shape_table(tmp_path, None)
    assert details(icestream("check", "--output", "json"))["fit table"] == (
        "the source schema matches the table"
    )


def test_check_reports_how_the_table_would_change(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    shape_table(tmp_path, pa.schema([("event_id", pa.int64())]))
    steps = details(icestream("check", "--output", "json"))
    assert steps["find namespace"] == "demo"
    assert steps["fit table"].startswith("would change: add 'event_time' timestamptz; ")


def test_check_finds_rows_that_do_not_fit(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    shape_table(tmp_path, pa.schema([("event_id", pa.bool_())]))
    ended = icestream("check")
    assert ended.code == 5
    assert signs(ended.out)[-1] == ("✗", "fit table")
    assert "column 'event_id' is boolean in the table" in ended.out
    assert ended.out.splitlines()[-1] == "1 of 3 components failed."


def test_check_of_an_unreachable_store_fails_fast_and_names_the_key(
    icestream: Icestream, tmp_path: Path
) -> None:
    port = closed_port()
    s3 = f"s3: {{bucket: lake, endpoint: 'http://127.0.0.1:{port}'}}"
    write_file(tmp_path, FILE.replace("namespace: demo", f"{s3}, namespace: demo"))
    ended = icestream("check")
    assert ended.code == 3
    assert (
        f"storage s3 http://127.0.0.1:{port}: connection to 127.0.0.1:{port} refused\n"
        "        Is the server running? Check `s3.endpoint`.\n"
    ) in ended.out
    assert signs(ended.out)[-7:] == [
        ("✗", "reach store"),
        ("-", "list store"),
        ("-", "write an object"),
        ("-", "read it back"),
        ("-", "remove it"),
        ("-", "find namespace"),
        ("-", "find table"),
    ]


def test_check_refuses_unavailable_connectors(icestream: Icestream, tmp_path: Path) -> None:
    write_file(
        tmp_path,
        FILE.replace(
            "connector: datagen, config: {rows: 1000}",
            "connector: iceberg, config: {namespace: a, table: b}",
        ),
    )
    ended = icestream("check", "--offline")
    assert ended.code == 2
    assert "'iceberg' is not available in this version" in ended.err


def test_failed_step_carries_its_error() -> None:
    def refuse() -> str:
        raise RefusedError("the password was refused")

    done = _run_step(CheckStep("log in", refuse))
    assert (done.passed, str(done.error)) == (False, "the password was refused")
    assert StepReport("x", None).to_json()["state"] == "skipped"


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([], 0),
        ([IcestreamError("a")], 1),
        ([RefusedError("a"), UnreachableError("b")], 3),
        ([RefusedError("a"), IcestreamError("b")], 5),
    ],
)
def test_unreachable_takes_precedence_over_other_faults(
    errors: list[IcestreamError], code: int
) -> None:
    assert _exit_code(errors) == code


def test_plan_marks_the_table_that_would_be_created(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    ended = icestream("plan", "--detailed-exitcode")
    assert ended.code == 4
    assert "  + table      lake.demo.events would be created" in ended.out
    assert icestream("plan").code == 0
    document = icestream("plan", "--output", "json").document
    assert (document["format_version"], document["counts"]["create"]) == (1, 1)


def test_plan_of_an_existing_table_has_no_changes(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path)
    make_table(plan_of(tmp_path))
    assert icestream("plan", "--detailed-exitcode").code == 0


def test_init_writes_a_file_that_passes_check(icestream: Icestream, tmp_path: Path) -> None:
    ended = icestream("init")
    assert (ended.code, ended.out) == (
        0,
        "Wrote icestream.yaml, and icestream.schema.json for your editor.\n"
        "Next: icestream check, then icestream run\n",
    )
    text = (tmp_path / "icestream.yaml").read_text(encoding="utf-8")
    assert text.startswith(
        "# yaml-language-server: $schema=icestream.schema.json\n# $schema: icestream.schema.json\n"
    )
    assert icestream("check", "--offline").code == 0


def test_init_leaves_an_existing_file_alone(icestream: Icestream, tmp_path: Path) -> None:
    path = write_file(tmp_path, "mine")
    ended = icestream("init")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: the file already exists\n"
        "  Choose another path, or overwrite it with `--force`.\n",
    )
    assert path.read_text(encoding="utf-8") == "mine"
    assert icestream("init", "--force").code == 0
    assert path.read_text(encoding="utf-8") != "mine"


def test_commented_kafka_source_of_init_is_valid(icestream: Icestream, tmp_path: Path) -> None:
    icestream("init", "made/icestream.yaml")
    path = tmp_path / "made" / "icestream.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    begin = lines.index("  # orders:")
    end = next(at for at in range(begin, len(lines)) if not lines[at].startswith("  #"))
    lines[begin:end] = [line.replace("  # ", "  ", 1) for line in lines[begin:end]]
    text = "\n".join(lines).replace("source: shop", "source: orders")
    path.write_text(text, encoding="utf-8")
    assert icestream("check", "--offline", "--config", str(path)).err == ""


def test_json_schema_has_two_forms(icestream: Icestream) -> None:
    strict = json.loads(icestream("json-schema").out)
    lenient = json.loads(icestream("json-schema", "--lenient").out)
    assert "2020-12" in strict["$schema"]
    assert "draft-07" in lenient["$schema"]
    wrapped = icestream("json-schema", "--output", "json").document
    assert wrapped == {"format_version": 1, "json_schema": strict}
