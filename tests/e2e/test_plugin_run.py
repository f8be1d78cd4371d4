"""Plugins of third parties, from a file to rows in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from tests.fixtures.toy_plugins import WithPlugins, install

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources:
  numbers: {connector: count, config: {up_to: 1000}}
  notes: {connector: files, config: {path: notes, format: pairs}}
catalogs:
  shelf: {type: shelf, folder: shelf}
  remote: {type: shelf, folder: remote, toy: {mount: MOUNT, bucket: lake}}
sinks:
  a: {connector: iceberg, config: {catalog: shelf, namespace: n, table: a}}
  b: {connector: iceberg, config: {catalog: shelf, namespace: n, table: b}}
  c: {connector: iceberg, config: {catalog: remote, namespace: n, table: c}}
pipelines:
  numbers: {source: numbers, sink: a}
  notes: {source: notes, sink: b, transforms: [{shout: name}]}
  stored: {source: numbers, sink: c}
"""


def test_source_format_transform_and_catalog_of_third_parties_fill_tables(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    (tmp_path / "icestream.yaml").write_text(FILE.replace("MOUNT", str(mount)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("id=1;name=anna\nid=2;name=bo\n")

    plugged = WithPlugins(tmp_path, install(tmp_path / "plugins"))
    checked = plugged.run("check")
    done = plugged.run("run", "--once")

    assert checked.code == 0, checked.out + checked.err
    assert done.code == 0, done.err
    shelf = load_catalog(
        "shelf",
        type="sql",
        uri=f"sqlite:///{tmp_path}/shelf/shelf.db",
        warehouse=f"file://{tmp_path}/shelf",
    )
    numbers = shelf.load_table("n.a").scan().to_arrow()
    notes = shelf.load_table("n.b").scan().to_arrow()
    assert sorted(numbers["n"].to_pylist()) == list(range(1000))
    assert sorted(zip(notes["id"].to_pylist(), notes["name"].to_pylist(), strict=True)) == [
        ("1", "ANNA"),
        ("2", "BO"),
    ]

    stored = plugged.run(
        "query", "SELECT count(*) AS rows, max(n) AS last FROM remote.n.c", "--output", "json"
    )
    assert stored.code == 0, stored.err
    assert stored.document["rows"] == [{"rows": 1000, "last": 999}]
    paths = {path.suffix for path in (mount / "lake").rglob("*") if path.is_file()}
    assert {".parquet", ".avro", ".json"} <= paths
