"""Stand-ins for connectors that a file names and this version does not have.

They let `plan` show the whole file; `run` and `check` refuse it before any of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from icestream.contracts.catalog import Abilities, Catalog
from icestream.contracts.options import Options
from icestream.contracts.source import Source
from icestream.contracts.transform import Transform
from icestream.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyspark.sql import DataFrame

    from icestream.contracts.decoder import Records
    from icestream.contracts.offset import Position
    from icestream.contracts.source import Split


def _refuse(kind: str) -> NoReturn:
    raise UnavailableError(f"{kind!r} is not available in this version")


class UnbuiltSource(Source[Options]):
    """A source that is not available in this version."""

    options_type = Options

    def __init__(self, kind: str, options: Options) -> None:
        super().__init__(options)
        self.kind = kind

    def identity(self) -> str:
        return self.kind

    def first(self) -> Position:
        _refuse(self.kind)

    def newest(self, current: Position) -> Position:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def rows_between(self, start: Position, end: Position) -> int:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def cap(self, start: Position, end: Position, max_rows: int) -> Position:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def splits(self, start: Position, end: Position, slots: int) -> list[Split]:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:  # noqa: ARG002 - the contract's
        _refuse(self.kind)


class UnbuiltTransform(Transform[Options]):
    """A transform that is not available in this version."""

    options_type = Options

    def __init__(self, kind: str, options: Options) -> None:
        super().__init__(options)
        self.kind = kind

    def apply(self, rows: DataFrame) -> DataFrame:  # noqa: ARG002 - the contract's
        _refuse(self.kind)


class UnbuiltCatalog(Catalog[Options]):
    """A catalog that is not available in this version."""

    options_type = Options
    abilities = Abilities(nested_namespaces=True)

    def __init__(self, kind: str, name: str, options: Options) -> None:
        super().__init__(name, options)
        self.kind = kind

    def identity(self) -> str:
        return self.kind

    def jars(self) -> tuple[str, ...]:
        return ()

    def spark_settings(self) -> dict[str, str]:
        return {}

    def pyiceberg_properties(self) -> dict[str, str]:
        return {}

    def client(self) -> PyIcebergCatalog:
        _refuse(self.kind)
