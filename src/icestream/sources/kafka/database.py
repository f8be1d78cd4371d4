"""The database that Debezium captures, as `icestream verify` connects to it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from icestream.contracts.options import Options

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
TimePrecision = Literal[
    "adaptive",
    "adaptive_time_microseconds",
    "connect",
    "isostring",
    "microseconds",
    "nanoseconds",
]
_PORTS = {"postgres": 5432, "mysql": 3306, "mariadb": 3306}


class DatabaseOptions(Options):
    """The database that Debezium captures. Only `icestream verify` connects to it."""

    type: Literal["postgres", "mysql", "mariadb"] = Field(description="Kind of the database.")
    host: str = Field(min_length=1, description="Host name of the server.")
    port: int | None = Field(
        None, ge=1, le=65_535, description="Port of the server; by default 5432 or 3306."
    )
    database: str | None = Field(
        None,
        min_length=1,
        description="Name of the PostgreSQL database. MySQL and MariaDB need none: their tables "
        "are named with their database.",
    )
    user: str = Field(min_length=1, description="User that may read the tables.")
    password: SecretStr | None = Field(None, description="Password of the user.")
    sslmode: SslMode = Field(
        "prefer", description="Whether to encrypt the connection, as in libpq."
    )
    time_precision_mode: TimePrecision = Field(
        "adaptive",
        description="The connector's `time.precision.mode`. With `connect`, columns with more than "
        "three fractional digits are not compared, since Debezium cuts them.",
    )

    @model_validator(mode="after")
    def _needs_a_database(self) -> DatabaseOptions:
        if self.type == "postgres" and self.database is None:
            raise ValueError("`type: postgres` needs `database`, the name of the database")
        return self

    @property
    def server_port(self) -> int:
        """The port, configured or the usual one."""
        return self.port or _PORTS[self.type]

    @property
    def cuts_fractions(self) -> bool:
        """Whether Debezium writes times in milliseconds only."""
        return self.time_precision_mode == "connect"
