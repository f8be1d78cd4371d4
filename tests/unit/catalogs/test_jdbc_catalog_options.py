from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from icestream.catalogs.jdbc import JdbcCatalog, JdbcCatalogOptions, embedded
from icestream.contracts.jars import AWS_BUNDLE, MARIADB, POSTGRESQL, SQLITE
from icestream.errors import ConnectorError, PlanError, RefusedError, UnreachableError

PASSWORD = "p@ss/w:rd"  # noqa: S105


def build(uri: str, **options: Any) -> JdbcCatalog:
    jdbc: dict[str, Any] = {key: options.pop(key) for key in ("user", "password") if key in options}
    jdbc["uri"] = uri
    block = {"type": "jdbc", "jdbc": jdbc, **options}
    return JdbcCatalog("lake", JdbcCatalogOptions.model_validate(block))


@pytest.mark.parametrize(
    "uri", ["jdbc:sqlite:/data/lake/catalog.db", "sqlite:/data/lake/catalog.db"]
)
def test_sqlite_settings_for_spark_and_pyiceberg(uri: str) -> None:
    catalog = build(uri)

    assert catalog.spark_settings() == {
        "type": "jdbc",
        "uri": "jdbc:sqlite:/data/lake/catalog.db?journal_mode=WAL&busy_timeout=30000",
        "jdbc.schema-version": "V1",
        "warehouse": "file:///data/lake",
        "cache-enabled": "false",
    }
    assert catalog.pyiceberg_properties() == {
        "type": "sql",
        "uri": "sqlite:////data/lake/catalog.db?timeout=30",
        "warehouse": "file:///data/lake",
        "schema_version": "v1",
        "pool_pre_ping": "true",
    }
    assert catalog.jars() == (SQLITE,)
    assert catalog.identity() == "jdbc sqlite /data/lake/catalog.db"


@pytest.mark.parametrize("prefix", ["jdbc:", ""])
def test_postgresql_settings_for_spark_and_pyiceberg(prefix: str) -> None:
    uri = f"{prefix}postgresql://db.example:6432/meta?sslmode=require&currentSchema=lake"
    catalog = build(uri, user="me@work", password=PASSWORD, warehouse="s3://bucket/lake/")

    assert catalog.spark_settings() == {
        "type": "jdbc",
        "uri": "jdbc:postgresql://db.example:6432/meta"
        "?connectTimeout=10&sslmode=require&currentSchema=lake",
        "jdbc.schema-version": "V1",
        "jdbc.user": "me@work",
        "jdbc.password": PASSWORD,
        "warehouse": "s3://bucket/lake",
        "cache-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    }
    assert catalog.pyiceberg_properties()["uri"] == (
        "postgresql+psycopg://me%40work:p%40ss%2Fw%3Ard@db.example:6432/meta"
        "?sslmode=require&connect_timeout=10&options=-csearch_path%3Dlake"
    )
    assert catalog.jars() == (POSTGRESQL, AWS_BUNDLE)
    assert catalog.identity() == "jdbc postgresql db.example:6432/meta"


def test_port_of_postgresql_may_be_left_out() -> None:
    assert (
        build("postgresql://db/meta", warehouse="/w").identity() == "jdbc postgresql db:5432/meta"
    )


def test_password_is_never_shown() -> None:
    catalog = build("postgresql://db/meta", user="me", password=PASSWORD, warehouse="/w")

    text = f"{catalog.options!r} {catalog.options} {catalog.store!r} {catalog.identity()}"

    assert PASSWORD not in text


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:///lake.db", "lake.db"),
        ("sqlite:////data/lake.db", "/data/lake.db"),
        ("jdbc:sqlite:///data/lake.db", "/data/lake.db"),
        ("jdbc:sqlite:file:lake.db?cache=shared", "lake.db"),
    ],
)
def test_slashes_of_sqlite_follow_the_uri_dialect(uri: str, path: str) -> None:
    assert build(uri).identity() == f"jdbc sqlite {Path(path)}"


def test_path_with_special_characters_works_in_both_clients() -> None:
    catalog = build("jdbc:sqlite:/data/a b%20c/catalog.db")

    assert catalog.spark_settings()["uri"].startswith("jdbc:sqlite:/data/a b%20c/catalog.db?")
    assert catalog.pyiceberg_properties()["uri"].startswith("sqlite:////data/a%20b%2520c/")
    assert catalog.spark_settings()["warehouse"] == "file:///data/a b%20c"


@pytest.mark.parametrize("warehouse", ["/data/w", "/data/w/", "file:/data/w", "file:///data/w"])
def test_warehouse_is_normalized(warehouse: str) -> None:
    catalog = build("jdbc:sqlite:/data/catalog.db", warehouse=warehouse)

    assert catalog.spark_settings()["warehouse"] == "file:///data/w"


