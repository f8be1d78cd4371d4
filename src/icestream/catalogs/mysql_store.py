"""A SQL catalog in MySQL or MariaDB."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode

from icestream.catalogs.sql_store import CONNECT_SECS, ServerStore
from icestream.contracts.jars import MARIADB
from icestream.contracts.secrets import hide
from icestream.errors import ConnectorError, IcestreamError, RefusedError

# Numbers that the servers give their faults.
REFUSED = {1044, 1045, 1142, 1227, 1698, 3118, 3159}
UNKNOWN_DATABASE = 1049

# How the servers are by default, `Orders` and `orders` are one name, and so are `Größe` and
# `Grosse`, and older ones keep Latin letters only.
EXACT_NAMES = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
TABLES = (
    "CREATE TABLE IF NOT EXISTS iceberg_tables ("
    "catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, "
    "table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), "
    "previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5), "
    f"PRIMARY KEY (catalog_name, table_namespace, table_name)) {EXACT_NAMES}",
    "CREATE TABLE IF NOT EXISTS iceberg_namespace_properties ("
    "catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, "
    "property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000), "
    f"PRIMARY KEY (catalog_name, namespace, property_key)) {EXACT_NAMES}",
)
EXISTING = (
    "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() "
    "AND table_name IN ('iceberg_tables', 'iceberg_namespace_properties')"
)


@dataclass(frozen=True)
class MysqlStore(ServerStore):
    """A database of a MySQL or MariaDB server; MariaDB's driver for Java speaks to both."""

    kind: str = "mysql"
    jar: ClassVar[str] = MARIADB
    extra: ClassVar[str] = "mysql"

    def describe(self) -> str:
        return f"{self.kind} {self.address}"

    def jdbc_settings(self) -> dict[str, str]:
        return self.to_java("mariadb", CONNECT_SECS * 1000)

    def sqlalchemy_uri(self) -> str:
        parameters = {"charset": "utf8mb4", "connect_timeout": str(CONNECT_SECS)}
        parameters |= {
            f"ssl_{name}": str(value).lower() if isinstance(value, bool) else value
            for name, value in self._encryption().items()
        }
        return self.to_python("mysql+pymysql", urlencode(parameters))

    def prepare(self, where: str) -> None:
        """Make the catalog's tables so that names are kept and compared letter by letter.

        Spark and PyIceberg would make them too, with the database's own way of comparing.
        """
        import pymysql

        login = {"user": self.user, "password": self.password or "", "database": self.database}
        try:
            with (
                closing(
                    pymysql.connect(
                        host=self.host,
                        port=self.port,
                        connect_timeout=CONNECT_SECS,
                        charset="utf8mb4",
                        ssl=self._encryption() or None,
                        **login,
                    )
                ) as connection,
                connection.cursor() as cursor,
            ):
                # Asked first: a user who may not create tables may still use those that exist.
                cursor.execute(EXISTING)
                if cursor.fetchone() != (len(TABLES),):
                    for statement in TABLES:
                        cursor.execute(statement)
        except pymysql.MySQLError as exc:
            raise self.explain(exc, where) from None
        except OSError as exc:
            # PyMySQL wraps what the network does; what is left comes from reading the certificate.
            raise ConnectorError(
                f"the certificate {self._encryption().get('ca')!r} cannot be read "
                f"({exc.strerror or exc})",
                where=where,
                todo="Look at `serverSslCert` in `jdbc.uri`: it is the path of a file in PEM.",
            ) from exc

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        code, said = self._told(getattr(fault, "orig", None) or fault)
        if code in REFUSED:
            return RefusedError(
                f"the server refused user {self.user!r}: {said}",
                where=where,
                todo="Look at `jdbc.user` and `jdbc.password`, from which machines the server "
                "lets the user in, and whether the user may create tables in the database.",
            )
        if code == UNKNOWN_DATABASE:
            return self.unknown_database(said, where)
        return self.no_connection(said, where)

    def _told(self, fault: Any) -> tuple[int, str]:
        """Return the number and the words of a fault, which PyMySQL keeps apart."""
        code, said = (*fault.args, "")[:2] if fault.args else (0, "")
        text = str(said or fault).strip()
        shown = hide(text, [self.password or ""])
        return (code if isinstance(code, int) else 0), shown

    def _encryption(self) -> dict[str, Any]:
        """Return for Python what the URI asks of Java's driver; empty for no encryption."""
        given = dict(parse_qsl(self.parameters))
        mode = _mode(given)
        if mode == "disable":
            return {}
        certificate = {"ca": given["serverSslCert"]} if mode != "trust" else {}
        return {"check_hostname": mode == "verify-full", **certificate}


def check_encryption(parameters: str) -> None:
    """Refuse parameters that would encrypt, or verify, on one side only.

    Raises:
        ValueError: with the reason.
    """
    given = dict(parse_qsl(parameters))
    for name in given:
        if name.lower() in {"usessl", "requiressl", "verifyservercertificate"}:
            raise ValueError(f"holds `{name}`; write `sslMode`, which Spark and Python both follow")
    mode = _mode(given)
    if mode not in {"disable", "trust", "verify-ca", "verify-full"}:
        raise ValueError("`sslMode` is none of disable, trust, verify-ca, verify-full")
    if mode.startswith("verify") and "serverSslCert" not in given:
        raise ValueError(f"`sslMode={mode}` needs `serverSslCert`, the path of a certificate")


def _mode(given: dict[str, str]) -> str:
    mode = given.get("sslMode", "disable").lower().replace("_", "-")
    return {"disabled": "disable", "required": "trust", "verify-identity": "verify-full"}.get(
        mode, mode
    )
