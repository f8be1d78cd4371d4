"""`icestream init`: a starting file that runs as it is."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import click

from icestream.cli.output import Screen, with_screen
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence


SCHEMES = ("postgres://", "postgresql://")
VARIABLE = "POSTGRES_PASSWORD"
PATIENCE_SECS = 3
MOST_LISTED = 40
# Letters that YAML, and `${...}`, leave alone wherever they stand.
PLAIN = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]*$")
WORDS_OF_YAML = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

# A part of a partitioned table is no table of its own here: its parent has the rows.
TABLES = """\
SELECT n.nspname, c.relname, c.relreplident = 'f',
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.place)
                 FROM pg_index AS i,
                      unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place),
                      pg_attribute AS a
                 WHERE i.indrelid = c.oid AND i.indisprimary
                       AND a.attrelid = c.oid AND a.attnum = k.number), '{}')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
      AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY 1, 2"""


@dataclass(frozen=True)
class Database:
    """Where a database is, as its address says."""

    host: str
    port: int
    name: str
    user: str
    password: str | None = None
    sslmode: str | None = None


@dataclass(frozen=True)
class FoundTable:
    """A table of the database, and what tells its rows apart."""

    schema: str
    name: str
    key: tuple[str, ...]
    has_full_identity: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Look:
    """What a look into the database gave.

    Attributes:
        tables: its tables; None if nobody answered.
        reason: why there are none.
        needs_password: whether a password was given, or may be needed.
    """

    tables: tuple[FoundTable, ...] | None = None
    reason: str = ""
    needs_password: bool = True

    @property
    def schemas(self) -> list[str]:
        """Schemas that the file takes: `public`, and others only where that has no tables."""
        found = {table.schema for table in self.tables or ()}
        return ["public"] if not found or "public" in found else sorted(found)

    @property
    def taken(self) -> tuple[FoundTable, ...] | None:
        """The tables that the file mirrors; None if nobody answered."""
        if self.tables is None:
            return None
        schemas = set(self.schemas)
        return tuple(table for table in self.tables if table.schema in schemas)

    @property
    def other_schemas(self) -> list[str] | None:
        """Schemas whose tables the file leaves out; None if nobody answered."""
        if self.tables is None:
            return None
        return sorted({table.schema for table in self.tables}.difference(self.schemas))


def is_address(text: str) -> bool:
    """Tell whether an argument is the address of a PostgreSQL database."""
    return text.startswith(SCHEMES)


def read_address(text: str) -> Database:
    """Return the parts of `postgres://user@host:5432/database`; what is absent is PostgreSQL's own.

    Raises:
        PlanError: it is no such address. The message has no password in it.
    """
    try:
        parts = urlsplit(text)
        port = parts.port or 5432
    except ValueError:
        raise _no_address("its host or its port cannot be") from None
    extra = dict(parse_qsl(parts.query))
    sslmode = extra.pop("sslmode", None)
    if extra:
        raise _no_address(f"the file has no key for its parameter {min(extra)!r}")
    if not parts.hostname:
        raise _no_address("it has no host")
    user = unquote(parts.username or "postgres")
    return Database(
        host=parts.hostname,
        port=port,
        name=unquote(parts.path.strip("/")) or user,
        user=user,
        password=unquote(parts.password) if parts.password else None,
        sslmode=sslmode,
    )


def look_into(database: Database) -> Look:
    """Ask the database for its tables; whatever stands in the way is no more than a reason."""
    try:
        import psycopg
    except ImportError:
        return Look(reason="the package psycopg is not installed")
    password = database.password or os.environ.get(VARIABLE)
    try:
        with psycopg.connect(
            host=database.host,
            port=database.port,
            dbname=database.name,
            user=database.user,
            password=password,
            sslmode=database.sslmode or "prefer",
            connect_timeout=PATIENCE_SECS,
        ) as connection:
            rows = connection.execute(TABLES).fetchall()
    except psycopg.Error as exc:
        return Look(reason=_reason(exc, password))
    tables = tuple(FoundTable(schema, name, tuple(key), full) for schema, name, full, key in rows)
    return Look(tables, needs_password=password is not None)


def starting_file(database: Database, look: Look, schema_name: str) -> str:
    """Return the file: a source with a connection and a pattern, a sink, and a pipeline."""
    name = re.sub(r"[^a-z0-9_]+", "_", database.name.lower()).strip("_")
    if not re.match("[a-z]", name) or name in WORDS_OF_YAML:
        name = f"db_{name}".rstrip("_")
    connection = {
        "host": _scalar(database.host),
        "port": str(database.port),
        "database": _scalar(database.name),
        "user": _scalar(database.user),
    }
    if look.needs_password:
        connection["password"] = f"${{{VARIABLE}}}       # read from the environment, not kept here"
    if database.sslmode:
        connection["sslmode"] = _scalar(database.sslmode)
    patterns = [f"{schema}.*" for schema in look.schemas]
    connection["tables"] = json.dumps(patterns, ensure_ascii=False)
    lines = [
        f"# yaml-language-server: $schema={schema_name}",
        f"# $schema: {schema_name}",
        "#",
        "# icestream check    can the database be followed? Says what it lacks.",
        "# icestream run      first the tables as they are, then every change; Ctrl-C stops it",
        "# icestream verify   is each table the same on both sides?",
        'version: "1.0"',
        "",
        "sources:",
        f"  {name}:",
        "    connector: postgres-cdc",
        "    config:",
        *(f"      {key}: {value}" for key, value in connection.items()),
        *(f"      # {line}".rstrip() for line in _told(look)),
        "",
        "sinks:",
        "  lake:",
        "    connector: iceberg      # no catalog is named: the embedded one, in ./lake",
        "",
        "pipelines:",
        f"  {name}: {{source: {name}, sink: lake}}",
    ]
    return "\n".join(lines) + "\n"


def _told(look: Look) -> list[str]:
    """Return what the file says of the tables that were found."""
    tables = look.taken
    if tables is None:
        return []
    if not tables:
        return ["There were no tables yet when this file was written."]
    width = max(len(table.full_name) for table in tables[:MOST_LISTED])
    more = len(tables) - MOST_LISTED
    return [
        "Found when this file was written:",
        *(f"  {_clean(t.full_name):<{width}}  {_key_told(t)}" for t in tables[:MOST_LISTED]),
        *([f"  and {more} more"] if more > 0 else []),
        *_others_told(look.other_schemas or []),
    ]


def _others_told(schemas: Sequence[str]) -> list[str]:
    if not schemas:
        return []
    more = len(schemas) - MOST_LISTED
    named = ", ".join([*schemas[:MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])
    pattern = json.dumps(f"{schemas[0]}.*", ensure_ascii=False)
    told = f"Not mirrored: the tables of {named}. To take those of a schema too, add e.g. {pattern}"
    return [_clean(f"{told} to `tables`.")]


def _key_told(table: FoundTable) -> str:
    if table.key:
        return f"key: {_clean(', '.join(table.key))}"
    if table.has_full_identity:
        return "no key: rows are told apart by all their values (replica identity full)"
    return "no key: new rows are followed, updates and deletes are not"


def _scalar(text: str) -> str:
    """Return a text as YAML, and the filling in of variables, read it back."""
    if PLAIN.match(text) and text.lower() not in WORDS_OF_YAML:
        return text
    return json.dumps(text.replace("$", "$$"))


def _clean(text: str) -> str:
    """Return a name that may stand in a comment: a line break would end it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _reason(exc: Exception, password: str | None) -> str:
    from icestream.contracts.secrets import hide

    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    said = lines[0].rpartition("failed: ")[2] if lines else type(exc).__name__
    return hide(said.removeprefix("FATAL:").strip(), [password or ""])


