"""Tokens and keys that run out under a running pipeline: renewed, or waited for."""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.oauth_gateway import OAuthGateway, StorageKeys
from tests.fixtures.spark import Lake, configure_spark
from tests.fixtures.steady_pipeline import PATIENCE_SECS, ROWS_A_SECOND, SteadyPipeline
from tests.fixtures.waiting import wait_until

from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.errors import RefusedError
from icestream.metrics.events import PipelineRestarted
from icestream.plan.plan import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.rest_catalog import RestCatalog as RestServer
    from tests.fixtures.s3_store import S3Store


def lake_behind(
    gateway: OAuthGateway, spark: SparkSession, folder: Path, **blocks: dict[str, Any]
) -> Lake:
    rest = {
        "uri": gateway.uri,
        "credential": gateway.credential,
        "properties": {"oauth2-server-uri": gateway.token_uri},
    }
    options = RestCatalogOptions.model_validate({"type": "rest", "rest": rest, **blocks})
    catalog = RestCatalog(f"lake_{uuid.uuid4().hex[:8]}", options)
    configure_spark(spark, catalog)
    return Lake(spark, folder, catalog, namespace=(f"n{uuid.uuid4().hex[:12]}",))


# As long as any of these tests could take: they stop it.
NEVER_ENDING = ROWS_A_SECOND * 600


def assert_no_row_is_missing(pipeline: SteadyPipeline) -> None:
    pipeline.wait_for_end()
    written = pipeline.written()
    assert written == list(range(len(written)))


def restarts(lake: Lake) -> list[object]:
    return [event for event in lake.events if isinstance(event, PipelineRestarted)]


def test_expired_token_is_renewed(
    oauth_gateway: OAuthGateway, spark: SparkSession, tmp_path: Path
) -> None:
    oauth_gateway.token_secs = 3
    lake = lake_behind(oauth_gateway, spark, tmp_path)
    pipeline = SteadyPipeline(lake, NEVER_ENDING)

    with pipeline.running():
        given = oauth_gateway.tokens()
        # Two renewals: by the second one, no request with a token from before the first is left.
        wait_until(
            lambda: len(oauth_gateway.tokens()) >= len(given) + 2, "renewals", secs=PATIENCE_SECS
        )
        oauth_gateway.expire_tokens(given)
        pipeline.wait_for_more_rows(ROWS_A_SECOND * 2)

    # A restart would fetch a new token too.
    assert restarts(lake) == []
    assert_no_row_is_missing(pipeline)


def test_pipeline_waits_while_new_tokens_are_refused(
    oauth_gateway: OAuthGateway, spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_behind(oauth_gateway, spark, tmp_path)
    pipeline = SteadyPipeline(lake, ROWS_A_SECOND * 12)

    with pipeline.running():
        oauth_gateway.token_refusal = 401
        oauth_gateway.expire_tokens()
        error = pipeline.wait_until_waiting()["error"]
        oauth_gateway.token_refusal = None
        pipeline.wait_for_end()

    assert "`rest.credential`" in error["message"]
    assert error["needs_person"] is False
    assert oauth_gateway.client_secret not in error["message"]
    assert pipeline.written() == list(range(pipeline.rows))


def test_credentials_refused_at_the_start_need_a_person(
    oauth_gateway: OAuthGateway, spark: SparkSession, tmp_path: Path
) -> None:
    oauth_gateway.token_refusal = 401
    lake = lake_behind(oauth_gateway, spark, tmp_path)
    pipeline = SteadyPipeline(lake, ROWS_A_SECOND, RestartPolicy(max=3, backoff_secs=0))

    with pytest.raises(RefusedError, match=r"rest\.credential"), pipeline.running():
        pass
    assert pipeline.status()["error"]["needs_person"] is True


@pytest.fixture
def lending_gateway(rest_catalog_on_s3: RestServer) -> Iterator[OAuthGateway]:
    with OAuthGateway(rest_catalog_on_s3.uri) as gateway:
        yield gateway


class Lender:
    """Lends the keys of the newest user of the store."""

    def __init__(self, store: S3Store, secs: float) -> None:
        self.store = store
        self.secs = secs
        self.users: list[str] = []
        self.times_lent = 0
        self.add_user()

    def __call__(self) -> StorageKeys:
        self.times_lent += 1
        secret = f"secret-of-{self.users[-1]}"
        return StorageKeys(self.users[-1], secret, secs=self.secs)

    def add_user(self) -> None:
        user = f"u{secrets.token_hex(6)}"
        self.store.add_user(user, f"secret-of-{user}", role="admin")
        self.users.append(user)

    def remove_older_users(self) -> None:
        while len(self.users) > 1:
            self.store.remove_user(self.users.pop(0))


@pytest.mark.parametrize(("secs", "is_replayed"), [(5, False), (3600, True)], ids=["5", "3600"])
def test_vended_credentials_are_renewed(
    secs: float,
    is_replayed: bool,
    lending_gateway: OAuthGateway,
    s3_store: S3Store,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Those whose end is known before it comes, the others by a replay."""
    lender = Lender(s3_store, secs)
    lending_gateway.vend = lender
    # Java's own renewal wants session tokens, which this store does not give out.
    lending_gateway.refreshes_keys = False
    s3 = {"endpoint": s3_store.endpoint, "region": s3_store.region, "path_style_access": True}
    lake = lake_behind(lending_gateway, spark, tmp_path, s3=s3)
    pipeline = SteadyPipeline(lake, NEVER_ENDING)

    with pipeline.running():
        lender.add_user()
        lent = lender.times_lent
        if not is_replayed:
            wait_until(lambda: lender.times_lent > lent, "new keys", secs=PATIENCE_SECS)
            # The batches that began with the old keys.
            pipeline.wait_for_more_rows(ROWS_A_SECOND * 2)
        lender.remove_older_users()
        pipeline.wait_for_more_rows(ROWS_A_SECOND * 4)

    assert_no_row_is_missing(pipeline)
    assert bool(restarts(lake)) is is_replayed
