"""Options of `postgres-cdc`: which tables they name, and what slot and publication are called."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from icestream.sources.postgres_cdc import PostgresCdcOptions, PostgresCdcSource
from icestream.sources.postgres_cdc.offset import parse_qualified_name


def options(**settings: Any) -> PostgresCdcOptions:
    return PostgresCdcOptions.model_validate(
        {"host": "h", "database": "d", "user": "u", **settings}
    )


def test_every_table_of_public_is_captured_by_default() -> None:
    assert options().mode_of("public", "orders") == "incremental"
    assert options().mode_of("sales", "orders") is None


def test_patterns_name_schema_and_table() -> None:
    given = options(tables=["sales.*", "public.order?", "people"])
    assert given.mode_of("sales", "any.thing") == "incremental"
    assert given.mode_of("public", "orders") == "incremental"
    assert given.mode_of("public", "people") == "incremental"
    assert given.mode_of("public", "orderss") is None
    assert given.named_tables == (("public", "people"),)


def test_streams_have_modes() -> None:
    given = options(
        streams=[{"name": "a"}, {"name": "b", "namespace": "s", "sync_mode": "full_refresh"}]
    )
    assert given.mode_of("public", "a") == "incremental"
    assert given.mode_of("s", "b") == "full_refresh"
    assert given.mode_of("public", "c") is None
    assert given.named_tables == (("public", "a"), ("s", "b"))


def test_names_come_from_the_database_and_the_tables() -> None:
    plain = options()
    assert plain.slot == options(tables=["public.*"]).slot == plain.publication_name
    assert plain.slot.startswith("icestream_")
    others = {
        options(database="e").slot,
        options(tables=["a.*"]).slot,
        options(streams=[{"name": "a"}]).slot,
    }
    assert len({plain.slot, *others}) == 4
    assert options(host="other", port=1, user="v").slot == plain.slot


def test_configured_names_are_kept() -> None:
    given = options(slot_name="mine", publication="Ours")
    assert (given.slot, given.publication_name) == ("mine", "Ours")
    assert options(slot_name="mine").publication_name == "mine"


@pytest.mark.parametrize(
    ("settings", "follows"),
    [
        ({}, True),
        ({"snapshot": "never"}, True),
        ({"snapshot": "only"}, False),
        ({"streams": [{"name": "a", "sync_mode": "full_refresh"}]}, False),
        ({"streams": [{"name": "a", "sync_mode": "full_refresh"}, {"name": "b"}]}, True),
    ],
)
def test_slot_is_needed_only_for_changes(settings: dict[str, Any], *, follows: bool) -> None:
    assert options(**settings).follows is follows


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tables": ["a"], "streams": [{"name": "a"}]},
            "`tables` and `streams` exclude each other; keep one of them",
        ),
        (
            {"streams": [{"name": "a"}, {"name": "a", "namespace": "public"}]},
            "`streams` names the table 'public.a' twice",
        ),
        (
            {
                "snapshot": "never",
                "streams": [{"name": "a"}, {"name": "b", "sync_mode": "full_refresh"}],
            },
            "table 'public.b' has `sync_mode: full_refresh`, and `snapshot: never` would never "
            "read it; remove one of the two",
        ),
        ({"tables": ["public."]}, "'public.' is not a table name; write e.g. 'public.orders'"),
        ({"tables": [".a"]}, "'.a' is not a table name; write e.g. 'public.orders'"),
    ],
)
def test_invalid_tables_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        options(**settings)
    assert message in str(caught.value)


def test_identity_is_free_of_secrets_and_of_the_address() -> None:
    source = PostgresCdcSource(options(password="only-for-tests", slot_name="s"))  # noqa: S106
    assert source.identity() == "postgres-cdc d s"


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("public.orders", ("public", "orders")),
        ('"My.Shop"."Or""der"', ("My.Shop", 'Or"der')),
        ('public."A b"', ("public", "A b")),
    ],
)
def test_labels_are_read_back(label: str, names: tuple[str, str]) -> None:
    assert parse_qualified_name(label) == names


def test_streams_beside_config_reach_the_source() -> None:
    from icestream.config.loader import parse

    config = parse(
        "sources:\n"
        "  shop:\n"
        "    connector: postgres-cdc\n"
        "    config: {host: h, database: d, user: u}\n"
        "    streams: [{name: rates, sync_mode: full_refresh}]\n"
        "sinks: {lake: {connector: iceberg}}\n"
        "pipelines: {shop: {source: shop, sink: lake}}\n",
        "shop.yaml",
    )
    given = config.sources["shop"].options
    assert isinstance(given, PostgresCdcOptions)
    assert given.mode_of("public", "rates") == "full_refresh"


@pytest.mark.parametrize(("value", "meant"), [(None, "null"), ("null", "null"), ("text", "text")])
def test_null_of_yaml_is_the_name_of_a_choice(value: str | None, meant: str) -> None:
    assert options(unrepresentable=value).unrepresentable == meant
    assert options().unrepresentable == "fail"
