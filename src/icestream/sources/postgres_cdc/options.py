"""Options of the PostgreSQL change source."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from icestream.contracts.options import NULL_AS_TEXT, Options

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
SyncMode = Literal["incremental", "full_refresh"]
Unrepresentable = Annotated[Literal["fail", "null", "text"], NULL_AS_TEXT]


class StreamOptions(Options):
    """One table, by its name."""

    name: str = Field(min_length=1, description="Name of the table.")
    namespace: str = Field("public", min_length=1, description="Schema that the table is in.")
    sync_mode: SyncMode = Field(
        "incremental",
        description="`incremental` reads the table once and then follows its changes; "
        "`full_refresh` reads it anew at each start and replaces what was there.",
    )


class PostgresCdcOptions(Options):
    """Which database to follow, and how its first snapshot is taken."""

    host: str = Field(min_length=1, description="Host of the server.")
    port: int = Field(5432, ge=1, le=65_535, description="Port of the server.")
    database: str = Field(min_length=1, description="Database.")
    user: str = Field(min_length=1, description="User with the REPLICATION attribute.")
    password: SecretStr | None = Field(None, description="Password of the user.")
    sslmode: SslMode = Field("prefer", description="Whether the connection is encrypted.")
    slot_name: str | None = Field(
        None,
        pattern="^[a-z0-9_]{1,63}$",
        description="Replication slot, made if it is not there. Without it the name comes from "
        "the database and the tables. Two pipelines never share one.",
    )
    publication: str | None = Field(
        None,
        min_length=1,
        max_length=55,
        description="Publication, made if it is not there. Without it the name is the slot's.",
    )
    tables: tuple[str, ...] = Field(
        (),
        description='Tables to follow, e.g. `["public.*"]`, where `*` and `?` stand for letters. '
        "Without `tables` and `streams`: every table of the schema `public`.",
    )
    streams: tuple[StreamOptions, ...] = Field(
        (), description="Tables to follow one by one, instead of `tables`."
    )
    snapshot: Literal["initial", "never", "only"] = Field(
        "initial",
        description="Whether the tables are read in full first (`initial`), not at all (`never`), "
        "or that is all there is to do (`only`). `never` can't go with `full_refresh`.",
    )
    snapshot_chunk_rows: int = Field(
        100_000,
        ge=1,
        description="Rows that a task of the first snapshot reads; more once all cores work.",
    )
    heartbeat_secs: float = Field(
        10,
        gt=0,
        description="After how long a batch without rows is planned while the tables are quiet, "
        "so that the slot moves on; the pipeline's `flush_interval_secs` comes on top.",
    )

    unrepresentable: Unrepresentable = Field(
        "fail",
        description="What to do with a value that the Iceberg type can't hold: `NaN` or an "
        "infinity of `numeric`, a date or timestamp that is infinite or outside the years 1 to "
        "9999, an array of several dimensions. `fail` stops the pipeline and names the row, "
        "`null` stores a null and counts it in the log, `text` stores all columns of types that "
        "have such values as strings.",
    )

    @field_validator("tables")
    @classmethod
    def _name_a_table_in_a_schema(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in tables:
            schema, _, name = pattern.partition(".")
            if not schema or (not name and "." in pattern):
                raise ValueError(f"{pattern!r} is no name of a table; write e.g. 'public.orders'")
        return tables

    @model_validator(mode="after")
    def _name_tables_once(self) -> PostgresCdcOptions:
        if self.tables and self.streams:
            raise ValueError("`tables` and `streams` say the same in two ways; keep one of them")
        named = [(stream.namespace, stream.name) for stream in self.streams]
        for table in named:
            if named.count(table) > 1:
                raise ValueError(f"`streams` names the table '{'.'.join(table)}' twice")
        return self

    @model_validator(mode="after")
    def _leave_no_table_unread(self) -> PostgresCdcOptions:
        for stream in self.streams:
            if self.snapshot == "never" and stream.sync_mode == "full_refresh":
                raise ValueError(
                    f"table '{stream.namespace}.{stream.name}' has `sync_mode: full_refresh`, and "
                    "with `snapshot: never` nothing of it would ever be read; take one of the two "
                    "out"
                )
        return self

    @property
    def patterns(self) -> tuple[tuple[str, str], ...]:
        """Schema and name of each table of `tables`, which may hold `*` and `?`."""
        if self.streams:
            return ()
        whole = (pattern.partition(".") for pattern in self.tables or ("public.*",))
        return tuple((head, tail) if dot else ("public", head) for head, dot, tail in whole)

    def mode_of(self, schema: str, name: str) -> SyncMode | None:
        """Return how a table is to be read; None if it is not asked for."""
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
        """Tables that are named in full, and so must be there."""
        plain = (each for each in self.patterns if not set("*?[") & set("".join(each)))
        return (*plain, *((stream.namespace, stream.name) for stream in self.streams))

    @property
    def follows(self) -> bool:
        """Whether changes are read, so that a publication and a slot are needed."""
        modes = {stream.sync_mode for stream in self.streams} or {"incremental"}
        return self.snapshot != "only" and "incremental" in modes

    @property
    def slot(self) -> str:
        """The slot's name, whether told or made up."""
        if self.slot_name is not None:
            return self.slot_name
        named = sorted([*self.patterns, *((each.namespace, each.name) for each in self.streams)])
        told = "\n".join([self.database, *(".".join(each) for each in named)])
        return f"icestream_{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    @property
    def publication_name(self) -> str:
        """The publication's name, whether told or made up."""
        return self.publication or self.slot
