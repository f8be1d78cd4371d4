"""What a catalog hands out with a table, in the words of PyIceberg."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from icestream.sinks.iceberg.java_table import expiry_ms, vended_properties

KEYS = {
    "s3.access-key-id": "vended",
    "s3.secret-access-key": "secret",
    "s3.session-token": "session",
    "s3.session-token-expires-at-ms": "1700000000000",
}


@dataclass
class Credential:
    """Stands for Java's credentials of one place."""

    place: str
    given: dict[str, str]

    def prefix(self) -> str:
        return self.place

    def config(self) -> dict[str, str]:
        return self.given


@dataclass
class Table:
    """Stands for a table of Java's API, and for its FileIO."""

    config: dict[str, str]
    vended: list[Credential] = field(default_factory=list)

    def location(self) -> str:
        return "s3://lake/db/orders"

    def io(self) -> Table:
        return self

    def properties(self) -> dict[str, str]:
        return self.config

    def credentials(self) -> list[Credential]:
        return self.vended


def test_only_storage_properties_are_passed_on() -> None:
    found = vended_properties(Table({**KEYS, "token": "ours", "uri": "http://catalog"}))

    assert found == KEYS
    assert expiry_ms(found) == 1700000000000


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ({"s3.endpoint": "http://a:1"}, {"s3.endpoint": "http://a:1", "virtual": "true"}),
        (
            {"s3.endpoint": "http://a:1", "s3.path-style-access": "true"},
            {"s3.endpoint": "http://a:1", "virtual": "false"},
        ),
        ({"s3.path-style-access": "True"}, {"virtual": "false"}),
        ({"s3.path-style-access": "false"}, {"virtual": "true"}),
        ({"client.region": "eu-north-1"}, {"s3.region": "eu-north-1"}),
        ({"s3.region": "eu-west-1", "client.region": "x"}, {"s3.region": "eu-west-1"}),
    ],
)
def test_storage_named_by_the_server_is_passed_to_pyiceberg(
    sent: dict[str, str], passed: dict[str, str]
) -> None:
    names = {"virtual": "s3.force-virtual-addressing"}
    wanted = {names.get(key, key): value for key, value in passed.items()}

    assert vended_properties(Table({**KEYS, **sent})) == {**KEYS, **wanted}


def test_longest_matching_prefix_overrides_shared_properties() -> None:
    shared = {"s3.endpoint": "http://a:1", "s3.path-style-access": "true"}
    near = {"s3.access-key-id": "near", "s3.endpoint": "http://b:2"}
    credentials = [
        Credential("s3://lake/db", near),
        Credential("s3://lake", {"s3.access-key-id": "far", "client.region": "far"}),
        Credential("s3://other", {"s3.access-key-id": "other"}),
    ]

    assert vended_properties(Table({**KEYS, **shared}, credentials)) == {
        **KEYS,
        **near,
        "s3.force-virtual-addressing": "false",
    }
