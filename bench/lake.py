"""The table that a contender fills: a SQLite catalog and a warehouse in one local folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog.sql import SqlCatalog

CATALOG = "lake"
NAMESPACE = "bench"
TABLE = "events"
CODEC = "snappy"
SCHEMA = "id BIGINT, user_id BIGINT, kind STRING, country STRING, amount DOUBLE, ts TIMESTAMP"
TYPES = {
    "id": "long",
    "user_id": "long",
    "kind": "string",
    "country": "string",
    "amount": "double",
    "ts": "timestamptz",
}


class WrongRowsError(Exception):
    """A contender left a table that does not hold each record once."""


@dataclass(frozen=True)
class Lake:
    """A lake below a contender's own folder, at the path of icestream's embedded one: `lake/`."""

    folder: Path

    @property
    def warehouse(self) -> Path:
        return self.folder / "lake"

    @property
    def database(self) -> Path:
        return self.warehouse / "catalog.db"

    def catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(
            CATALOG, uri=f"sqlite:///{self.database}", warehouse=f"file://{self.warehouse}"
        )

    def create_table(self) -> None:
        """Make the table, for a contender that does not make it as it should be by itself."""
        from pyiceberg.schema import Schema
        from pyiceberg.types import (
            DoubleType,
            LongType,
            NestedField,
            StringType,
            TimestamptzType,
        )

        kinds = {
            "long": LongType(),
            "string": StringType(),
            "double": DoubleType(),
            "timestamptz": TimestamptzType(),
        }
        self.warehouse.mkdir(parents=True)
        catalog = self.catalog()
        catalog.create_namespace(NAMESPACE)
        fields = (
            NestedField(number, name, kinds[kind], required=False)
            for number, (name, kind) in enumerate(TYPES.items(), start=1)
        )
        properties = {"write.parquet.compression-codec": CODEC}
        catalog.create_table((NAMESPACE, TABLE), Schema(*fields), properties=properties)

    def commits(self) -> list[tuple[float, int]]:
        """Return each commit so far: when, in seconds since 1970, and the rows in the table."""
        table = self.catalog().load_table((NAMESPACE, TABLE))
        return [
            (snapshot.timestamp_ms / 1000, _total_rows(snapshot)) for snapshot in table.snapshots()
        ]

    def completed_at(self, rows: int) -> float | None:
        """Return when the commit happened that brought the table to `rows` rows, if one did."""
        return next((moment for moment, total in self.commits() if total >= rows), None)

    def verify(self, rows: int) -> None:
        """Read the table back and compare it with what was sent.

        Raises:
            WrongRowsError: it does not hold the ids 0 to `rows` - 1, each once, and every field.
        """
        import duckdb

        table = self.catalog().load_table((NAMESPACE, TABLE))
        found = {field.name: str(field.field_type) for field in table.schema().fields}
        if found != TYPES:
            raise WrongRowsError(f"the table has the columns {found}, not {TYPES}")
        read = table.scan().to_arrow_batch_reader()
        with duckdb.connect() as connection:
            connection.register("written", read)
            totals = connection.execute(
                "SELECT count(*), count(DISTINCT id), min(id), max(id), count(user_id), "
                "count(kind), count(country), count(amount), count(ts) FROM written"
            ).fetchone()
        expected = (rows, rows, 0, rows - 1, *[rows] * 5)
        if totals != expected:
            raise WrongRowsError(
                f"count, distinct ids, lowest, highest id and values of the other fields are "
                f"{totals}, not {expected}"
            )


def _total_rows(snapshot: Any) -> int:
    summary = snapshot.summary
    return 0 if summary is None else int(summary["total-records"] or 0)
