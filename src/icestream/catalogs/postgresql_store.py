"""A SQL catalog in PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qsl, quote, urlencode

from icestream.catalogs.sql_store import CONNECT_SECS, ServerStore
from icestream.contracts.jars import POSTGRESQL
from icestream.contracts.secrets import hide
from icestream.errors import IcestreamError, RefusedError

# Names that PostgreSQL's Java driver and its C library share.
SHARED_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


@dataclass(frozen=True)
class PostgresqlStore(ServerStore):
    """A database of a PostgreSQL server."""

    jar: ClassVar[str] = POSTGRESQL
    extra: ClassVar[str] = "postgres"

    def describe(self) -> str:
        return f"postgresql {self.address}"

    def jdbc_settings(self) -> dict[str, str]:
        return self.to_java("postgresql", CONNECT_SECS)

    def sqlalchemy_uri(self) -> str:
        given = dict(parse_qsl(self.parameters))
        parameters = {name: given[name] for name in SHARED_PARAMETERS if name in given}
        parameters["connect_timeout"] = given.get("connectTimeout", str(CONNECT_SECS))
        if "currentSchema" in given:
            # Both sides must find the catalog's tables in the same schema.
            parameters["options"] = f"-csearch_path={given['currentSchema']}"
        return self.to_python("postgresql+psycopg", urlencode(parameters, quote_via=quote))

    def prepare(self, where: str) -> None:
        """Nothing: a server has been made ready by others."""

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        said = self._without_secret(str(getattr(fault, "orig", None) or fault))
        # A server that answered says so in the words of its protocol, or with an SQL state.
        state = getattr(getattr(fault, "orig", None), "sqlstate", None) or ""
        if state.startswith(("28", "42501")) or _is_refusal(said):
            return RefusedError(
                f"the server refused user {self.user!r}: {said}",
                where=where,
                todo="Look at `jdbc.user` and `jdbc.password`, at the server's pg_hba.conf, and "
                "whether the user may create tables in the database.",
            )
        if "does not exist" in said:
            return self.unknown_database(said, where)
        return self.no_connection(said, where)

    def _without_secret(self, said: str) -> str:
        # `connection failed: connection to server at ..., port N failed: FATAL:  reason`
        reason = said.strip().splitlines()[0].rpartition("failed: ")[2] if said.strip() else said
        reason = reason.removeprefix("FATAL:").strip()
        return hide(reason, [self.password or ""])


def _is_refusal(said: str) -> bool:
    marks = ("authentication failed", "pg_hba.conf", "permission denied", "no password supplied")
    return any(mark in said for mark in marks) or ("role" in said and "does not exist" in said)
