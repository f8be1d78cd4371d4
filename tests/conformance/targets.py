"""Every catalog and every store that the conformance suite is held against, each a real server."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Block = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A catalog with a store behind it.

    Attributes:
        name: as the table in the docs calls it.
        block: gives the catalog block of a file, asking for the servers that it needs.
        odd_table: a name that SQL must quote and that this catalog takes.
        keeps_races: whether the server refuses a commit on a table that moved on. What stands
            in for AWS Glue here does not, so writers take turns there.
    """

    name: str
    block: Callable[[Callable[[str], Any], Path], Block]
    odd_table: str = "it's a Größe-2"
    keeps_races: bool = True


def _sqlite(_: Callable[[str], Any], folder: Path) -> Block:
    return {"type": "jdbc", "jdbc": {"uri": f"jdbc:sqlite:{folder / 'catalog.db'}"}}


def _database(kind: str, fixture: str) -> Callable[[Callable[[str], Any], Path], Block]:
    def block(ask: Callable[[str], Any], folder: Path) -> Block:
        server = ask(fixture)
        uri = f"jdbc:{kind}://127.0.0.1:{server.port}/{server.new_database()}"
        jdbc = {"uri": uri, "user": server.user, "password": server.password}
        return {"type": "jdbc", "jdbc": jdbc, "warehouse": str(folder / "warehouse")}

    return block


def _memory(_: Callable[[str], Any], folder: Path) -> Block:
    return {"type": "memory", "warehouse": str(folder / "warehouse")}


def _rest(ask: Callable[[str], Any], _: Path) -> Block:
    return {"type": "rest", "rest": {"uri": ask("rest_catalog").uri}}


def _rest_with_token(ask: Callable[[str], Any], _: Path) -> Block:
    gateway = ask("oauth_gateway")
    properties = {"oauth2-server-uri": gateway.token_uri}
    rest = {"uri": gateway.uri, "credential": gateway.credential, "properties": properties}
    return {"type": "rest", "rest": rest}


def _s3_block(ask: Callable[[str], Any], server: str = "s3_store") -> Block:
    store = ask(server)
    return {
        "bucket": store.new_bucket(),
        "endpoint": store.endpoint,
        "region": store.region,
        "path_style_access": True,
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key,
    }


def _rest_on_s3(ask: Callable[[str], Any], _: Path) -> Block:
    return {
        "type": "rest",
        "rest": {"uri": ask("rest_catalog_on_s3").uri},
        "s3": _s3_block(ask),
    }


def _glue(ask: Callable[[str], Any], _: Path) -> Block:
    server = ask("glue_server")
    ask("aws_environment")
    glue = {"region": server.region, "endpoint": server.endpoint}
    return {"type": "glue", "glue": glue, "s3": _s3_block(ask)}


def _hive(ask: Callable[[str], Any], _: Path) -> Block:
    server = ask("hive_metastore")
    return {"type": "hive", "hive": {"uri": server.uri, "warehouse": server.warehouse}}


def _nessie(ask: Callable[[str], Any], _: Path) -> Block:
    server = ask("nessie")
    return {"type": "nessie", "nessie": {"uri": server.uri, "warehouse": server.warehouse}}


def _on_s3(ask: Callable[[str], Any], folder: Path) -> Block:
    return {**_sqlite(ask, folder), "s3": _s3_block(ask)}


def _on_gcs(ask: Callable[[str], Any], folder: Path) -> Block:
    store = ask("gcs_store")
    gcs = {"project_id": store.project, "bucket": store.new_bucket(), "endpoint": store.endpoint}
    return {**_sqlite(ask, folder), "gcs": gcs}


def _on_azure(ask: Callable[[str], Any], folder: Path) -> Block:
    store = ask("azure_store")
    azure = {
        "storage_account": store.account,
        "container": store.new_container(),
        "access_key": store.access_key,
        "endpoint": store.endpoint,
    }
    return {**_sqlite(ask, folder), "azure": azure}


def _on_hdfs(ask: Callable[[str], Any], folder: Path) -> Block:
    hdfs = ask("hdfs")
    warehouse = f"hdfs://{hdfs.address}/{uuid.uuid4().hex[:8]}"
    return {**_sqlite(ask, folder), "warehouse": warehouse, "hdfs": {"web": hdfs.web}}


TARGETS = (
    Target("jdbc, SQLite", _sqlite),
    Target("jdbc, PostgreSQL", _database("postgresql", "postgres")),
    Target("jdbc, MariaDB", _database("mariadb", "mariadb")),
    Target("memory", _memory),
    Target("rest", _rest),
    Target("rest, OAuth2", _rest_with_token),
    Target("rest, on S3", _rest_on_s3),
    Target("hive", _hive, odd_table="select"),
    Target("nessie", _nessie),
    Target("glue, on S3", _glue, odd_table="select", keeps_races=False),
    Target("jdbc, SQLite, on S3", _on_s3),
    Target("jdbc, SQLite, on GCS", _on_gcs),
    Target("jdbc, SQLite, on Azure", _on_azure),
    Target("jdbc, SQLite, on HDFS", _on_hdfs),
)
