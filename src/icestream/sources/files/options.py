"""Options of the `files` source."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from icestream.contracts.options import Options
from icestream.formats.lookup import LineFormatName, find_format

OWN_FORMATS = ("json", "csv", "parquet", "avro")


class FileOptions(Options):
    """How the files are formatted."""

    delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="Field delimiter, for `csv`."
    )
    header: bool = Field(
        default=True,
        description="Whether the first line of each file names the columns, for `csv`.",
    )


class FilesOptions(Options):
    """Options of the `files` source."""

    path: str = Field(
        min_length=1,
        description="Folder that files arrive in.",
        json_schema_extra={"path": True},
    )
    format: LineFormatName = Field(
        default="json",
        description="Format of the files. `json` is one object per line. Files of `json` and `csv` "
        "may be compressed with gzip if their names end in `.gz`.",
    )
    glob: str = Field(
        default="*",
        min_length=1,
        description="Files to read, by their path below the folder; `**/` matches any number "
        "of folders.",
    )
    schema_text: str | None = Field(
        default=None,
        alias="schema",
        description="Columns as DDL: `id bigint, name string`. By default, they come from "
        "the table or from the first files.",
    )
    max_files_per_batch: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of files per batch; by default, only rows are limited.",
    )
    options: FileOptions = Field(
        default_factory=FileOptions, description="How the files are formatted."
    )

    @field_validator("glob")
    @classmethod
    def _stays_below_the_folder(cls, glob: str) -> str:
        if glob.startswith("/") or ".." in glob.split("/"):
            raise ValueError(f"glob {glob!r} points outside the folder")
        return glob

    @field_validator("format")
    @classmethod
    def _has_a_record_a_line(cls, name: str) -> str:
        if name in OWN_FORMATS:
            return name
        file_format = find_format(name)
        if file_format.gives_changes or not file_format.is_line_based:
            raise ValueError(
                f"format {name!r} cannot be read from files: its records are not lines"
            )
        return name

    @model_validator(mode="after")
    def _columns_have_names(self) -> FilesOptions:
        if self.format == "csv" and not self.options.header and self.schema_text is None:
            raise ValueError("csv files without a header need `schema` for the column names")
        return self