def test_embedded_catalog_is_a_file_in_its_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    catalog = embedded(Path("lake"))

    assert catalog.name == "lake"
    assert catalog.identity() == "jdbc sqlite lake/catalog.db"
    assert catalog.spark_settings()["warehouse"] == f"file://{tmp_path}/lake"
    assert list(tmp_path.iterdir()) == [], "building a catalog touches nothing"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("oracle:thin:@db", "must begin with sqlite:, postgresql:, mysql: or mariadb:"),
        ("jdbc:sqlite:", "names no file; for a catalog without one, use `type: memory`"),
        ("jdbc:sqlite::memory:", "names no file; for a catalog without one, use `type: memory`"),
        (
            "postgresql://me:secret@db/meta",
            "contains a user or password; set them as `user` and `password`",
        ),
        (
            "jdbc:postgresql://db/meta?password=secret",
            "contains a user or password; set them as `user` and `password`",
        ),
        ("jdbc:postgresql://db:port/meta", "has an invalid port"),
        (
            "jdbc:postgresql://db",
            "lacks a host or a database; write postgresql://HOST:PORT/DATABASE",
        ),
        ("mysql://db", "lacks a host or a database; write mysql://HOST:PORT/DATABASE"),
        (
            "mariadb://me:secret@db/meta",
            "contains a user or password; set them as `user` and `password`",
        ),
        (
            "postgresql://db/meta?sslpassword=secret",
            "contains `sslpassword`, but addresses are logged; remove it",
        ),
        (
            "mysql://db/meta?sslMode=trust&keyStorePassword=secret",
            "contains `keyStorePassword`, but addresses are logged; remove it",
        ),
        (
            "mysql://db/meta?Password=secret",
            "contains a user or password; set them as `user` and `password`",
        ),
        (
            "mysql://db/meta?useSSL=true",
            "contains `useSSL`; use `sslMode`, which Spark and Python both support",
        ),
        (
            "mysql://db/meta?sslMode=verify-full",
            "`sslMode=verify-full` needs `serverSslCert`, the path of a certificate",
        ),
        (
            "mysql://db/meta?sslMode=often",
            "`sslMode` must be disable, trust, verify-ca or verify-full",
        ),
    ],
)
def test_unusable_uri_is_refused_without_showing_it(uri: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(uri, warehouse="/w")

    (error,) = caught.value.errors()
    assert error["loc"] == ("jdbc", "uri")
    assert error["msg"] == f"Value error, {message}"
    assert "secret" not in str(caught.value)


def test_postgresql_without_warehouse_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        build("postgresql://db/meta")

    assert str(caught.value) == (
        "catalog 'lake' (postgresql db:5432/meta): no warehouse is set\n"
        "  Add e.g. `warehouse: s3://bucket/lake`, the folder or URI under which tables are "
        "created."
    )


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_mysql_settings_for_spark_and_pyiceberg(kind: str) -> None:
    catalog = build(f"jdbc:{kind}://db/meta", user="me", password=PASSWORD, warehouse="/w")

    settings = catalog.spark_settings()
    assert settings["uri"] == "jdbc:mariadb://db:3306/meta?connectTimeout=10000"
    assert settings["jdbc.user"] == "me"
    assert settings["jdbc.password"] == PASSWORD
    assert catalog.pyiceberg_properties()["uri"] == (
        "mysql+pymysql://me:p%40ss%2Fw%3Ard@db:3306/meta?charset=utf8mb4&connect_timeout=10"
    )
    assert catalog.jars() == (MARIADB,)
    assert catalog.identity() == f"jdbc {kind} db:3306/meta"
    assert PASSWORD not in repr(catalog.store)


@pytest.mark.parametrize(
    ("option", "parameter"),
    [
        ("disable", ""),
        ("trust", "&ssl_check_hostname=false"),
        ("REQUIRED", "&ssl_check_hostname=false"),
        ("verify-ca", "&ssl_check_hostname=false&ssl_ca=%2Fca.pem"),
        ("VERIFY_IDENTITY", "&ssl_check_hostname=true&ssl_ca=%2Fca.pem"),
    ],
)
def test_encryption_is_the_same_in_both_clients(option: str, parameter: str) -> None:
    uri = f"mysql://db/meta?sslMode={option}&serverSslCert=/ca.pem"
    catalog = build(uri, warehouse="/w")

    assert f"sslMode={option}&serverSslCert=%2Fca.pem" in catalog.spark_settings()["uri"]
    assert catalog.pyiceberg_properties()["uri"] == (
        f"mysql+pymysql://db:3306/meta?charset=utf8mb4&connect_timeout=10{parameter}"
    )


@pytest.mark.parametrize(
    ("code", "kind", "what"),
    [
        (1045, RefusedError, "the server refused user 'me': it says *** so"),
        (1142, RefusedError, "the server refused user 'me': it says *** so"),
        (1049, RefusedError, "no such database: it says *** so"),
        (2003, UnreachableError, "connection failed: it says *** so"),
    ],
)
def test_fault_of_mysql_is_explained(code: int, kind: type[Exception], what: str) -> None:
    store = build("mysql://db/meta", user="me", password=PASSWORD, warehouse="/w").store

    error = store.explain(Exception(code, f"it says {PASSWORD} so"), "catalog 'lake'")

    assert type(error) is kind
    assert error.what == what
    assert error.todo


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_unreadable_certificate_is_reported(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    uri = f"mysql://127.0.0.1:1/meta?sslMode=verify-ca&serverSslCert={path}"

    with pytest.raises(ConnectorError) as caught:
        build(uri, warehouse="/w").client()

    said, todo = str(caught.value).splitlines()
    assert said.startswith(
        f"catalog 'lake' (mysql 127.0.0.1:1/meta): the certificate {str(path)!r} cannot be read ("
    )
    assert todo == "  Check `serverSslCert` in `jdbc.uri`: it is the path of a PEM file."
