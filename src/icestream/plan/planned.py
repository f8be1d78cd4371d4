"""Finds what a file names and this version does not have: accepted, shown, never ignored."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pydantic import BaseModel

from icestream.config.connectors import is_available
from icestream.contracts.catalog import Abilities, Catalog
from icestream.contracts.options import Options, yaml_key
from icestream.contracts.source import Source
from icestream.contracts.transform import Transform
from icestream.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pydantic.fields import FieldInfo
    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyspark.sql import DataFrame

    from icestream.config.model import Component, Config
    from icestream.config.yaml import KeyPath
    from icestream.contracts.decoder import Records
    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Split


SUPPORTED_SCHEMES = ("file", "sqlite", "postgres", "postgresql", "mysql", "mariadb")


class PlannedItem(NamedTuple):
    """Something that the file names and this version does not have.

    `whole` if the key itself is meant, whatever its value.
    """

    path: KeyPath
    name: str
    whole: bool = False


def find_planned(config: Config) -> list[PlannedItem]:
    """Return everything in the file that is not available yet, in the order of the file."""
    found = [
        *_in_components("catalogs", config.catalogs.values()),
        *_in_components("sources", config.sources.values()),
        *_in_components("sinks", config.sinks.values()),
        *_in_transforms(config),
        *_in_options(config.block, ()),
    ]
    return sorted(dict.fromkeys(found), key=lambda item: config.tree.position(item.path))


def _in_components(role: str, components: Iterable[Component]) -> Iterator[PlannedItem]:
    for component in components:
        if not is_available(role, component.connector):
            kind = (
                (*component.path, "type")
                if role == "catalogs"
                else (*component.path[:-1], "connector")
            )
            yield PlannedItem(kind, component.connector)
        yield from _in_options(component.options, component.path)
        if component.catalog is not None and not isinstance(component.catalog, str):
            yield from _in_components("catalogs", [component.catalog])


def _in_transforms(config: Config) -> Iterator[PlannedItem]:
    tables = (tables.values() for tables in config.table_transforms.values())
    for components in (*config.transforms.values(), *chain.from_iterable(tables)):
        for component in components:
            if component.is_whole and not is_available("transforms", component.connector):
                yield PlannedItem(component.path, component.connector, whole=True)


def _in_options(options: BaseModel, base: KeyPath) -> Iterator[PlannedItem]:
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        path = (*base, yaml_key(name, field))
        mark = _extra(field).get("planned")
        if mark is True:
            if name in options.model_fields_set and value != field.get_default(
                call_default_factory=True
            ):
                yield PlannedItem(path, name, whole=True)
            continue
        if isinstance(mark, list) and value in mark:
            yield PlannedItem(path, str(value))
        local = _extra(field).get("path") is True and not _extra(field).get("remote")
        if local and isinstance(value, str) and _unsupported_scheme(value):
            yield PlannedItem(path, _unsupported_scheme(value))
        yield from _nested(value, path)


def _nested(value: Any, path: KeyPath) -> Iterator[PlannedItem]:
    if isinstance(value, BaseModel):
        yield from _in_options(value, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _nested(item, (*path, key))


def _extra(field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def _unsupported_scheme(address: str) -> str:
    """Return the scheme of an address that this version cannot use, such as `s3a`."""
    scheme, colon, _ = address.removeprefix("jdbc:").partition(":")
    scheme = scheme.partition("+")[0].lower()
    # One letter is a drive of Windows, not a scheme.
    return "" if not colon or len(scheme) == 1 or scheme in SUPPORTED_SCHEMES else scheme


def _refuse(kind: str) -> NoReturn:
    raise UnavailableError(f"{kind!r} is not available in this version")


class UnavailableSource(Source[Options]):
    """A source that is not available in this version."""

    options_type = Options

    def __init__(self, kind: str, options: Options) -> None:
        super().__init__(options)
        self.kind = kind

    def identity(self) -> str:
        return self.kind

    def initial(self) -> Offset:
        _refuse(self.kind)

    def latest(self, current: Offset) -> Offset:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def rows_between(self, start: Offset, end: Offset) -> int:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:  # noqa: ARG002 - the contract's
        _refuse(self.kind)

    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:  # noqa: ARG002 - the contract's
        _refuse(self.kind)


class UnavailableTransform(Transform[Options]):
    """A transform that is not available in this version."""

    options_type = Options

    def __init__(self, kind: str, options: Options) -> None:
        super().__init__(options)
        self.kind = kind

    def apply(self, rows: DataFrame) -> DataFrame:  # noqa: ARG002 - the contract's
        _refuse(self.kind)


class UnavailableCatalog(Catalog[Options]):
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
