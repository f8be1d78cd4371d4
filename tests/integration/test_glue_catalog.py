"""The glue catalog, against a server that speaks Glue's API and S3's."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import mirrored_names_are_folded
from tests.fixtures.glue import java_aws_keys
from tests.fixtures.ports import closed_port
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import Lake, configure_spark

from icestream.catalogs.glue import GlueCatalog, GlueCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import ConnectorError, RefusedError, UnreachableError
from icestream.testing.catalog_suite import CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.glue import GlueServer

    from icestream.contracts.catalog import Catalog


def in_glue(server: GlueServer, **glue: Any) -> GlueCatalog:
    block = {
        "glue": {"endpoint": server.endpoint, "region": server.region, **glue},
        "s3": {
            "bucket": server.new_bucket(),
            "endpoint": server.endpoint,
            "path_style_access": True,
        },
    }
    return GlueCatalog(f"lake_{uuid.uuid4().hex[:8]}", GlueCatalogOptions.model_validate(block))


@pytest.fixture
def aws_keys(glue_server: GlueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the default AWS chain looks first."""
    for name, value in glue_server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def no_aws_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which the default AWS chain finds nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def glue_catalog(glue_server: GlueServer, aws_keys: None) -> Iterator[GlueCatalog]:
    catalog = in_glue(glue_server)
    yield catalog
    catalog.close()


class TestGlueCatalog(CatalogSuite):
    target = "glue, on S3"
    odd_names = ("select", "2nd_order")

    @pytest.fixture
    def catalog(self, glue_catalog: GlueCatalog) -> Catalog[Any]:
        return glue_catalog


@pytest.fixture
def keys_for_java(spark: SparkSession, glue_server: GlueServer) -> Iterator[None]:
    with java_aws_keys(spark, glue_server):
        yield


def test_glue_catalog_is_shared_with_spark(
    glue_catalog: GlueCatalog, spark: SparkSession, keys_for_java: None
) -> None:
    shared_both_ways(glue_catalog, spark, space="_")


def test_names_that_differ_only_in_case_are_one_table(
    glue_server_own: GlueServer, aws_keys: None, spark: SparkSession, tmp_path: Path
) -> None:
    # A mirror without a namespace looks through the whole catalog, tables of other tests included.
    catalog = in_glue(glue_server_own)
    configure_spark(spark, catalog)
    with closing(catalog), java_aws_keys(spark, glue_server_own):
        mirrored_names_are_folded(Lake(spark, tmp_path, catalog))


def test_invalid_name_in_glue_is_explained(
    glue_catalog: GlueCatalog, spark: SparkSession, keys_for_java: None
) -> None:
    configure_spark(spark, glue_catalog)

    with pytest.raises(Exception, match="Glue") as caught:
        spark.sql(f"CREATE NAMESPACE {glue_catalog.name}.`a b`")

    error = glue_catalog.explain(exception_text(caught.value), glue_catalog.where)
    assert type(error) is ConnectorError
    assert str(error) == (
        f"{glue_catalog.where}: Glue rejects the name\n"
        "  Names in Glue have lower-case letters, digits and underscores, and a namespace has one "
        "level."
    )


def test_missing_aws_keys_are_explained(glue_server: GlueServer, no_aws_keys: None) -> None:
    catalog = in_glue(glue_server)

    with pytest.raises(RefusedError) as caught:
        [step.run() for step in catalog.check()]

    assert str(caught.value) == (
        f"{catalog.where}: no credentials were found\n"
        "  Set up the default AWS chain (environment, `aws configure`, the machine's role), or "
        "name `glue.profile`; the keys of an `s3` block are not used for Glue."
    )
    assert caught.value.__cause__ is None


def test_missing_aws_keys_are_explained_in_spark_too(
    glue_server: GlueServer,
    spark: SparkSession,
    no_aws_keys: None,
) -> None:
    catalog = in_glue(glue_server)
    system = spark._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty("aws.disableEc2Metadata", "true")
    configure_spark(spark, catalog)

    with pytest.raises(Exception, match="credentials") as caught:
        spark.sql(f"CREATE NAMESPACE {catalog.name}.db")

    system.clearProperty("aws.disableEc2Metadata")
    error = catalog.explain(exception_text(caught.value), catalog.where)
    assert error is not None
    assert error.what == "no credentials were found"


def test_unknown_profile_is_reported(glue_server: GlueServer, no_aws_keys: None) -> None:
    catalog = in_glue(glue_server, profile="nobody")

    with pytest.raises(RefusedError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"{catalog.where}: the profile is not in the AWS configuration files\n"
        "  Check the spelling of `glue.profile`; `aws configure list-profiles` lists the profiles."
    )


def test_profile_supplies_the_keys(
    glue_server: GlueServer, no_aws_keys: None, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = owner\naws_secret_access_key = only-for-tests\n"
    )
    catalog = in_glue(glue_server, profile="work")

    assert catalog.client().list_namespaces() is not None


def test_glue_that_is_down_is_unreachable(glue_server: GlueServer, aws_keys: None) -> None:
    port = closed_port()
    catalog = in_glue(glue_server, endpoint=f"http://127.0.0.1:{port}")
    first, *_ = catalog.check()

    with pytest.raises(UnreachableError) as caught:
        first.run()

    assert str(caught.value) == (
        f"{catalog.where}: connection to 127.0.0.1:{port} refused\n"
        "  Is the server running? Check `glue.endpoint`."
    )


def test_glue_outage_is_a_transient_fault(
    glue_server_own: GlueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**glue_server_own.environment, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    catalog = in_glue(glue_server_own)
    catalog.client()
    glue_server_own.kill()

    with pytest.raises(UnreachableError) as caught:
        catalog.find_table(("db", "t"))

    assert str(caught.value) == (
        f"{catalog.where}: connection to Glue refused\n"
        "  Is the server running? Check `glue.region` and `glue.endpoint`."
    )
