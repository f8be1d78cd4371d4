"""The public suite of stores, on folders of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.storage.local import LocalStorage
from icestream.testing.storage_suite import StorageSuite

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.storage import Storage


class TestLocalStorage(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return LocalStorage()

    @pytest.fixture
    def warehouse(self, tmp_path: Path) -> str:
        return f"{tmp_path}/lake/"
