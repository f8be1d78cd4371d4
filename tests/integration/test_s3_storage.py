"""A catalog whose tables lie in an S3 store, and what the store's refusals are called."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.ports import closed_port
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import configure_spark

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions
from icestream.contracts.faults import exception_text
from icestream.errors import ConnectorError, IcestreamError, RefusedError, UnreachableError
from icestream.testing.catalog_suite import CatalogSuite
from icestream.testing.storage_suite import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.s3_store import S3Store

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.storage import Storage


def in_s3(store: S3Store, folder: Path, **changed: Any) -> JdbcCatalog:
    s3 = {
        "endpoint": store.endpoint,
        "region": store.region,
        "path_style_access": True,
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key,
        **changed,
    }
    s3.setdefault("bucket", store.new_bucket())
    block = {"jdbc": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}"}, "s3": s3}
    return JdbcCatalog(f"lake_{uuid.uuid4().hex[:8]}", JdbcCatalogOptions.model_validate(block))


@pytest.fixture
def s3_catalog(s3_store: S3Store, tmp_path: Path) -> Iterator[JdbcCatalog]:
    catalog = in_s3(s3_store, tmp_path)
    yield catalog
    catalog.close()


class TestCatalogInS3(CatalogSuite):
    target = "jdbc, SQLite, on S3"

    @pytest.fixture
    def catalog(self, s3_catalog: JdbcCatalog) -> Catalog[Any]:
        return s3_catalog


class TestS3Storage(StorageSuite):
    @pytest.fixture
    def storage(self, s3_catalog: JdbcCatalog) -> Storage:
        return s3_catalog.files

    @pytest.fixture
    def warehouse(self, s3_catalog: JdbcCatalog) -> str:
        return f"{s3_catalog.warehouse}/lake"


def test_catalog_in_s3_is_shared_with_spark(s3_catalog: JdbcCatalog, spark: SparkSession) -> None:
    shared_both_ways(s3_catalog, spark)


def test_check_leaves_nothing_behind(
    s3_catalog: JdbcCatalog, s3_store: S3Store, tmp_path: Path
) -> None:
    assert [step.name for step in s3_catalog.check() if step.run()] == [
        "reach catalog",
        "reach store",
        "list store",
        "write an object",
        "read it back",
        "remove it",
    ]

    bucket = s3_catalog.warehouse.removeprefix("s3://")
    assert s3_store.client().list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def first_fault(catalog: JdbcCatalog) -> IcestreamError:
    """Return what the first step of a check that does not pass says."""
    for step in catalog.check():
        try:
            step.run()
        except IcestreamError as exc:  # noqa: PERF203 - a handful of steps
            return exc
    raise AssertionError("every step passed")


def refused(store: S3Store, what: str, todo: str) -> str:
    return f"storage s3 {store.endpoint}: {what}\n  {todo}"


def test_wrong_secret_is_refused_without_showing_it(s3_store: S3Store, tmp_path: Path) -> None:
    error = first_fault(in_s3(s3_store, tmp_path, secret_access_key="not-the-secret"))  # noqa: S106

    assert isinstance(error, RefusedError)
    assert str(error) == refused(
        s3_store,
        "the signature is wrong: the secret key does not belong to the access key id",
        "Check `s3.secret_access_key`: it must not end with a space or a line break.",
    )
    assert error.__cause__ is None


def test_unknown_key_is_refused(s3_store: S3Store, tmp_path: Path) -> None:
    error = first_fault(in_s3(s3_store, tmp_path, access_key_id="nobody"))

    assert isinstance(error, RefusedError)
    assert str(error) == refused(
        s3_store,
        "the store does not know the access key id",
        "Check `s3.access_key_id`, and that `s3.endpoint` is the store that it belongs to.",
    )


def test_denied_access_names_the_required_permissions(s3_store: S3Store, tmp_path: Path) -> None:
    outsider = {
        "access_key_id": s3_store.outsider_access_key_id,
        "secret_access_key": s3_store.outsider_secret_access_key,
    }
    error = first_fault(in_s3(s3_store, tmp_path, **outsider))

    assert isinstance(error, RefusedError)
    assert str(error) == refused(
        s3_store,
        "the store denies access",
        "Are the credentials those of the right account? Do they allow s3:ListBucket, "
        "s3:GetObject, s3:PutObject and s3:DeleteObject on the bucket? Most S3-compatible stores "
        "need `s3.path_style_access: true`.",
    )


def test_missing_bucket_is_reported(s3_store: S3Store, tmp_path: Path) -> None:
    error = first_fault(in_s3(s3_store, tmp_path, bucket="no-such-bucket"))

    assert isinstance(error, ConnectorError)
    assert str(error) == refused(
        s3_store,
        "there is no such bucket",
        "Create it, or check the spelling of `s3.bucket` or of the catalog's `warehouse`.",
    )


def test_bucket_before_an_unknown_host_hints_at_path_style(
    s3_store: S3Store, tmp_path: Path
) -> None:
    endpoint = f"http://store.invalid:{s3_store.port}"
    catalog = in_s3(s3_store, tmp_path, path_style_access=False, endpoint=endpoint)
    steps = {step.name: step for step in catalog.check()}

    with pytest.raises(ConnectorError) as caught:
        steps["list store"].run()

    assert str(caught.value) == (
        f"storage s3 {endpoint}: cannot resolve the host name 'store.invalid', or the "
        "bucket's name before it\n"
        "  Check the spelling of `s3.endpoint`. "
        "Set `s3.path_style_access: true`, as most S3-compatible stores need."
    )


def test_bucket_before_localhost_hints_at_path_style(s3_store: S3Store, tmp_path: Path) -> None:
    endpoint = f"http://localhost:{s3_store.port}"
    error = first_fault(in_s3(s3_store, tmp_path, path_style_access=False, endpoint=endpoint))

    assert str(error) == (
        f"storage s3 {endpoint}: the store does not find the bucket's name in the request\n"
        "  Set `s3.path_style_access: true`, as most S3-compatible stores need."
    )


def test_store_that_is_down_is_unreachable(s3_store: S3Store, tmp_path: Path) -> None:
    port = closed_port()
    catalog = in_s3(s3_store, tmp_path, endpoint=f"http://127.0.0.1:{port}")
    error = first_fault(catalog)

    assert isinstance(error, UnreachableError)
    assert str(error) == (
        f"storage s3 http://127.0.0.1:{port}: connection to 127.0.0.1:{port} refused\n"
        "  Is the server running? Check `s3.endpoint`."
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        # Java asks by HEAD first, and an answer to that has no body to name the reason.
        ({"secret_access_key": "not-the-secret"}, "the store denies access"),
        ({"bucket": "no-such-bucket"}, "there is no such bucket"),
    ],
    ids=["wrong secret", "no such bucket"],
)
def test_s3_refusal_in_spark_is_explained(
    s3_store: S3Store, spark: SparkSession, tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    catalog = in_s3(s3_store, tmp_path, **changed)
    configure_spark(spark, catalog)
    spark.sql(f"CREATE NAMESPACE {catalog.name}.db")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - as the runner meets it
        spark.range(1).writeTo(f"{catalog.name}.db.t").create()

    error = catalog.explain(exception_text(caught.value), "table db.t")
    assert error is not None
    assert error.what == what
