"""Options of the Nessie catalog."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from icestream.contracts.options import PLACE, Options


class NessieSettings(Options):
    """Address and branch."""

    uri: str = Field(min_length=1, description="Address of the server.")
    branch: str = Field("main", min_length=1, description="Branch of the catalog.")
    warehouse: str | None = Field(
        None, description="Where tables are stored.", json_schema_extra=PLACE
    )


class NessieCatalogOptions(Options):
    """Nessie."""

    type: Literal["nessie"] = Field("nessie", description="Kind of catalog.")
    nessie: NessieSettings = Field(description="Address and branch.")
