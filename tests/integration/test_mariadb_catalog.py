"""The jdbc catalog in MariaDB, shared with Spark."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.fan_outs import ids, planned, row, scripted
from tests.fixtures.ports import closed_port
from tests.fixtures.shared_catalog import shared_both_ways
from tests.fixtures.spark import Lake, configure_spark

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions
from icestream.errors import RefusedError, SchemaMismatchError, UnreachableError
from icestream.testing.catalog_suite import COLUMNS, CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.fixtures.mariadb import MariaDb

    from icestream.contracts.catalog import Catalog


def in_mariadb(server: MariaDb, folder: Path, **changed: Any) -> JdbcCatalog:
    login: dict[str, Any] = {
        "port": server.port,
        "database": "mysql",
        "user": server.user,
        "password": server.password,
        **changed,
    }
    uri = f"jdbc:mariadb://127.0.0.1:{login['port']}/{login['database']}"
    jdbc = {"uri": uri, "user": login["user"], "password": login["password"]}
    options = {"jdbc": jdbc, "warehouse": str(folder / "warehouse")}
    name = f"lake_{uuid.uuid4().hex[:8]}"
    return JdbcCatalog(name, JdbcCatalogOptions.model_validate(options))


@pytest.fixture
def mariadb_catalog(mariadb: MariaDb, tmp_path: Path) -> Iterator[JdbcCatalog]:
    catalog = in_mariadb(mariadb, tmp_path, database=mariadb.new_database())
    yield catalog
    catalog.close()


class TestMariaDbCatalog(CatalogSuite):
    target = "jdbc, MariaDB"

    @pytest.fixture
    def catalog(self, mariadb_catalog: JdbcCatalog) -> Catalog[Any]:
        return mariadb_catalog


def test_mariadb_catalog_is_shared_with_spark(
    mariadb_catalog: JdbcCatalog, spark: SparkSession
) -> None:
    shared_both_ways(mariadb_catalog, spark)


def test_names_that_differ_in_case_or_accent_are_two_tables(mariadb_catalog: JdbcCatalog) -> None:
    client, names = mariadb_catalog.client(), ["Orders", "orders", "örders"]
    client.create_namespace("db")

    for name in names:
        client.create_table(("db", name), schema=COLUMNS)

    assert sorted(name for _, name in client.list_tables("db")) == names
    assert mariadb_catalog.find_table(("db", "ORDERS")) is None


def test_names_equal_by_a_loose_collation_are_refused(
    mariadb: MariaDb, spark: SparkSession, tmp_path: Path
) -> None:
    database = mariadb.new_database()
    catalog = in_mariadb(mariadb, tmp_path, database=database)
    catalog.client()
    with mariadb.connect(database) as connection, connection.cursor() as cursor:
        # As Spark or PyIceberg make the table in a database with the server's default collation.
        cursor.execute("ALTER TABLE iceberg_tables CONVERT TO CHARACTER SET utf8mb4")
    configure_spark(spark, catalog)
    lake = Lake(spark, tmp_path, catalog)
    source = scripted(row(1, "orders"))
    lake.run(planned(lake, source))
    source.append_rows([row(2, "Orders"), row(3, "orders"), row(4, "items")])
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(planned(lake, source))

    assert str(caught.value) == (
        f"sink 'lake', {catalog.identity()}: 'db.Orders' and 'db.orders' are one table: the "
        "catalog does not distinguish the two names\n"
        "  Nothing of the batch was written. Give the tables names that differ in more than case "
        "or accents, e.g. `route_by: lower(kind)`."
    )
    lake.run(planned(lake, source, route_by="lower(kind)"))
    assert (ids(lake, "orders"), ids(lake, "items")) == ([1, 2, 3], [4])
    catalog.close()


def test_user_who_may_not_create_tables_can_use_those_that_exist(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    database, user = mariadb.new_database(), f"u_{uuid.uuid4().hex[:8]}"
    in_mariadb(mariadb, tmp_path, database=database).client().create_namespace("db")
    login = f"'{user}'@'127.0.0.1'"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {login} IDENTIFIED BY 'only-for-tests'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {login}")
    catalog = in_mariadb(mariadb, tmp_path, database=database, user=user, password="only-for-tests")  # noqa: S106

    assert catalog.client().list_namespaces() == []

    catalog.close()


def test_wrong_password_of_mariadb_is_refused_without_showing_it(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    catalog = in_mariadb(mariadb, tmp_path, password="not-the-password")  # noqa: S106

    with pytest.raises(RefusedError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (mariadb 127.0.0.1:{mariadb.port}/mysql): the server refused "
        "user 'icestream': Access denied for user 'icestream'@'127.0.0.1' (using password: YES)\n"
        "  Check `jdbc.user` and `jdbc.password`, the hosts from which the server accepts the "
        "user, and that the user may create tables in the database."
    )
    assert caught.value.__cause__ is None


def test_missing_database_of_mariadb_is_reported(mariadb: MariaDb, tmp_path: Path) -> None:
    catalog = in_mariadb(mariadb, tmp_path, database="nowhere")

    with pytest.raises(RefusedError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (mariadb 127.0.0.1:{mariadb.port}/nowhere): no such database: "
        f"Unknown database 'nowhere'\n"
        "  Create the database 'nowhere', or correct `jdbc.uri`."
    )


def test_mariadb_that_is_down_is_unreachable(mariadb: MariaDb, tmp_path: Path) -> None:
    port = closed_port()
    catalog = in_mariadb(mariadb, tmp_path, port=port)
    reach, *_ = catalog.check()

    with pytest.raises(UnreachableError) as caught:
        reach.run()

    assert str(caught.value) == (
        f"catalog '{catalog.name}' (mariadb 127.0.0.1:{port}/mysql): connection to the "
        "catalog's database refused\n"
        "  Is the server running? Check `jdbc.uri`."
    )
