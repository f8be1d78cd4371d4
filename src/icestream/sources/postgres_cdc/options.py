"""Options of the PostgreSQL CDC source."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from icestream.contracts.options import NULL_AS_TEXT, Options, text_form

SlotName = Annotated[
    str,
    text_form(
        "^[a-z0-9_]{1,63}$",
        "the name of a replication slot",
        "Use up to 63 lower-case letters, digits and `_`, e.g. `icestream_shop`.",
    ),
]

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
SyncMode = Literal["incremental", "full_refresh"]
Unrepresentable = Annotated[Literal["fail", "null", "text"], NULL_AS_TEXT]


class StreamOptions(Options):
    """One table, by name."""

    name: str = Field(min_length=1, description="Name of the table.")
    namespace: str = Field("public", min_length=1, description="Schema of the table.")
    sync_mode: SyncMode = Field(
        "incremental",
        description="`incremental` takes a snapshot of the table, then reads its changes; "
        "`full_refresh` reads the whole table at each start and replaces the previous rows.",
    )


class PostgresCdcOptions(Options):
    """Which database to replicate, and how to take the initial snapshot."""

    host: str = Field(min_length=1, description="Host name of the server.")
    port: int = Field(5432, ge=1, le=65_535, description="Port of the server.")
    database: str = Field(min_length=1, description="Name of the database.")
    user: str = Field(min_length=1, description="User with the REPLICATION attribute.")
    password: SecretStr | None = Field(None, description="Password of the user.")
    sslmode: SslMode = Field(
        "prefer", description="Whether to encrypt the connection, as in libpq."
    )
    slot_name: SlotName | None = Field(
        None,
        description="Replication slot, created if it does not exist. By default, the name is "
        "derived from the database and the tables. Pipelines must not share a slot.",
    )
    publication: str | None = Field(
        None,
        min_length=1,
        max_length=55,
        description="Publication, created if it does not exist. By default, named like the slot.",
    )
    tables: tuple[str, ...] = Field(
        (),
        description='Tables to replicate, e.g. `["public.*"]`, with the wildcards `*` and `?`. '
        "Without `tables` and `streams`, all tables of the schema `public`.",
    )
    streams: tuple[StreamOptions, ...] = Field(
        (), description="Tables to replicate, each with its own options, instead of `tables`."
    )
    snapshot: Literal["initial", "never", "only"] = Field(
        "initial",
        description="`initial` takes a snapshot of the tables, then reads changes; `never` reads "
        "changes only; `only` stops after the snapshot. `never` excludes `full_refresh`.",
    )
    snapshot_chunk_rows: int = Field(
        100_000,
        ge=1,
        description="Rows per task of a snapshot; more if that still gives every core a task.",
    )
    heartbeat_secs: float = Field(
        10,
        gt=0,
        description="How often to commit an empty batch while the tables are idle, to advance the "
        "slot; the pipeline's `flush_interval_secs` adds to it.",
    )

    unrepresentable: Unrepresentable = Field(
        "fail",
        description="What to do with a value that the Iceberg type cannot hold: `NaN` or an "
        "infinity of `numeric`, a date or timestamp that is infinite or outside the years 1 to "
        "9999, a multidimensional array. `fail` stops the pipeline and names the row, `null` "
        "stores a null and logs the count, `text` stores all columns of types with such values "
        "as strings.",
    )

    @field_validator("tables")
    @classmethod
    def _check_table_names(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in tables:
            schema, _, name = pattern.partition(".")
            if not schema or (not name and "." in pattern):
                raise ValueError(f"{pattern!r} is not a table name; write e.g. 'public.orders'")
        return tables

    @model_validator(mode="after")
    def _refuse_repeated_tables(self) -> PostgresCdcOptions:
        if self.tables and self.streams:
            raise ValueError("`tables` and `streams` exclude each other; keep one of them")
        named = [(stream.namespace, stream.name) for stream in self.streams]
        for table in named:
            if named.count(table) > 1:
                raise ValueError(f"`streams` names the table '{'.'.join(table)}' twice")
        return self

    @model_validator(mode="after")
    def _refuse_unread_tables(self) -> PostgresCdcOptions:
        for stream in self.streams:
            if self.snapshot == "never" and stream.sync_mode == "full_refresh":
                raise ValueError(
                    f"table '{stream.namespace}.{stream.name}' has `sync_mode: full_refresh`, and "
                    "`snapshot: never` would never read it; remove one of the two"
                )
        return self

    @property
    def patterns(self) -> tuple[tuple[str, str], ...]:
        """Schema and name of each entry of `tables`, which may contain wildcards."""
        if self.streams:
            return ()
        parts = (pattern.partition(".") for pattern in self.tables or ("public.*",))
        return tuple((head, tail) if dot else ("public", head) for head, dot, tail in parts)

    def mode_of(self, schema: str, name: str) -> SyncMode | None:
        """Return the `sync_mode` of a table; None if it is not configured."""
        for stream in self.streams:
            if (stream.namespace, stream.name) == (schema, name):
                return stream.sync_mode
        matches = any(
            fnmatchcase(schema, schema_pattern) and fnmatchcase(name, name_pattern)
            for schema_pattern, name_pattern in self.patterns
        )
        return "incremental" if matches else None

    @property
    def named_tables(self) -> tuple[tuple[str, str], ...]:
        """Tables that are named in full, and so must exist."""
        plain = (each for each in self.patterns if not set("*?[") & set("".join(each)))
        return (*plain, *((stream.namespace, stream.name) for stream in self.streams))

    @property
    def follows(self) -> bool:
        """Whether changes are read, which needs a publication and a slot."""
        modes = {stream.sync_mode for stream in self.streams} or {"incremental"}
        return self.snapshot != "only" and "incremental" in modes

    @property
    def slot(self) -> str:
        """The name of the slot, configured or derived."""
        if self.slot_name is not None:
            return self.slot_name
        named = sorted([*self.patterns, *((each.namespace, each.name) for each in self.streams)])
        key = "\n".join([self.database, *(".".join(each) for each in named)])
        return f"icestream_{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    @property
    def publication_name(self) -> str:
        """The name of the publication, configured or derived."""
        return self.publication or self.slot
