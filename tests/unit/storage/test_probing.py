"""The steps that try a store, against folders whose reader is at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icestream.errors import ConnectorError, IcestreamError
from icestream.storage.local import LocalStorage
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.faults import CheckStep


class UnreadableIO(PyArrowFileIO):
    """Writes, lists and removes, and reads nothing."""

    def new_input(self, location: str) -> Any:
        raise OSError(f"no right to read {location}")


class GarblingIO(PyArrowFileIO):
    """Reads something else than was written."""

    def new_input(self, location: str) -> Any:
        with self.new_output(location).create(overwrite=True) as stream:
            stream.write(b"other")
        return super().new_input(location)


class UndeletableIO(UnreadableIO):
    """Does not remove either."""

    def delete(self, location: Any) -> None:
        raise OSError(f"no right to remove {location}")


class Store(LocalStorage):
    def __init__(self, reader: type[PyArrowFileIO] = PyArrowFileIO) -> None:
        self.reader = f"{reader.__module__}.{reader.__name__}"

    def pyiceberg_properties(self) -> dict[str, str]:
        return {"py-io-impl": self.reader}


def steps_of(store: Store, folder: Path) -> dict[str, CheckStep]:
    return {step.name: step for step in probe(store, folder.as_uri())}


def test_check_of_a_working_store_leaves_nothing_behind(tmp_path: Path) -> None:
    results = {name: step.run() for name, step in steps_of(Store(), tmp_path).items()}
    assert results["list store"] == tmp_path.as_uri()
    assert results["read it back"] == "18 bytes"
    assert results["remove it"] == "removed"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("reader", "what"),
    [
        (UnreadableIO, "the store answered: OSError: no right to read "),
        (GarblingIO, "18 bytes were written and 5 different bytes were read back"),
    ],
)
def test_object_that_cannot_be_read_back_is_removed(
    reader: type[PyArrowFileIO], what: str, tmp_path: Path
) -> None:
    steps = steps_of(Store(reader), tmp_path)
    steps["write an object"].run()
    assert len([*tmp_path.iterdir()]) == 1
    with pytest.raises(ConnectorError) as caught:
        steps["read it back"].run()
    assert caught.value.what.startswith(what)
    assert [*tmp_path.iterdir()] == []


def test_read_fault_is_reported_if_the_cleanup_fails_too(tmp_path: Path) -> None:
    steps = steps_of(Store(UndeletableIO), tmp_path)
    steps["write an object"].run()
    with pytest.raises(IcestreamError, match="no right to read"):
        steps["read it back"].run()
