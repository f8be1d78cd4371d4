"""Finds formats and their decoders by name, and reads the `schema` option."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from icestream.contracts import registry as plugins
from icestream.contracts.decoder import FormatSettings, GivenSchema
from icestream.errors import PlanError
from icestream.formats.ddl import parse_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import Decoder, Format
    from icestream.formats.schema_registry import RegistryOptions

    FormatName: TypeAlias = str
    LineFormatName: TypeAlias = str
else:
    # All installed formats, built-in or not, for validation, editors and the docs.
    FormatName = Literal[tuple(plugins.names("formats"))]
    # In files, `csv` has a header, and `parquet` and `avro` are container formats.
    ADDED = [name for name in plugins.names("formats") if not plugins.is_ours("formats", name)]
    LineFormatName = Literal[("json", "csv", "parquet", "avro", *ADDED)]


# Columns of `Records.extra`, which change decoders need in addition to a record's value.
RECORD_KEY = "record_key"
RECORD_TOPIC = "record_topic"


@cache
def find_format(name: str) -> Format:
    """Return a format by name, without loading any other.

    Raises:
        PlanError: no format of that name is installed.
        DependencyError: it is installed, but a package that it imports is not.
    """
    instance: Format = plugins.find("formats", name)()
    return instance


def read_schema(text: str) -> GivenSchema:
    """Read a schema: DDL, an Avro schema as JSON, or the path of a file with either.

    A path ends in `.ddl`, `.sql`, `.avsc` or `.json`.

    Raises:
        PlanError: there is no such file, or it holds no schema.
    """
    if text.strip().endswith((".ddl", ".sql", ".avsc", ".json")):
        path = Path(text.strip())
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror.lower() if isinstance(exc, OSError) and exc.strerror else "not text"
            raise PlanError(f"file {str(path)!r} can't be read: {why}", where="schema") from exc
    if not text.lstrip().startswith("{"):
        return GivenSchema(parse_ddl(text))
    try:
        avro = json.loads(text)
    except ValueError as exc:
        raise PlanError(f"the Avro schema is not JSON: {exc}", where="schema") from exc
    return GivenSchema(_avro_columns(avro), avro)


def _avro_columns(schema: Any) -> pa.Schema:
    from icestream.formats.avro_types import AvroFields

    try:
        return AvroFields(schema).columns
    except (KeyError, TypeError, AttributeError) as exc:
        raise PlanError(f"the Avro schema is incomplete: {exc}", where="schema") from exc


def make_decoder(
    name: str,
    *,
    schema: GivenSchema | None = None,
    registry: RegistryOptions | None = None,
    subjects: tuple[str, ...] = (),
) -> Decoder:
    """Return the decoder of a format. Touches no network.

    Args:
        name: the format.
        schema: the `schema` option, parsed.
        registry: a schema registry, for Avro.
        subjects: the registry's subjects that define the columns, such as `orders-value`.

    Raises:
        PlanError: the format needs a schema and none is given, or it decodes changes, not rows.
    """
    settings = FormatSettings(schema=schema, registry=registry, subjects=subjects)
    return find_format(name).decoder(settings)


def make_change_decoder(
    name: str,
    *,
    registry: RegistryOptions | None = None,
    placeholder: str,
    unrepresentable: Literal["fail", "null"],
) -> ChangeDecoder | None:
    """Return the decoder of a format of changes; None for a format of rows.

    Args:
        name: the format.
        registry: a schema registry, for Avro.
        placeholder: what the connector writes for a large value that did not change.
        unrepresentable: what happens to values that no table can hold.

    Raises:
        PlanError: the format needs a registry and none is given.
    """
    settings = FormatSettings(
        registry=registry, unavailable_value=placeholder, unrepresentable=unrepresentable
    )
    return find_format(name).change_decoder(settings)