def _no_address(why: str) -> PlanError:
    return PlanError(
        f"the address of the database can't be used: {why}",
        where="init",
        todo="Write e.g. `postgres://user@host:5432/database`, with `?sslmode=require` if needed.",
    )


SCHEMA_NAME = "icestream.schema.json"
STARTING_FILE = f"""\
# yaml-language-server: $schema={SCHEMA_NAME}
# $schema: {SCHEMA_NAME}
#
# icestream check   is everything in here right, and within reach?
# icestream plan    what would a run create and change?
# icestream run     let it flow; Ctrl-C stops it after the batch in hand
version: "1.0"

sources:
  shop:
    connector: datagen            # made-up events of a web shop: needs nothing else
    config:
      rows_per_second: 100

  # The same pipeline from Kafka: name this source below, in `pipelines`.
  # orders:
  #   connector: kafka
  #   config:
  #     brokers: [localhost:9092]
  #     topics: [orders]
  #     format: json
  #     starting: earliest

sinks:
  lake:
    connector: iceberg            # no catalog is named: the embedded one, in ./lake
    config:
      namespace: demo
      table: shop_events          # made when missing, with the columns of the stream
      partitioning: ["days(event_time)"]
      batch_size: 10000           # commit when this many rows wait,
      flush_interval_secs: 10     # or when the oldest has waited this long

pipelines:
  shop:
    source: shop
    sink: lake
    # transforms:
    #   - filter: "event_type = 'purchase'"
"""


