from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icestream.catalogs.memory import MemoryCatalog, MemoryCatalogOptions
from icestream.errors import PlanError
from icestream.testing.catalog_suite import CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.catalog import Catalog


def build(**options: Any) -> MemoryCatalog:
    return MemoryCatalog("scratch", MemoryCatalogOptions.model_validate(options))


class TestMemoryCatalog(CatalogSuite):
    target = "memory"

    @pytest.fixture
    def catalog(self) -> Iterator[Catalog[Any]]:
        catalog = build()
        yield catalog
        catalog.close()


def test_two_memory_catalogs_share_nothing() -> None:
    one, other = build(), build()
    one.client().create_namespace("shop")

    assert other.client().list_namespaces() == []
    one.close()
    other.close()


def test_configured_warehouse_is_used(tmp_path: Path) -> None:
    assert build(warehouse=str(tmp_path)).spark_settings()["warehouse"] == f"file://{tmp_path}"


def test_memory_catalog_leaves_nothing_behind() -> None:
    script = """
from icestream.catalogs.memory import MemoryCatalog, MemoryCatalogOptions
catalog = MemoryCatalog("scratch", MemoryCatalogOptions.model_validate({}))
catalog.client().create_namespace("shop")
print(catalog.store.path.parent, catalog.store.path.exists())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    folder, existed = done.stdout.split()
    assert existed == "True"
    assert not Path(folder).exists()


def test_refused_catalog_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(PlanError, match="the storage block is `s3`, but the warehouse is"):
        build(s3={"region": "r"})
    assert [*tmp_path.iterdir()] == []
