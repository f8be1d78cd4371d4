"""Java and Arrow sign for the same region, whoever names it."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.catalogs.glue import GlueCatalog, GlueCatalogOptions
from icestream.storage.s3 import S3Options, S3Storage

LOCAL = {"endpoint": "http://127.0.0.1:9000"}
AMAZON = {"endpoint": "https://s3.eu-west-1.amazonaws.com"}
BOTH = {"AWS_REGION": "a", "AWS_DEFAULT_REGION": "d"}


@pytest.fixture(autouse=True)
def no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BOTH:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "environment", "java", "arrow"),
    [
        (LOCAL, {}, "us-east-1", "us-east-1"),
        (LOCAL, {"AWS_DEFAULT_REGION": "d"}, "d", "d"),
        (LOCAL, BOTH, "a", "a"),
        ({**LOCAL, "region": "r"}, BOTH, "r", "r"),
        (AMAZON, {}, None, None),
        (AMAZON, BOTH, "a", "a"),
        ({"endpoint": "https://amazonaws.com.example"}, {}, "us-east-1", "us-east-1"),
        ({}, {}, None, None),
        ({}, {"AWS_DEFAULT_REGION": "d"}, "d", None),
        ({}, BOTH, None, None),
    ],
)
def test_region_is_set_in_both_clients(
    options: dict[str, Any],
    environment: dict[str, str],
    java: str | None,
    arrow: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    storage = S3Storage(S3Options.model_validate(options))
    assert storage.spark_settings().get("client.region") == java
    assert storage.pyiceberg_properties().get("s3.region") == arrow


def test_region_of_the_environment_applies_to_a_glue_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "a")
    options = {"glue": LOCAL, "warehouse": "s3://b/w"}
    catalog = GlueCatalog("lake", GlueCatalogOptions.model_validate(options))
    assert catalog.spark_settings()["client.region"] == "a"
    assert catalog.pyiceberg_properties()["glue.region"] == "a"
