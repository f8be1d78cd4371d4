"""The conformance tests of every store, as a pytest class to subclass.

```python
class TestS3(StorageSuite):
    @pytest.fixture
    def storage(self, bucket: Bucket) -> Storage:
        return S3Storage(S3Options(endpoint=bucket.endpoint))

    @pytest.fixture
    def warehouse(self, bucket: Bucket) -> str:
        return f"s3://{bucket.name}/lake"
```
"""

# ruff: noqa: S101 - this is a test suite that happens to be shipped

from __future__ import annotations

import pickle
import uuid
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from icestream.contracts import registry
from icestream.contracts.storage import store_at
from icestream.testing.facts import ConformanceSuite, fact

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage


class StorageSuite(ConformanceSuite):
    """Proves that a store keeps its contract.

    A subclass defines the fixtures `storage`, a store that can be written to, and `warehouse`, a
    location in it.
    """

    @pytest.fixture
    def storage(self) -> Storage:
        """Return the store under test."""
        raise NotImplementedError("define the fixture `storage`")

    @pytest.fixture
    def warehouse(self) -> str:
        """Return a location in the store."""
        raise NotImplementedError("define the fixture `warehouse`")

    @fact("registered")
    def test_store_is_found_by_its_kind_and_schemes(self, storage: Storage) -> None:
        assert registry.find("storage", storage.kind) is type(storage)
        for scheme in storage.schemes:
            assert store_at(f"{scheme}://bucket/folder") is type(storage)

    @fact("covers")
    def test_store_covers_its_own_locations_only(self, storage: Storage, warehouse: str) -> None:
        assert storage.covers(warehouse)
        assert not storage.covers("unknown-scheme://bucket/folder")

    @fact("normalized")
    def test_normalized_location_stays_the_same(self, storage: Storage, warehouse: str) -> None:
        location = storage.normalize(warehouse)

        assert storage.normalize(location) == location
        assert storage.covers(location)
        assert not location.endswith("/")

    @fact("identity")
    def test_identity_is_one_line_without_secrets(self, storage: Storage) -> None:
        assert storage.identity() == storage.identity()
        assert len(storage.identity().splitlines()) == 1
        secrets = [
            value.get_secret_value()
            for _, value in getattr(storage, "options", ())
            if isinstance(value, SecretStr)
        ]
        assert not any(secret in storage.identity() for secret in secrets)
        for secret in secrets:
            assert secret not in storage.mask_secrets(f"refused: {secret}")

    @fact("jars")
    def test_jars_are_maven_coordinates(self, storage: Storage) -> None:
        assert all(len(jar.split(":")) == 3 for jar in storage.jars())

    @fact("settings")
    def test_settings_are_strings(self, storage: Storage) -> None:
        for settings in (
            storage.spark_settings(),
            storage.pyiceberg_properties(),
            storage.environment(),
        ):
            assert all(type(text) is str for pair in settings.items() for text in pair)

    @fact("files")
    def test_written_file_is_read_back(self, storage: Storage, warehouse: str) -> None:
        from pyiceberg.io import load_file_io

        path = f"{storage.normalize(warehouse)}/{uuid.uuid4().hex}.txt"
        io = load_file_io(storage.pyiceberg_properties(), path)

        with io.new_output(path).create() as stream:
            stream.write(b"rows")

        with io.new_input(path).open() as stream:
            assert stream.read() == b"rows"
        io.delete(path)
        assert not io.new_input(path).exists()

    @fact("pickled")
    def test_copy_in_another_process_is_the_same_store(self, storage: Storage) -> None:
        copy: Storage = pickle.loads(pickle.dumps(storage))  # noqa: S301 - our own bytes

        assert copy.identity() == storage.identity()
        assert copy.pyiceberg_properties() == storage.pyiceberg_properties()

    @fact("checked")
    def test_every_step_of_check_passes(self, storage: Storage, warehouse: str) -> None:
        details = {step.name: step.run() for step in storage.check(storage.normalize(warehouse))}

        assert details, "a store has at least one check"
        assert all(details.values())

    @fact("strange_faults")
    def test_fault_of_another_system_is_not_explained(self, storage: Storage) -> None:
        assert storage.explain("ZeroDivisionError: division by zero", "table n.t") is None
