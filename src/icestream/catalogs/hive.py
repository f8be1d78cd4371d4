"""Options of the Hive metastore catalog."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from icestream.contracts.options import PLACE, Options


class HiveSettings(Options):
    """Address of the metastore."""

    uri: str = Field(
        min_length=1,
        description="Thrift address; several, comma-separated, are tried one after the other.",
    )
    warehouse: str | None = Field(
        None, description="Where tables are stored.", json_schema_extra=PLACE
    )


class HiveCatalogOptions(Options):
    """A Hive metastore."""

    type: Literal["hive"] = Field("hive", description="Kind of catalog.")
    hive: HiveSettings = Field(description="Address of the metastore.")
