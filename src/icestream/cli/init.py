"""`icestream init`: writes a configuration file that runs as it is."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import click

from icestream.cli.output import Printer, with_output_options
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence


URL_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.:-]*)://")
SCHEMES = ("postgres://", "postgresql://")
PASSWORD_VARIABLE = "POSTGRES_PASSWORD"  # noqa: S105 - a variable's name
CONNECT_TIMEOUT_SECS = 3
MAX_LISTED = 40
# Text that neither YAML nor `${...}` interpolation changes.
PLAIN_SCALAR = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]*$")
YAML_KEYWORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

# Partitions are left out: the changes of a partitioned table are read from its parent.
TABLES_SQL = """\
SELECT n.nspname, c.relname, c.relreplident = 'f',
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.position)
                 FROM pg_index AS i,
                      unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, position),
                      pg_attribute AS a
                 WHERE i.indrelid = c.oid AND i.indisprimary
                       AND a.attrelid = c.oid AND a.attnum = k.number), '{}')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
      AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY 1, 2"""


@dataclass(frozen=True)
class DatabaseAddress:
    """The parts of a database URL."""

    host: str
    port: int
    name: str
    user: str
    password: str | None = None
    sslmode: str | None = None


@dataclass(frozen=True)
class DatabaseTable:
    """A table of the database and its key."""

    schema: str
    name: str
    key: tuple[str, ...]
    has_full_identity: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class DatabaseListing:
    """The tables of a database, if it could be queried.

    Attributes:
        tables: its tables; None if the connection failed.
        reason: why it failed.
        needs_password: whether a password was given, or may be needed.
    """

    tables: tuple[DatabaseTable, ...] | None = None
    reason: str = ""
    needs_password: bool = True

    @property
    def schemas(self) -> list[str]:
        """Schemas to mirror: `public`, or every schema if that has no tables."""
        names = {table.schema for table in self.tables or ()}
        return ["public"] if not names or "public" in names else sorted(names)

    @property
    def mirrored_tables(self) -> tuple[DatabaseTable, ...] | None:
        """The tables that the file mirrors; None if the connection failed."""
        if self.tables is None:
            return None
        schemas = set(self.schemas)
        return tuple(table for table in self.tables if table.schema in schemas)

    @property
    def other_schemas(self) -> list[str] | None:
        """Schemas that the file does not mirror; None if the connection failed."""
        if self.tables is None:
            return None
        return sorted({table.schema for table in self.tables}.difference(self.schemas))


def is_address(text: str) -> bool:
    """Tell whether an argument is a PostgreSQL URL."""
    return text.startswith(SCHEMES)


def parse_address(text: str) -> DatabaseAddress:
    """Parse `postgres://user@host:5432/database`; missing parts get PostgreSQL's defaults.

    Raises:
        PlanError: the URL is invalid. The message does not contain the password.
    """
    try:
        parts = urlsplit(text)
        port = parts.port or 5432
    except ValueError:
        raise _invalid_address("invalid host or port") from None
    extra = dict(parse_qsl(parts.query))
    sslmode = extra.pop("sslmode", None)
    if extra:
        raise _invalid_address(f"unsupported parameter {min(extra)!r}")
    if not parts.hostname:
        raise _invalid_address("the host is missing")
    user = unquote(parts.username or "postgres")
    return DatabaseAddress(
        host=parts.hostname,
        port=port,
        name=unquote(parts.path.strip("/")) or user,
        user=user,
        password=unquote(parts.password) if parts.password else None,
        sslmode=sslmode,
    )


def list_database(database: DatabaseAddress) -> DatabaseListing:
    """List the tables of the database; a failure becomes the `reason` of the result."""
    try:
        import psycopg
    except ImportError:
        return DatabaseListing(reason="the package psycopg is not installed")
    password = database.password or os.environ.get(PASSWORD_VARIABLE)
    try:
        with psycopg.connect(
            host=database.host,
            port=database.port,
            dbname=database.name,
            user=database.user,
            password=password,
            sslmode=database.sslmode or "prefer",
            connect_timeout=CONNECT_TIMEOUT_SECS,
        ) as connection:
            rows = connection.execute(TABLES_SQL).fetchall()
    except psycopg.Error as exc:
        return DatabaseListing(reason=_error_reason(exc, password))
    tables = tuple(
        DatabaseTable(schema, name, tuple(key), full) for schema, name, full, key in rows
    )
    return DatabaseListing(tables, needs_password=password is not None)


def mirror_config(database: DatabaseAddress, look: DatabaseListing, schema_name: str) -> str:
    """Return a configuration file that mirrors the database into the embedded lake."""
    name = re.sub(r"[^a-z0-9_]+", "_", database.name.lower()).strip("_")
    if not re.match("[a-z]", name) or name in YAML_KEYWORDS:
        name = f"db_{name}".rstrip("_")
    connection = {
        "host": yaml_scalar(database.host),
        "port": str(database.port),
        "database": yaml_scalar(database.name),
        "user": yaml_scalar(database.user),
    }
    if look.needs_password:
        connection["password"] = (
            f"${{{PASSWORD_VARIABLE}}}       # read from the environment, not stored here"
        )
    if database.sslmode:
        connection["sslmode"] = yaml_scalar(database.sslmode)
    patterns = [f"{schema}.*" for schema in look.schemas]
    connection["tables"] = json.dumps(patterns, ensure_ascii=False)
    lines = [
        f"# yaml-language-server: $schema={schema_name}",
        f"# $schema: {schema_name}",
        "#",
        "# icestream check    tests the connection and what replication needs",
        "# icestream run      copies the tables, then streams every change; Ctrl-C stops it",
        "# icestream verify   compares each table on both sides",
        'version: "1.0"',
        "",
        "sources:",
        f"  {name}:",
        "    connector: postgres-cdc",
        "    config:",
        *(f"      {key}: {value}" for key, value in connection.items()),
        *(f"      # {line}".rstrip() for line in _table_comments(look)),
        "",
        "sinks:",
        "  lake:",
        "    connector: iceberg      # no catalog given: the embedded one, in ./lake",
        "",
        "pipelines:",
        f"  {name}: {{source: {name}, sink: lake}}",
    ]
    return "\n".join(lines) + "\n"


def _table_comments(look: DatabaseListing) -> list[str]:
    """Return comment lines that list the mirrored tables."""
    tables = look.mirrored_tables
    if tables is None:
        return []
    if not tables:
        return ["The database had no tables when this file was written."]
    width = max(len(table.full_name) for table in tables[:MAX_LISTED])
    more = len(tables) - MAX_LISTED
    return [
        "Tables when this file was written:",
        *(f"  {printable(t.full_name):<{width}}  {_key_comment(t)}" for t in tables[:MAX_LISTED]),
        *([f"  and {more} more"] if more > 0 else []),
        *_other_schemas_comment(look.other_schemas or []),
    ]


def _other_schemas_comment(schemas: Sequence[str]) -> list[str]:
    if not schemas:
        return []
    more = len(schemas) - MAX_LISTED
    named = ", ".join([*schemas[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])
    pattern = json.dumps(f"{schemas[0]}.*", ensure_ascii=False)
    comment = f"Schemas not mirrored: {named}. To mirror one, add e.g. {pattern} to `tables`."
    return [printable(comment)]


def _key_comment(table: DatabaseTable) -> str:
    if table.key:
        return f"key: {printable(', '.join(table.key))}"
    if table.has_full_identity:
        return "no key: rows are matched on all columns (replica identity full)"
    return "no key: inserts are mirrored, updates and deletes are not"


def yaml_scalar(text: str) -> str:
    """Quote a text so that YAML and variable interpolation read it back unchanged."""
    if PLAIN_SCALAR.match(text) and text.lower() not in YAML_KEYWORDS:
        return text
    return json.dumps(text.replace("$", "$$"))


def printable(text: str) -> str:
    """Replace unprintable characters: a line break would end the comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _error_reason(exc: Exception, password: str | None) -> str:
    from icestream.contracts.secrets import hide

    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    message = lines[0].rpartition("failed: ")[2] if lines else type(exc).__name__
    return hide(message.removeprefix("FATAL:").strip(), [password or ""])


