"""Gives each test one target after the other."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.targets import TARGETS, Target
from tests.fixtures.conformance_results import note_result
from tests.fixtures.glue import java_aws_keys
from tests.fixtures.spark import Lake, configure_spark

from icestream.contracts import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.glue import GlueServer

    from icestream.contracts.catalog import Catalog


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def target(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Target:
    """The catalog and store under test."""
    found: Target = request.param
    note_result(record_property, found.name, request)
    return found


@pytest.fixture
def aws_environment(
    glue_server: GlueServer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Keys for clients of AWS Glue, which take them from the default chain alone."""
    for name, value in glue_server.environment.items():
        monkeypatch.setenv(name, value)
    with java_aws_keys(spark, glue_server):
        yield


@pytest.fixture
def catalog(
    target: Target, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Catalog[Any]]:
    """A catalog of the target, under a name of its own."""
    block = target.block(request.getfixturevalue, tmp_path)
    kind = registry.find("catalogs", block["type"])
    built = kind(f"lake_{uuid.uuid4().hex[:8]}", kind.options_type.model_validate(block))
    yield built
    built.close()


@pytest.fixture
def lake(spark: SparkSession, catalog: Catalog[Any], tmp_path: Path) -> Lake:
    """Pipelines into a namespace of the target that no other test uses."""
    catalog.client()
    configure_spark(spark, catalog)
    return Lake(spark, tmp_path, catalog, namespace=(f"n{uuid.uuid4().hex[:12]}",))
