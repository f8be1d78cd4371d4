"""Catalog in AWS Glue, its tables in S3."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from icestream.catalogs.base import ClientCatalog
from icestream.contracts.catalog import Abilities
from icestream.contracts.faults import TIMED_OUT, Fault, first_match, transport_faults
from icestream.contracts.jars import AWS_BUNDLE
from icestream.contracts.options import LOCATION, HttpAddress, Options
from icestream.errors import (
    ConnectorError,
    PlanError,
    RefusedError,
    TransientError,
)
from icestream.storage.blocks import StorageBlocks, as_uri, storage_at
from icestream.storage.s3 import S3Storage, region_at

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage
    from icestream.errors import IcestreamError


# Faults of S3 come through the same catalog, and have their own table.
GLUE_PATTERN = re.compile(
    r"services\.glue|Service: Glue|when calling the \w+ operation|glue\.[\w-]+\.amazonaws"
    r"|(NoCredentials|PartialCredentials|NoRegion|ProfileNotFound|EndpointConnection|InvalidRegion"
    r"|ConnectTimeout|ReadTimeout|ConnectionClosed|TokenRetrieval|UnauthorizedSSOToken)(Error)?: "
    r"|[Uu]nable to load (credentials|region)|GlueCatalog"
    r"|Cannot convert .{1,300} to Glue|No default path is set|derive default warehouse location"
)
NO_CREDENTIALS = (
    "Set up the default AWS chain (environment, `aws configure`, the machine's role), or name "
    "`glue.profile`; the keys of an `s3` block are not used for Glue."
)
FAULTS = (
    Fault(
        r"ExpiredToken|token included in the request is expired|TokenRetrieval"
        r"|UnauthorizedSSOToken",
        TransientError,
        "the temporary credentials have expired",
        "Sign in again (`aws sso login`), or renew the session token of the default AWS chain.",
    ),
    Fault(
        r"Signature expired|Signature not yet current|RequestExpired|RequestTimeTooSkewed",
        RefusedError,
        "this machine's clock and Amazon's are too far apart",
        "Synchronise this machine's clock with NTP; signatures are valid for 5 minutes.",
    ),
    Fault(
        r"UnrecognizedClient|InvalidClientTokenId|security token included in the request is "
        r"invalid|InvalidAccessKeyId",
        RefusedError,
        "Amazon does not know the access key",
        "Check the keys that the default AWS chain finds (`aws sts get-caller-identity`), and "
        "`glue.profile`.",
    ),
    Fault(
        r"scoped to a valid region|InvalidRegion",
        RefusedError,
        "the region does not match the endpoint",
        "Check `glue.region`, and `glue.endpoint` if it is set.",
    ),
    Fault(
        r"InvalidSignature|SignatureDoesNotMatch|IncompleteSignature",
        RefusedError,
        "the signature is wrong: the secret key does not belong to the access key",
        "Check the keys that the default AWS chain finds (`aws sts get-caller-identity`).",
    ),
    Fault(
        r"AccessDenied|not authorized to perform|Insufficient Lake Formation",
        RefusedError,
        "Glue denies access",
        "Do the credentials allow glue:GetDatabase(s), glue:GetTable(s), glue:CreateDatabase, "
        "glue:CreateTable and glue:UpdateTable? With Lake Formation, is the database granted? Is "
        "`glue.catalog_id` right?",
    ),
    Fault(
        r"NoCredentials|PartialCredentials|[Uu]nable to (load|locate) credentials",
        RefusedError,
        "no credentials were found",
        NO_CREDENTIALS,
    ),
    Fault(
        r"ProfileNotFound|config profile .{1,80} could not be found",
        RefusedError,
        "the profile is not in the AWS configuration files",
        "Check the spelling of `glue.profile`; `aws configure list-profiles` lists the profiles.",
    ),
    Fault(
        r"NoRegion|must specify a region|[Uu]nable to load region",
        ConnectorError,
        "no region is set",
        "Add e.g. `glue.region: eu-central-1`.",
    ),
    Fault(
        r"Cannot convert .{1,300} to Glue",
        ConnectorError,
        "Glue rejects the name",
        "Names in Glue have lower-case letters, digits and underscores, and a namespace has one "
        "level.",
    ),
    Fault(
        r"No default path is set|derive default warehouse location",
        ConnectorError,
        "no location is set for the table's files",
        "Add e.g. `warehouse: s3://bucket/lake` to the catalog, or give the database a location.",
    ),
    Fault(
        r"ConcurrentModification|Throttling|RateExceeded|TooManyRequests|OperationTimeout"
        r"|InternalService|ServiceUnavailable|[Ss]tatus [Cc]ode: 50\d",
        TransientError,
        "Glue is busy",
        "The pipeline retries by its `restart` policy. Does another job change the same tables?",
    ),
    Fault(
        r"EntityNotFound",
        ConnectorError,
        "Glue has no such catalog, database or table",
        "Check `glue.catalog_id`, `glue.region` and the spelling of the namespace.",
    ),
    *transport_faults(
        "Glue",
        "`glue.region` and `glue.endpoint`",
        no_answer=rf"{TIMED_OUT}|EndpointConnection|Could not connect|ConnectionClosed"
        r"|Connect to .{1,80} failed",
    ),
)


class GlueSettings(Options):
    """Region, account and endpoint of Glue."""

    region: str | None = Field(None, description="AWS region; defaults to the region of S3.")
    catalog_id: str | None = Field(None, description="AWS account id of the catalog.")
    profile: str | None = Field(
        None, description="Profile of the AWS configuration files, for S3 as well."
    )
    endpoint: HttpAddress | None = Field(None, description="Endpoint, if it is not Amazon's.")


class GlueCatalogOptions(StorageBlocks):
    """AWS Glue."""

    type: Literal["glue"] = Field("glue", description="Kind of catalog.")
    glue: GlueSettings = Field(
        default_factory=lambda: GlueSettings.model_validate({}),
        description="Region, account and endpoint of Glue.",
    )
    warehouse: str | None = Field(
        None,
        description="Where tables are stored, e.g. `s3://bucket/lake`; without one, each database "
        "of Glue needs a location.",
        json_schema_extra=LOCATION,
    )


class GlueCatalog(ClientCatalog[GlueCatalogOptions]):
    """Iceberg's GlueCatalog for Spark, PyIceberg's for everything else.

    Both use the default AWS credential chain for Glue, since Java's client accepts no other.
    """

    options_type = GlueCatalogOptions
    abilities = Abilities(case_sensitive=False)
    extra = "glue"
    packages = ("boto3",)

    def __init__(
        self, name: str, options: GlueCatalogOptions, storage: Storage | None = None
    ) -> None:
        configured = storage or options.configured_storage()
        warehouse = options.warehouse or (configured.warehouse() if configured else None)
        self.warehouse = as_uri(warehouse) if warehouse else None
        files = configured or storage_at(self.warehouse or "s3://")
        if not isinstance(files, S3Storage) or not files.covers(self.warehouse or "s3://"):
            raise PlanError(
                f"tables of Glue must be in S3, not in {self.warehouse or files.identity()}",
                where=f"catalog {name!r} (glue)",
                todo="Set a `warehouse` that begins with s3://, and an `s3` block if the default "
                "AWS chain is not enough.",
            )
        super().__init__(name, options, files)
        self.files = files
        self._refuse_mismatch("region", options.glue.region, files.options.region)
        self._refuse_mismatch("profile", options.glue.profile, files.options.profile)

    def _refuse_mismatch(self, key: str, glue_value: str | None, s3_value: str | None) -> None:
        """Refuse different values of a setting that Java's library has once for Glue and S3."""
        if glue_value is not None and s3_value is not None and glue_value != s3_value:
            raise PlanError(
                f"`glue.{key}` is {glue_value!r} and `s3.{key}` is {s3_value!r}, but Spark has one "
                f"{key} for both",
                where=self.where,
                todo="Set both to the same value, or remove one of them.",
            )

    def identity(self) -> str:
        settings = self.options.glue
        endpoint = settings.endpoint or self._region or "of Amazon"
        account = f", account {settings.catalog_id}" if settings.catalog_id else ""
        return f"glue {endpoint}{account}"

    def addresses(self) -> list[str]:
        return [self.options.glue.endpoint] if self.options.glue.endpoint else []

    @property
    def address_key(self) -> str:
        return "glue.endpoint"

    def storage_location(self) -> str | None:
        return self.warehouse

    def jars(self) -> tuple[str, ...]:
        return (AWS_BUNDLE,)

    def environment(self) -> dict[str, str]:
        profile = self.options.glue.profile
        return {**self.files.environment(), **({"AWS_PROFILE": profile} if profile else {})}

    def chain_variables(self) -> tuple[str, ...]:
        # Glue uses the credential chain even if the store has keys.
        return () if self.environment() else ("AWS_PROFILE",)

    def spark_settings(self) -> dict[str, str]:
        return {
            "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
            # Each session has its own cache, and would not see the commits of others.
            "cache-enabled": "false",
            **self.files.spark_settings(),
            **self._shared(),
            **({"client.region": self._region} if self._region else {}),
        }

    def pyiceberg_properties(self) -> dict[str, str]:
        region, profile = self._region, self.options.glue.profile
        return {
            "type": "glue",
            **self.files.pyiceberg_properties(),
            **self._shared(),
            **({"glue.region": region, "s3.region": region} if region else {}),
            **({"glue.profile-name": profile} if profile else {}),
        }

    def faults(self) -> tuple[type[Exception], ...]:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError:
            return super().faults()  # a missing package cannot have raised anything
        return (*super().faults(), BotoCoreError, ClientError)

    def explain(self, text: str, where: str) -> IcestreamError | None:
        error = first_match(FAULTS, text, where) if GLUE_PATTERN.search(text) else None
        return error or super().explain(text, where)

    @property
    def _region(self) -> str | None:
        """The region of Glue and S3; any region if the endpoint is not Amazon's."""
        settings = self.options.glue
        return (
            settings.region
            or self.files.options.region
            or region_at(settings.endpoint or self.files.options.endpoint)
        )

    def _shared(self) -> dict[str, str]:
        """Return the settings that have the same name in both clients."""
        names = {
            "warehouse": self.warehouse,
            "glue.id": self.options.glue.catalog_id,
            "glue.endpoint": self.options.glue.endpoint,
        }
        return {name: value for name, value in names.items() if value is not None}