def _invalid_address(why: str) -> PlanError:
    return PlanError(
        f"invalid database URL: {why}",
        where="init",
        todo="Use e.g. `postgres://user@host:5432/database`, with `?sslmode=require` if needed.",
    )


SCHEMA_NAME = "icestream.schema.json"
STARTER_CONFIG = f"""\
# yaml-language-server: $schema={SCHEMA_NAME}
# $schema: {SCHEMA_NAME}
#
# icestream check   validates this file and tests its connections
# icestream plan    shows what a run would create and change
# icestream run     runs the pipelines; Ctrl-C stops after the current batch
version: "1.0"

sources:
  shop:
    connector: datagen            # generated events of a web shop; needs no server
    config:
      rows_per_second: 100

  # To read from Kafka instead, use this source in `pipelines` below.
  # orders:
  #   connector: kafka
  #   config:
  #     brokers: [localhost:9092]
  #     topics: [orders]
  #     format: json
  #     starting: earliest

sinks:
  lake:
    connector: iceberg            # no catalog given: the embedded one, in ./lake
    config:
      namespace: demo
      table: shop_events          # created if missing, with the stream's columns
      partitioning: ["days(event_time)"]
      batch_size: 10000           # commit when this many rows are waiting,
      flush_interval_secs: 10     # or when the oldest has waited this long

pipelines:
  shop:
    source: shop
    sink: lake
    # transforms:
    #   - filter: "event_type = 'purchase'"
"""


