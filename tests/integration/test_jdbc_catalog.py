"""The jdbc catalog in PostgreSQL, and both of its databases shared with Spark."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.ports import closed_port
from tests.fixtures.shared_catalog import shared_both_ways

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions
from icestream.errors import RefusedError, UnreachableError
from icestream.testing.catalog_suite import CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.postgres import Postgres

    from icestream.contracts.catalog import Catalog


def in_postgres(server: Postgres, folder: Path, **changed: Any) -> JdbcCatalog:
    login: dict[str, Any] = {
        "port": server.port,
        "database": "postgres",
        "user": server.user,
        "password": server.password,
        **changed,
    }
    uri = f"jdbc:postgresql://127.0.0.1:{login['port']}/{login['database']}"
    jdbc = {"uri": uri, "user": login["user"], "password": login["password"]}
    options = {"jdbc": jdbc, "warehouse": str(folder / "warehouse")}
    return JdbcCatalog(unique("lake"), JdbcCatalogOptions.model_validate(options))


def in_sqlite(folder: Path) -> JdbcCatalog:
    options = {"jdbc": {"uri": f"jdbc:sqlite:{folder / 'a b' / 'catalog.db'}"}}
    return JdbcCatalog(unique("lake"), JdbcCatalogOptions.model_validate(options))


def unique(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def postgres_catalog(postgres: Postgres, tmp_path: Path) -> Iterator[JdbcCatalog]:
    catalog = in_postgres(postgres, tmp_path, database=postgres.new_database())
    yield catalog
    catalog.close()


class TestPostgresCatalog(CatalogSuite):
    target = "jdbc, PostgreSQL"

    @pytest.fixture
    def catalog(self, postgres_catalog: JdbcCatalog) -> Catalog[Any]:
        return postgres_catalog


def test_wrong_password_is_refused_without_showing_it(postgres: Postgres, tmp_path: Path) -> None:
    catalog = in_postgres(postgres, tmp_path, password="not-the-password")  # noqa: S106

    with pytest.raises(RefusedError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (postgresql 127.0.0.1:{postgres.port}/postgres): the server "
        "refused user 'icestream': password authentication failed for user \"icestream\"\n"
        "  Check `jdbc.user` and `jdbc.password`, the server's pg_hba.conf, and that the user "
        "may create tables in the database."
    )
    assert caught.value.__cause__ is None


def test_missing_database_is_reported(postgres: Postgres, tmp_path: Path) -> None:
    catalog = in_postgres(postgres, tmp_path, database="nowhere")

    with pytest.raises(RefusedError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (postgresql 127.0.0.1:{postgres.port}/nowhere): no such "
        'database: database "nowhere" does not exist\n'
        "  Create the database 'nowhere', or correct `jdbc.uri`."
    )


def test_server_that_is_down_is_unreachable(postgres: Postgres, tmp_path: Path) -> None:
    port = closed_port()
    catalog = in_postgres(postgres, tmp_path, port=port)

    with pytest.raises(UnreachableError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (postgresql 127.0.0.1:{port}/postgres): connection to the "
        "catalog's database refused\n"
        "  Is the server running? Check `jdbc.uri`."
    )


def test_sqlite_catalog_is_shared_with_spark(tmp_path: Path, spark: SparkSession) -> None:
    catalog = in_sqlite(tmp_path)

    shared_both_ways(catalog, spark)

    catalog.close()


def test_postgres_catalog_is_shared_with_spark(
    postgres_catalog: JdbcCatalog, spark: SparkSession
) -> None:
    shared_both_ways(postgres_catalog, spark)
