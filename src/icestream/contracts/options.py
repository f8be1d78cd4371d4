"""The base of every option model: validation, docs, JSON Schema and help derive from it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Options of one part, as its block in the YAML file names them.

    Unknown keys are refused and a built object never changes. Every field has a description.
    Mark an option that is accepted but not built yet with
    `json_schema_extra={"planned": True}`: `plan` shows it, `run` and `check` refuse it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
