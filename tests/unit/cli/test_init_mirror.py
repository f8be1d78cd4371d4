"""`icestream init postgres://...`, where no server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML
from tests.fixtures.ports import closed_port

from icestream.cli.init import (
    DatabaseAddress,
    DatabaseListing,
    DatabaseTable,
    is_address,
    mirror_config,
    parse_address,
)
from icestream.errors import PlanError
from icestream.sources.postgres_cdc.options import PostgresCdcOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

SHOP = DatabaseAddress("db.example", 5432, "shop", "me")


def parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


def written(database: DatabaseAddress = SHOP, look: DatabaseListing | None = None) -> str:
    return mirror_config(database, look or DatabaseListing(), "icestream.schema.json")


def test_password_of_an_address_is_not_written(icestream: Icestream, tmp_path: Path) -> None:
    port = closed_port()
    ended = icestream("init", f"postgres://me:only-mine@127.0.0.1:{port}/shop")
    text = (tmp_path / "icestream.yaml").read_text(encoding="utf-8")
    assert (ended.code, ended.out) == (
        0,
        "Wrote icestream.yaml, and icestream.schema.json for your editor.\n"
        "Next: icestream check, then icestream run\n"
        "First: export POSTGRES_PASSWORD=... (the file does not contain the password)\n",
    )
    assert ended.err.startswith("Could not list the tables of 'shop': ")
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


def test_file_of_a_mirror_is_written_to_the_given_path(
    icestream: Icestream, tmp_path: Path
) -> None:
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
        "error: made/mine.yaml: the file already exists\n"
        "  Choose another path, or overwrite it with `--force`.\n",
    )


def test_two_paths_are_refused(icestream: Icestream) -> None:
    ended = icestream("init", "one.yaml", "two.yaml")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream init: 'one.yaml' is not a PostgreSQL or Kafka URL; "
        "unexpected argument 'two.yaml'\n"
        "  See `icestream init --help`.\n",
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgres://me@h:5433/shop", DatabaseAddress("h", 5433, "shop", "me")),
        ("postgresql://h", DatabaseAddress("h", 5432, "postgres", "postgres")),
        ("postgres://me@h", DatabaseAddress("h", 5432, "me", "me")),
        ("postgres://a%40b:p%2Fw@h/s%20t", DatabaseAddress("h", 5432, "s t", "a@b", "p/w")),
        (
            "postgres://me@h/shop?sslmode=require",
            DatabaseAddress("h", 5432, "shop", "me", sslmode="require"),
        ),
    ],
)
def test_address_is_parsed(address: str, expected: DatabaseAddress) -> None:
    assert is_address(address)
    assert parse_address(address) == expected


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("postgres://me:secret@h:port/shop", "invalid host or port"),
        ("postgres:///shop", "the host is missing"),
        ("postgres://h/shop?a=1", "unsupported parameter 'a'"),
    ],
)
def test_invalid_address_is_refused(address: str, why: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_address(address)
    assert str(caught.value) == (
        f"init: invalid database URL: {why}\n"
        "  Use e.g. `postgres://user@host:5432/database`, with `?sslmode=require` if needed."
    )


@pytest.mark.parametrize("name", ["${HOME}", "true", "a: b # c", 'qu"ote', "1st", "Ünïcode"])
def test_odd_names_survive_yaml_and_interpolation(name: str) -> None:
    document = parsed(written(DatabaseAddress("h", 5432, name, name)))
    ((part, source),) = document["sources"].items()
    assert source["config"]["database"].replace("$$", "$") == name
    assert source["config"]["user"].replace("$$", "$") == name
    assert part.isascii()
    assert part[0].isalpha()


def test_file_lists_the_tables_and_their_keys() -> None:
    look = DatabaseListing(
        (
            DatabaseTable("public", "customers", ("id",)),
            DatabaseTable("public", "lines", ("order_id", "line")),
            DatabaseTable("public", "log", ()),
            DatabaseTable("public", "odd\nname", (), has_full_identity=True),
        ),
        needs_password=False,
    )
    text = written(look=look)
    assert (
        "      # Tables when this file was written:\n"
        "      #   public.customers  key: id\n"
        "      #   public.lines      key: order_id, line\n"
        "      #   public.log        no key: inserts are mirrored, updates and deletes are not\n"
        "      #   public.odd?name   no key: rows are matched on all columns (replica identity "
        "full)\n"
    ) in text
    assert "password" not in text


def test_tables_outside_public_are_selected_by_their_schemas() -> None:
    look = DatabaseListing((DatabaseTable("sales", "a", ()), DatabaseTable("hr", "b", ())))
    config = parsed(written(look=look))["sources"]["shop"]["config"]
    assert config["tables"] == ["hr.*", "sales.*"]


THREE_SCHEMAS = DatabaseListing(
    (
        DatabaseTable("hr", "people", ("id",)),
        DatabaseTable("public", "orders", ("id",)),
        DatabaseTable("sales", "a_table_with_a_long_name", ("id",)),
    ),
    needs_password=False,
)


def test_tables_excluded_by_the_pattern_are_not_listed_as_mirrored() -> None:
    text = written(look=THREE_SCHEMAS)
    assert (
        '      tables: ["public.*"]\n'
        "      # Tables when this file was written:\n"
        "      #   public.orders  key: id\n"
        "      # Schemas not mirrored: hr, sales. To mirror one, add e.g. "
        '"hr.*" to `tables`.\n'
        "\n"
    ) in text
    assert "people" not in text
    assert "a_table_with_a_long_name" not in text


def test_json_lists_mirrored_tables_and_other_schemas(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.cli.init.list_database", lambda _: THREE_SCHEMAS)
    ended = icestream("init", "postgres://me@db.example/shop", "--output", "json")
    assert ended.document["tables"] == ["public.orders"]
    assert ended.document["other_schemas"] == ["hr", "sales"]


def test_long_list_of_schemas_is_truncated() -> None:
    others = (DatabaseTable(f"s{n:03}", "t", ("id",)) for n in range(50))
    text = written(look=DatabaseListing((DatabaseTable("public", "t", ("id",)), *others)))
    assert "s039, and 10 more. To mirror" in text
    assert "s040" not in text


def test_long_list_of_tables_is_truncated() -> None:
    look = DatabaseListing(tuple(DatabaseTable("public", f"t{n:03}", ("id",)) for n in range(50)))
    text = written(look=look)
    assert "public.t039" in text
    assert "public.t040" not in text
    assert "      #   and 10 more\n" in text
