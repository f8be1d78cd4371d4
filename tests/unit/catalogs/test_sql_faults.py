from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from sqlalchemy.exc import OperationalError

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions, embedded
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
    UnreachableError,
)
from icestream.storage.s3 import S3Options, S3Storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REFUSED = "java.net.ConnectException: Connection refused"
POSTGRESQL = (
    "org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect\n"
    "org.postgresql.util.PSQLException: Connection to 127.0.0.1:5432 refused."
)
MARIADB = "java.sql.SQLNonTransientConnectionException: Socket fail to connect to db. refused"
BUSY = "org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked"


def served(kind: str = "postgresql") -> JdbcCatalog:
    block = {"jdbc": {"uri": f"{kind}://db/meta", "user": "me"}, "warehouse": "/w"}
    return JdbcCatalog("lake", JdbcCatalogOptions.model_validate(block))


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (POSTGRESQL, UnreachableError, "connection to the catalog's database refused"),
        (MARIADB, UnreachableError, "no answer from the catalog's database"),
        (
            "OperationalError: (psycopg.OperationalError) password authentication failed for me",
            RefusedError,
            "the catalog's database refuses the user",
        ),
        (
            "org.apache.iceberg.jdbc.UncheckedSQLException: Unknown failure",
            TransientError,
            "the connection to the catalog's database was lost",
        ),
    ],
)
def test_fault_of_the_database_is_explained(
    message: str, kind: type[IcestreamError], what: str
) -> None:
    error = served().explain(message, "catalog 'lake'")

    assert type(error) is kind
    assert (error.what, error.where) == (what, "catalog 'lake'")
    assert error.todo


@pytest.mark.parametrize(
    "message",
    [
        f"org.apache.kafka.common.KafkaException: broken off\n{REFUSED}",
        f"software.amazon.awssdk.core.exception.SdkClientException: s3://mariadb/x\n{REFUSED}",
        "OSError: connection reset while /lake/sqlite/pymysql/x was read: Connection reset",
    ],
)
def test_fault_of_another_system_is_not_the_databases(message: str) -> None:
    assert served().explain(message, "catalog 'lake'") is None


def test_sqlite_has_no_network_faults(tmp_path: Path) -> None:
    catalog = embedded(tmp_path)

    assert catalog.explain(POSTGRESQL.splitlines()[1], "catalog 'lake'") is None
    locked = catalog.explain(BUSY, "catalog 'lake'")
    assert type(locked) is TransientError
    assert locked.what == "the catalog's database is locked by another process"


class OneAnswer(InMemoryCatalog):
    """A client that has the same answer to every question."""

    def __init__(self, answer: Exception) -> None:
        super().__init__("lake", warehouse="memory://lake")
        self.answer = answer

    def load_table(self, identifier: Any) -> Any:
        raise self.answer

    def list_namespaces(self, namespace: Any = ()) -> Any:
        raise self.answer

    def namespace_exists(self, namespace: Any) -> Any:
        raise self.answer


@pytest.mark.parametrize(
    "ask",
    [
        lambda catalog: catalog.find_table(("db", "t")),
        lambda catalog: catalog.has_namespace(("db",)),
        lambda catalog: next(iter(catalog.check())).run(),
    ],
    ids=["find_table", "has_namespace", "check"],
)
def test_fault_of_a_broken_database_is_explained(ask: Callable[[JdbcCatalog], Any]) -> None:
    catalog = served()
    cause = Exception("connection to server at db failed: the connection is lost")
    catalog._client = OneAnswer(OperationalError("SELECT 1", {}, cause))

    with pytest.raises(UnreachableError) as caught:
        ask(catalog)

    assert str(caught.value) == (
        "catalog 'lake' (postgresql db:5432/meta): connection failed: the connection is lost\n"
        "  Is the server running? Check `jdbc.uri`. Is a firewall, a VPN or a proxy in between?"
    )


def test_missing_metadata_is_reported() -> None:
    catalog = served()
    catalog._client = OneAnswer(FileNotFoundError("/w/t/metadata/1.json"))

    with pytest.raises(ConnectorError) as caught:
        catalog.find_table(("db", "t"))

    assert str(caught.value) == (
        "catalog 'lake' (postgresql db:5432/meta): the table's metadata cannot be read "
        "(/w/t/metadata/1.json)\n"
        "  Check that the metadata file exists, and the storage block in the configuration."
    )


def test_secret_of_the_sinks_store_is_not_shown() -> None:
    keys = {"bucket": "b", "access_key_id": "AKIA1", "secret_access_key": "store-secret"}
    block = {"jdbc": {"uri": "postgresql://db/meta"}, "warehouse": "s3://b/w"}
    store = S3Storage(S3Options.model_validate(keys))
    catalog = JdbcCatalog("lake", JdbcCatalogOptions.model_validate(block), store)
    catalog._client = OneAnswer(OSError("odd answer to store-secret"))

    with pytest.raises(ConnectorError) as caught:
        catalog.find_table(("db", "t"))

    assert caught.value.what == "the table's metadata cannot be read (odd answer to ***)"
