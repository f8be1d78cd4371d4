"""Names that other tools have are answered with what to write here."""

from __future__ import annotations

import re

import pytest

from icestream.contracts import registry

NAMED = re.compile(r"`(connector|type|format): ([a-z-]+)`")
ROLE_OF_KEY = {"connector": ("sources", "sinks"), "type": ("catalogs",), "format": ("formats",)}
HINTS = [
    (role, name, hint)
    for role, hints in registry.ALTERNATIVES.items()
    for name, hint in hints.items()
]


@pytest.mark.parametrize(("role", "name", "hint"), HINTS)
def test_alternative_exists_and_the_name_does_not(role: str, name: str, hint: str) -> None:
    assert name not in registry.names(role)
    assert name == name.lower()
    named = NAMED.findall(hint)
    assert named or hint.startswith("Export its rows")
    for key, other in named:
        # A source may be told to read files of a format that only files have.
        others = {"parquet"} if key == "format" else set()
        assert other in others.union(*(registry.names(role) for role in ROLE_OF_KEY[key]))


@pytest.mark.parametrize(
    ("role", "name", "hint"),
    [
        (
            "sources",
            "MySQL",
            "Read it through Debezium: `connector: kafka` with `format: debezium-json`. "
            "Installed: datagen, files, kafka, postgres-cdc, webhook.",
        ),
        (
            "sources",
            "s3",
            "Write `connector: files` with a local or mounted folder; object stores are not read "
            "yet. Installed: datagen, files, kafka, postgres-cdc, webhook.",
        ),
        (
            "sinks",
            "delta",
            "Rows are written to Iceberg tables: write `connector: iceberg`. Installed: iceberg.",
        ),
        (
            "catalogs",
            "unity",
            "It has a REST endpoint for Iceberg: write `type: rest` with `rest: {uri: ...}`. "
            "Installed: glue, hive, jdbc, memory, nessie, rest.",
        ),
    ],
)
def test_known_name_of_another_tool_gets_a_hint(role: str, name: str, hint: str) -> None:
    assert registry.suggest(role, name) == hint


def test_unknown_name_gets_no_hint() -> None:
    assert registry.alternative("sources", "carrier-pigeon") == ""
    assert registry.alternative("storage", "mysql") == ""
