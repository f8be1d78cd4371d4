"""Each catalog server of the tests, really used."""

from __future__ import annotations

import json
import socket
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from tests.fixtures.hive_metastore import HiveMetastore
    from tests.fixtures.nessie import Nessie
    from tests.fixtures.rest_catalog import RestCatalog
    from tests.fixtures.s3_store import S3Store


def _load(**properties: str) -> Catalog:
    from pyiceberg.catalog import load_catalog

    return load_catalog("services", **properties)


def _new_table(catalog: Catalog) -> tuple[str, str]:
    """Make a table with two rows in a namespace of its own, and return its name."""
    import pyarrow as pa

    name = (f"n_{uuid.uuid4().hex[:12]}", "t")
    rows = pa.table({"id": [1, 2]})
    catalog.create_namespace(name[0])
    catalog.create_table(name, rows.schema).append(rows)
    return name


def _ids(catalog: Catalog, name: tuple[str, str]) -> list[int]:
    found: list[int] = catalog.load_table(name).scan().to_arrow()["id"].to_pylist()
    return found


def _s3_properties(store: S3Store) -> dict[str, str]:
    return {
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": store.access_key_id,
        "s3.secret-access-key": store.secret_access_key,
        "s3.region": store.region,
        # Nessie names one that is not installed.
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }


@pytest.mark.parametrize("server", ["rest_catalog", "nessie"])
def test_catalog_server_listens_on_loopback_only(
    server: str, request: pytest.FixtureRequest
) -> None:
    port = request.getfixturevalue(server).port

    # Loopback too, and open only where a server listens on all interfaces.
    with socket.socket() as probe:
        probe.settimeout(5)
        assert probe.connect_ex(("127.0.0.2", port)) != 0


def test_rest_catalog_keeps_its_tables_after_a_kill(rest_catalog_own: RestCatalog) -> None:
    catalog = _load(type="rest", uri=rest_catalog_own.uri)
    name = _new_table(catalog)
    assert catalog.load_table(name).location().startswith(rest_catalog_own.warehouse)

    rest_catalog_own.kill()
    rest_catalog_own.start()

    assert _ids(_load(type="rest", uri=rest_catalog_own.uri), name) == [1, 2]


def test_rest_catalog_on_s3_keeps_its_tables_there(
    rest_catalog_on_s3: RestCatalog, s3_store: S3Store
) -> None:
    catalog = _load(type="rest", uri=rest_catalog_on_s3.uri, **_s3_properties(s3_store))

    name = _new_table(catalog)

    assert _ids(catalog, name) == [1, 2]
    assert catalog.load_table(name).location().startswith(rest_catalog_on_s3.warehouse)


def test_hive_metastore_keeps_its_tables_after_a_kill(hive_metastore_own: HiveMetastore) -> None:
    name = _new_table(_load(type="hive", uri=hive_metastore_own.uri))

    hive_metastore_own.kill()
    hive_metastore_own.start()

    catalog = _load(type="hive", uri=hive_metastore_own.uri)
    assert _ids(catalog, name) == [1, 2]
    place = hive_metastore_own.warehouse.replace("file:///", "file:/")
    assert catalog.load_table(name).location() == f"{place}/{name[0]}.db/{name[1]}"


def _nessie(server: Nessie, path: str, content: Any = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 - our own loopback address
        f"{server.uri}/{path}",
        data=None if content is None else json.dumps(content).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def test_nessie_keeps_its_branches_after_a_kill(nessie_own: Nessie) -> None:
    main = _nessie(nessie_own, "trees/main")["reference"]
    _nessie(nessie_own, "trees?name=side&type=BRANCH", main)

    nessie_own.kill()
    nessie_own.start()

    assert _nessie(nessie_own, "trees/side")["reference"] == {**main, "name": "side"}


def test_nessie_on_s3_is_a_rest_catalog(nessie_on_s3: Nessie, s3_store: S3Store) -> None:
    catalog = _load(type="rest", uri=nessie_on_s3.rest_uri, **_s3_properties(s3_store))

    assert _ids(catalog, _new_table(catalog)) == [1, 2]
