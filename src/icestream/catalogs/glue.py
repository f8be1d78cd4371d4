"""Options of the AWS Glue catalog."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from icestream.contracts.options import PLACE, Options


class GlueSettings(Options):
    """Where Glue is, and whose."""

    region: str | None = Field(None, description="AWS region.")
    catalog_id: str | None = Field(None, description="AWS account id of the catalog.")
    profile: str | None = Field(None, description="Profile of the AWS configuration files.")
    endpoint: str | None = Field(None, description="Address, where it is not Amazon's.")


class GlueCatalogOptions(Options):
    """AWS Glue."""

    type: Literal["glue"] = Field("glue", description="Kind of catalog.")
    glue: GlueSettings | None = Field(None, description="Where Glue is, and whose.")
    warehouse: str | None = Field(
        None, description="Where tables are stored.", json_schema_extra=PLACE
    )
