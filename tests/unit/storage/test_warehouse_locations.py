"""A warehouse is in the store that the file configures, or the file is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import parse
from icestream.errors import ConfigError, PlanError
from icestream.plan import build
from icestream.storage.blocks import as_uri, storage_at

if TYPE_CHECKING:
    from pathlib import Path

EMBEDDED = """\
sources:
  shop: {connector: datagen, config: {rows: 1}}
sinks:
  lake:
    connector: iceberg
    config: {namespace: n, table: t, s3: {region: r}}
pipelines:
  p: {source: shop, sink: lake}
"""


def problem_of(text: str, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        build(parse(text, folder / "a.yaml"))
    return str(caught.value).replace(f"{folder}/", "")


def test_block_without_a_bucket_is_refused_on_the_embedded_catalog(tmp_path: Path) -> None:
    assert problem_of(EMBEDDED, tmp_path) == (
        "a.yaml:6:5 sinks.lake.config: the storage block is `s3`, but the warehouse is "
        f"'file://{tmp_path}/lake'\n"
        "  Give `s3.bucket`, or a `warehouse` that begins with s3://; or remove the block `s3`."
    ).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    "block",
    [
        "memory, warehouse: /data",
        "jdbc, jdbc: {uri: 'jdbc:sqlite:/data/c.db'}",
        "jdbc, jdbc: {uri: 'postgresql://h/d'}, warehouse: /data",
        "hive, hive: {uri: 'thrift://h:9083', warehouse: /data}",
        "nessie, nessie: {uri: 'http://h:19120', warehouse: /data}",
    ],
)
def test_block_of_another_store_than_the_warehouse_is_refused(block: str, tmp_path: Path) -> None:
    text = f"catalogs:\n  a: {{type: {block}, azure: {{storage_account: x}}}}\n"
    assert problem_of(text, tmp_path) == (
        "a.yaml:2:3 catalogs.a: the storage block is `azure`, but the warehouse is "
        "'file:///data'\n"
        "  Give `azure.container`, or a `warehouse` that begins with abfss://; or remove the "
        "block `azure`."
    )


@pytest.mark.parametrize("warehouse", ["ftp://name/lake", "ftp:///lake", "ftp:/lake"])
def test_unknown_scheme_is_not_a_folder(warehouse: str, tmp_path: Path) -> None:
    text = f"catalogs:\n  a: {{type: memory, warehouse: '{warehouse}'}}\n"
    assert problem_of(text, tmp_path) == (
        f"a.yaml:2:3 catalogs.a: the warehouse '{warehouse}' lies at ftp:, which is not "
        "supported\n"
        "  Name a folder, or an address that begins with abfss://, gs://, hdfs:// or s3://."
    )


@pytest.mark.parametrize("warehouse", ["/data", "C:/data", "file:///data", "", None])
def test_folder_is_local(warehouse: str | None) -> None:
    assert storage_at(warehouse).kind == "local"


def test_gcs_scheme_becomes_gs() -> None:
    assert as_uri("gcs://bucket/lake/") == "gs://bucket/lake"
    assert as_uri("GS://bucket") == "GS://bucket"


@pytest.mark.parametrize("warehouse", ["s3:///lake", "s3:/lake", "s3://"])
def test_address_without_a_bucket_is_refused(warehouse: str) -> None:
    with pytest.raises(PlanError) as caught:
        as_uri(warehouse)
    assert str(caught.value) == (
        f"the warehouse {warehouse!r} names no bucket\n  Write `warehouse: s3://BUCKET/FOLDER`."
    )
