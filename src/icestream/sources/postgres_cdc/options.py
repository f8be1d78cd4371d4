"""Options of the PostgreSQL change source."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from icestream.contracts.options import Options

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


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
        description="Replication slot; named after the pipeline if absent.",
    )
    publication: str | None = Field(
        None, description="Publication; named after the pipeline if absent."
    )
    tables: tuple[str, ...] = Field((), description='Tables to follow, e.g. `["public.*"]`.')
    snapshot: Literal["initial", "never", "only"] = Field(
        "initial", description="Whether the tables are read in full first."
    )
    snapshot_chunk_rows: int = Field(
        100_000, ge=1, description="Rows that one task of the first snapshot reads."
    )
    heartbeat_secs: float = Field(
        60, gt=0, description="How often the slot moves on while the tables are quiet."
    )
