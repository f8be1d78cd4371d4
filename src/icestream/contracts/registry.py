"""Finds plugins by name, through entry points: ours and third parties' alike."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from icestream.errors import DependencyError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROLES = ("sources", "transforms", "sinks", "catalogs", "formats", "storage")
OURS = "icestream"


_DEBEZIUM = "Read it through Debezium: `connector: kafka` with `format: debezium-json`. "
_POSTGRES = "Write `connector: postgres-cdc`. "
_KAFKA = "It speaks Kafka's protocol: write `connector: kafka`. "
_FILES = "Write `connector: files` with `format: {}`. "
_STORE_FILES = (
    "Write `connector: files` with a local or mounted folder; object stores are not read yet. "
)
_QUEUE = "Forward its records to a Kafka topic, or post them to `connector: webhook`. "
_DATABASE = "Export its rows to files for `connector: files`, or send them to Kafka. "
_ICEBERG = "Rows are written to Iceberg tables: write `connector: iceberg`. "
_STORE = "Write `connector: iceberg` with an `{}` block for the store. "
_CATALOG = "Write `connector: iceberg`, and name it as a catalog with `type: {}`. "
_REST = "It has a REST endpoint for Iceberg: write `type: rest` with `rest: {uri: ...}`. "
_JDBC = 'Write `type: jdbc` with `jdbc: {{uri: "{}"}}`. '

ALTERNATIVES: dict[str, dict[str, str]] = {
    "sources": {
        **dict.fromkeys(("mysql", "mariadb", "mysql-cdc"), _DEBEZIUM),
        "debezium": "Debezium writes to Kafka: `connector: kafka` with `format: debezium-json`. ",
        **dict.fromkeys(("postgres", "postgresql", "pg", "postgres_cdc", "pgoutput"), _POSTGRES),
        **dict.fromkeys(("redpanda", "confluent", "msk", "eventhubs", "warpstream"), _KAFKA),
        **{name: _FILES.format(name) for name in ("csv", "json", "parquet", "avro")},
        **dict.fromkeys(("file", "folder", "filesystem", "local"), _FILES.format("json")),
        **dict.fromkeys(("s3", "s3a", "minio", "gcs", "gs", "azure", "abfs"), _STORE_FILES),
        **dict.fromkeys(
            ("http", "https", "rest", "api", "webhooks"),
            "For events posted over HTTP, write `connector: webhook`. ",
        ),
        **dict.fromkeys(("kinesis", "pulsar", "rabbitmq", "nats", "mqtt", "sqs", "redis"), _QUEUE),
        **dict.fromkeys(("sql", "jdbc", "sqlite", "oracle", "sqlserver", "mssql"), _DATABASE),
        **dict.fromkeys(("mongodb", "dynamodb", "snowflake", "databricks"), _DATABASE),
        **dict.fromkeys(("bigquery", "delta", "hudi"), _DATABASE),
        **dict.fromkeys(("faker", "random", "generator", "demo"), "Write `connector: datagen`. "),
    },
    "sinks": {
        **dict.fromkeys(("delta", "hudi", "parquet", "avro", "csv", "json", "files"), _ICEBERG),
        **dict.fromkeys(("kafka", "webhook", "bigquery", "postgres", "postgresql"), _ICEBERG),
        **dict.fromkeys(("mysql", "mariadb", "sqlite"), _ICEBERG),
        **{name: _STORE.format(name) for name in ("s3", "gcs", "azure")},
        **dict.fromkeys(
            ("rest", "unity", "polaris", "snowflake", "databricks", "s3tables"),
            _CATALOG.format("rest"),
        ),
        **{name: _CATALOG.format(name) for name in ("glue", "hive", "nessie", "jdbc", "memory")},
    },
    "catalogs": {
        **dict.fromkeys(("unity", "databricks", "polaris", "snowflake", "lakekeeper"), _REST),
        **dict.fromkeys(("gravitino", "s3tables", "biglake", "http", "https"), _REST),
        **dict.fromkeys(
            ("sql", "sqlite", "hadoop", "file", "local", "embedded", "s3", "gcs", "azure"),
            _JDBC.format("jdbc:sqlite:lake/catalog.db")
            + "Sinks without a `catalog` have one like it. ",
        ),
        **dict.fromkeys(
            ("postgres", "postgresql", "pg"), _JDBC.format("jdbc:postgresql://HOST/DATABASE")
        ),
        **dict.fromkeys(("mysql", "mariadb"), _JDBC.format("jdbc:mysql://HOST/DATABASE")),
        **dict.fromkeys(("hms", "metastore", "thrift"), "Write `type: hive`. "),
        **dict.fromkeys(("aws", "dynamodb"), "Write `type: glue`. "),
    },
    "formats": {
        **dict.fromkeys(("jsonl", "ndjson", "jsonlines"), "Write `format: json`. "),
        **dict.fromkeys(("text", "txt", "plain"), "Write `format: string`. "),
        **dict.fromkeys(("raw", "binary", "protobuf", "proto"), "Write `format: bytes`. "),
        **dict.fromkeys(("debezium", "cdc"), "Write `format: debezium-json`, or `debezium-avro`. "),
        "confluent-avro": "Write `format: avro` with a `schema_registry` block. ",
    },
}
"""What to write instead of names that other tools have, by role."""


@cache
def _installed(role: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"icestream.{role}")}


def names(role: str) -> list[str]:
    """Return the names of every installed plugin of a role, sorted."""
    return sorted(_installed(role))


def modules(role: str) -> dict[str, str]:
    """Return where each plugin of a role is defined, `module:attribute` by name, loading none."""
    return {name: _installed(role)[name].value for name in names(role)}


def is_ours(role: str, name: str) -> bool:
    """Tell whether an installed plugin belongs to icestream itself."""
    return _installed(role)[name].module.partition(".")[0] == OURS


def find(role: str, name: str) -> Any:
    """Load the class of one plugin, and no other.

    Raises:
        PlanError: nothing of that name is installed.
        DependencyError: it is, but a package that it imports is not.
    """
    point = _installed(role).get(name)
    if point is None:
        raise PlanError(f"no {role.removesuffix('s')} is called {name!r}", todo=suggest(role, name))
    try:
        return point.load()
    except ModuleNotFoundError as exc:
        raise DependencyError(
            f"{role.removesuffix('s')} {name!r} needs the package {exc.name}, "
            "which is not installed",
            todo=_how_to_install(role, name, point),
        ) from exc


def _how_to_install(role: str, name: str, point: EntryPoint) -> str:
    if not is_ours(role, name):
        package = point.module if point.dist is None else point.dist.name
        return f"Install {package!r} again, together with the packages that it depends on."
    parts = name.split("-")
    offered = (point.dist.metadata.get_all("Provides-Extra") if point.dist else None) or ()
    # The extra of `postgres-cdc` is `postgres`, that of `debezium-avro` is `avro`.
    extra = next((part for part in parts if part in offered), parts[0])
    return f"pip install 'icestream[{extra}]'"


def suggest(role: str, name: str, planned: Iterable[str] = ()) -> str:
    """Return a hint for a name that is not installed; it may be a misspelt `planned` one."""
    installed = names(role)
    hint = alternative(role, name) or did_you_mean(name, [*installed, *planned])
    return f"{hint}Installed: {', '.join(installed) or 'none'}."


def alternative(role: str, name: str) -> str:
    """Return what to write instead of a name that other tools have, with a space after it."""
    return ALTERNATIVES.get(role, {}).get(name.lower(), "")


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return the closest of some names as a question with a space after it; empty if none is."""
    folded = {known.lower(): known for known in reversed(names)}
    close = get_close_matches(name.lower(), folded, n=1)
    return f"Did you mean {folded[close[0]]!r}? " if close else ""
