"""`icestream init postgres://...`, where no server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML
from tests.fixtures.ports import closed_port

from icestream.cli.init import (
    Database,
    FoundTable,
    Look,
    is_address,
    read_address,
    starting_file,
)
from icestream.errors import PlanError
from icestream.sources.postgres_cdc.options import PostgresCdcOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

SHOP = Database("db.example", 5432, "shop", "me")


def parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


def written(database: Database = SHOP, look: Look | None = None) -> str:
    return starting_file(database, look or Look(), "icestream.schema.json")


def test_password_of_an_address_is_not_written(icestream: Icestream, tmp_path: Path) -> None:
    port = closed_port()
    ended = icestream("init", f"postgres://me:only-mine@127.0.0.1:{port}/shop")
    text = (tmp_path / "icestream.yaml").read_text(encoding="utf-8")
    assert (ended.code, ended.out) == (
        0,
        "Wrote icestream.yaml, and icestream.schema.json for your editor.\n"
        "Next: icestream check, then icestream run\n"
        "First: export POSTGRES_PASSWORD=...; the password is not in the file.\n",
    )
    assert ended.err.startswith("The tables of 'shop' are not noted in it: ")
    assert "only-mine" not in text + ended.out + ended.err
    assert parsed(text)["sources"]["shop"] == {
        "connector": "postgres-cdc",
        "config": {
            "host": "127.0.0.1",
            "port": port,
            "database": "shop",
            "user": "me",
            "password": "${POSTGRES_PASSWORD}",
            "tables": ["public.*"],
        },
    }


def test_mirror_is_a_source_a_sink_and_a_pipeline() -> None:
    document = parsed(written())
    assert document["sinks"] == {"lake": {"connector": "iceberg"}}
    assert document["pipelines"] == {"shop": {"source": "shop", "sink": "lake"}}
    PostgresCdcOptions.model_validate(document["sources"]["shop"]["config"])


def test_file_of_a_mirror_passes_check(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTGRES_PASSWORD", "only-mine")
    icestream("init", f"postgres://me@127.0.0.1:{closed_port()}/shop")
    ended = icestream("check", "--offline")
    assert (ended.code, ended.err) == (0, "")


def test_file_of_a_mirror_goes_where_it_is_asked_for(icestream: Icestream, tmp_path: Path) -> None:
    address = f"postgresql://me@127.0.0.1:{closed_port()}/shop"
    ended = icestream("init", address, "made/mine.yaml", "--output", "json")
    assert ended.document == {
        "format_version": 1,
        "file": "made/mine.yaml",
        "json_schema": "made/icestream.schema.json",
        "tables": None,
        "other_schemas": None,
    }
    assert (tmp_path / "made" / "mine.yaml").exists()
    ended = icestream("init", address, "made/mine.yaml")
    assert (ended.code, ended.err) == (
        2,
        "error: made/mine.yaml: the file exists already\n"
        "  Name another one, or overwrite it with `--force`.\n",
    )


def test_two_paths_are_refused(icestream: Icestream) -> None:
    ended = icestream("init", "one.yaml", "two.yaml")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream init: 'one.yaml' is no address of a database, and 'two.yaml' is left\n"
        "  See `icestream init --help`.\n",
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgres://me@h:5433/shop", Database("h", 5433, "shop", "me")),
        ("postgresql://h", Database("h", 5432, "postgres", "postgres")),
        ("postgres://me@h", Database("h", 5432, "me", "me")),
        ("postgres://a%40b:p%2Fw@h/s%20t", Database("h", 5432, "s t", "a@b", "p/w")),
        (
            "postgres://me@h/shop?sslmode=require",
            Database("h", 5432, "shop", "me", sslmode="require"),
        ),
    ],
)
def test_address_is_taken_apart(address: str, expected: Database) -> None:
    assert is_address(address)
    assert read_address(address) == expected


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("postgres://me:secret@h:port/shop", "its host or its port cannot be"),
        ("postgres:///shop", "it has no host"),
        ("postgres://h/shop?a=1", "the file has no key for its parameter 'a'"),
    ],
)
def test_address_that_cannot_be_is_refused(address: str, why: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_address(address)
    assert str(caught.value) == (
        f"init: the address of the database can't be used: {why}\n"
        "  Write e.g. `postgres://user@host:5432/database`, with `?sslmode=require` if needed."
    )


@pytest.mark.parametrize("name", ["${HOME}", "true", "a: b # c", 'qu"ote', "1st", "Ünïcode"])
def test_odd_names_survive_yaml_and_interpolation(name: str) -> None:
    document = parsed(written(Database("h", 5432, name, name)))
    ((part, source),) = document["sources"].items()
    assert source["config"]["database"].replace("$$", "$") == name
    assert source["config"]["user"].replace("$$", "$") == name
    assert part.isascii()
    assert part[0].isalpha()


def test_file_notes_the_tables_and_their_keys() -> None:
    look = Look(
        (
            FoundTable("public", "customers", ("id",)),
            FoundTable("public", "lines", ("order_id", "line")),
            FoundTable("public", "log", ()),
            FoundTable("public", "odd\nname", (), has_full_identity=True),
        ),
        needs_password=False,
    )
    text = written(look=look)
    assert (
        "      # Found when this file was written:\n"
        "      #   public.customers  key: id\n"
        "      #   public.lines      key: order_id, line\n"
        "      #   public.log        no key: new rows are followed, updates and deletes are not\n"
        "      #   public.odd?name   no key: rows are told apart by all their values (replica "
        "identity full)\n"
    ) in text
    assert "password" not in text


def test_tables_outside_public_are_taken_by_their_schemas() -> None:
    look = Look((FoundTable("sales", "a", ()), FoundTable("hr", "b", ())))
    config = parsed(written(look=look))["sources"]["shop"]["config"]
    assert config["tables"] == ["hr.*", "sales.*"]


THREE_SCHEMAS = Look(
    (
        FoundTable("hr", "people", ("id",)),
        FoundTable("public", "orders", ("id",)),
        FoundTable("sales", "a_table_with_a_long_name", ("id",)),
    ),
    needs_password=False,
)


def test_tables_that_the_pattern_leaves_out_are_not_noted_as_mirrored() -> None:
    text = written(look=THREE_SCHEMAS)
    assert (
        '      tables: ["public.*"]\n'
        "      # Found when this file was written:\n"
        "      #   public.orders  key: id\n"
        "      # Not mirrored: the tables of hr, sales. To take those of a schema too, add e.g. "
        '"hr.*" to `tables`.\n'
        "\n"
    ) in text
    assert "people" not in text
    assert "a_table_with_a_long_name" not in text


def test_json_tells_mirrored_tables_and_other_schemas(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.cli.init.look_into", lambda _: THREE_SCHEMAS)
    ended = icestream("init", "postgres://me@db.example/shop", "--output", "json")
    assert ended.document["tables"] == ["public.orders"]
    assert ended.document["other_schemas"] == ["hr", "sales"]


def test_long_list_of_schemas_is_cut() -> None:
    others = (FoundTable(f"s{n:03}", "t", ("id",)) for n in range(50))
    text = written(look=Look((FoundTable("public", "t", ("id",)), *others)))
    assert "s039, and 10 more. To take" in text
    assert "s040" not in text


def test_long_list_of_tables_is_cut() -> None:
    look = Look(tuple(FoundTable("public", f"t{n:03}", ("id",)) for n in range(50)))
    text = written(look=look)
    assert "public.t039" in text
    assert "public.t040" not in text
    assert "      #   and 10 more\n" in text