@click.command("init", short_help="Write a starter configuration file.")
@click.argument(
    "what",
    metavar="[PATH | postgres://USER@HOST/DB | kafka://BROKER/TOPIC]",
    default="icestream.yaml",
)
@click.argument("path", metavar="[PATH]", type=click.Path(path_type=Path), required=False)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@with_output_options
def command(printer: Printer, what: str, path: Path | None, *, force: bool) -> int:
    """Write a starter configuration file to PATH (icestream.yaml), and its JSON Schema for editors.

    PATH may be a folder. The file runs as it is: generated events into an embedded Iceberg lake.

    With a PostgreSQL URL, the file mirrors that database: `icestream init
    postgres://user@host:5432/shop`. If the server can be reached, the file lists its tables and
    their keys in a comment. The password is never written.

    With a Kafka URL, the file reads those topics: `icestream init kafka://host:9092/orders`. Their
    first records are sampled for the format and the columns.
    """
    if is_address(what):
        return _init_mirror(printer, what, path or Path("icestream.yaml"), force=force)
    if what.startswith("kafka://"):
        return _init_topics(printer, what, path or Path("icestream.yaml"), force=force)
    scheme = URL_SCHEME.match(what)
    if scheme is not None:
        raise _unsupported_scheme(scheme[1])
    if path is not None:
        raise click.UsageError(
            f"{what!r} is not a PostgreSQL or Kafka URL; unexpected argument {str(path)!r}"
        )
    path = _write_config(Path(what), STARTER_CONFIG, force=force)
    printer.print_result(_document(path), _next_steps(path))
    return 0


def _init_mirror(printer: Printer, address: str, path: Path, *, force: bool) -> int:
    database = parse_address(address)
    if not force:
        _refuse_existing(_config_path(path))
    look = list_database(database)
    path = _write_config(path, mirror_config(database, look, SCHEMA_NAME), force=force)
    tables = (
        None
        if look.mirrored_tables is None
        else [table.full_name for table in look.mirrored_tables]
    )
    text = _next_steps(path)
    if look.needs_password:
        text += f"\nFirst: export {PASSWORD_VARIABLE}=... (the file does not contain the password)"
    listing = {"tables": tables, "other_schemas": look.other_schemas}
    printer.print_result({**_document(path), **listing}, text)
    if look.tables is None:
        printer.print_note(f"Could not list the tables of {database.name!r}: {look.reason}")
    return 0


def _init_topics(printer: Printer, address: str, path: Path, *, force: bool) -> int:
    from icestream.cli.init_kafka import parse_address, sample_topics, topics_config
    from icestream.contracts.packages import require_packages

    require_packages({"confluent_kafka": "icestream[kafka]"}, "init")
    parsed = parse_address(address)
    if not force:
        _refuse_existing(_config_path(path))
    samples = sample_topics(parsed)
    path = _write_config(path, topics_config(parsed, samples, SCHEMA_NAME), force=force)
    topics = [
        {
            "topic": sample.topic,
            "format": sample.format,
            "records": sample.records,
            "columns": None if sample.columns is None else sample.columns.names,
        }
        for sample in samples
    ]
    printer.print_result({**_document(path), "topics": topics}, _next_steps(path))
    for sample in samples:
        for note in sample.notes:
            printer.print_note(f"note: {note}")
    return 0


def _unsupported_scheme(scheme: str) -> PlanError:
    """Return the error for the URL of another system. It does not show the URL: see passwords."""
    from icestream.contracts.registry import alternative

    system = scheme.rpartition(":")[2].partition("+")[0]
    hint = alternative("sources", system)
    if "debezium" in hint:
        hint += "`icestream init kafka://BROKER/TOPIC` writes that file from Debezium's topics; "
        hint += "see docs/connectors/sources/debezium.md.\n"
    return PlanError(
        f"{scheme}:// is not a URL that init supports",
        where="init",
        todo=f"{hint}Use postgres://USER@HOST/DB, kafka://BROKER/TOPIC, or the path of a file.",
    )


def _config_path(path: Path) -> Path:
    return path / "icestream.yaml" if path.is_dir() else path


def _write_config(path: Path, text: str, *, force: bool) -> Path:
    """Write the file and its JSON Schema; return the path of the file."""
    path = _config_path(path)
    if not force:
        _refuse_existing(path)
    write_file(path, text, other="path")
    write_file(path.with_name(SCHEMA_NAME), _schema_text(), other="path")
    return path


def _document(path: Path) -> dict[str, Any]:
    return {"file": str(path), "json_schema": str(path.with_name(SCHEMA_NAME))}


def _next_steps(path: Path) -> str:
    named = "" if path == Path("icestream.yaml") else f" --config {path}"
    return (
        f"Wrote {path}, and {path.with_name(SCHEMA_NAME)} for your editor.\n"
        f"Next: icestream check{named}, then icestream run{named}"
    )


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise PlanError(
            "the file already exists",
            where=str(path),
            todo="Choose another path, or overwrite it with `--force`.",
        )


def _schema_text() -> str:
    from icestream.config.json_schema import json_schema

    return json.dumps(json_schema(lenient=True), indent=2) + "\n"


def write_file(path: Path, text: str, *, other: str) -> None:
    """Write a file and its folders; `other` names what to choose if that is not permitted."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PlanError(
            f"cannot write the file: {exc.strerror}",
            where=str(path),
            todo=f"Check the folder's permissions, or choose another {other}.",
        ) from exc