@click.command("init", short_help="Write a starting file.")
@click.argument("what", metavar="[PATH | postgres://USER@HOST/DB]", default="icestream.yaml")
@click.argument("path", metavar="[PATH]", type=click.Path(path_type=Path), required=False)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@with_screen
def command(screen: Screen, what: str, path: Path | None, *, force: bool) -> int:
    """Write a starting file to PATH (icestream.yaml), and its JSON Schema for editors beside it.

    PATH may be a folder. The file runs as it is: made-up events into an embedded Iceberg lake.

    With the address of a PostgreSQL database it mirrors that one: `icestream init
    postgres://user@host:5432/shop`. If the server answers, its tables and their keys are noted in
    the file. A password is never written.
    """
    if is_address(what):
        return _mirror(screen, what, path or Path("icestream.yaml"), force=force)
    if path is not None:
        raise click.UsageError(f"{what!r} is no address of a database, and {str(path)!r} is left")
    path = _write_both(Path(what), STARTING_FILE, force=force)
    screen.show(_document(path), _written(path))
    return 0


def _mirror(screen: Screen, address: str, path: Path, *, force: bool) -> int:
    database = read_address(address)
    if not force:
        _refuse_existing(_file_of(path))
    look = look_into(database)
    path = _write_both(path, starting_file(database, look, SCHEMA_NAME), force=force)
    tables = None if look.taken is None else [table.full_name for table in look.taken]
    text = _written(path)
    if look.needs_password:
        text += f"\nFirst: export {VARIABLE}=...; the password is not in the file."
    told = {"tables": tables, "other_schemas": look.other_schemas}
    screen.show({**_document(path), **told}, text)
    if look.tables is None:
        screen.note(f"The tables of {database.name!r} are not noted in it: {look.reason}")
    return 0


def _file_of(path: Path) -> Path:
    return path / "icestream.yaml" if path.is_dir() else path


def _write_both(path: Path, text: str, *, force: bool) -> Path:
    """Write a file and its schema; return where the file is."""
    path = _file_of(path)
    if not force:
        _refuse_existing(path)
    _write(path, text)
    _write(path.with_name(SCHEMA_NAME), _schema_text())
    return path


def _document(path: Path) -> dict[str, Any]:
    return {"file": str(path), "json_schema": str(path.with_name(SCHEMA_NAME))}


def _written(path: Path) -> str:
    named = "" if path == Path("icestream.yaml") else f" --config {path}"
    return (
        f"Wrote {path}, and {path.with_name(SCHEMA_NAME)} for your editor.\n"
        f"Next: icestream check{named}, then icestream run{named}"
    )


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise PlanError(
            "the file exists already",
            where=str(path),
            todo="Name another one, or overwrite it with `--force`.",
        )


def _schema_text() -> str:
    from icestream.config.json_schema import json_schema

    return json.dumps(json_schema(lenient=True), indent=2) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PlanError(
            f"the file can't be written: {exc.strerror}",
            where=str(path),
            todo="Look at the folder's permissions, or name another one.",
        ) from exc
