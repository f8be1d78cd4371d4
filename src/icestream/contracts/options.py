"""The base of every option model: validation, docs, JSON Schema and help derive from it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict  # noqa: TC002 - read when the module is loaded
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from icestream.errors import PlanError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.fields import FieldInfo
    from pydantic.json_schema import JsonSchemaValue


EXPRESSIONS: JsonDict = {"expressions": True}
LOCATION: JsonDict = {"path": True, "remote": True}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


class _NullAsText:
    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        choices = handler(source)
        return core_schema.no_info_before_validator_function(
            lambda value: "null" if value is None else value,
            choices,
            json_schema_input_schema=core_schema.nullable_schema(choices),
        )


NULL_AS_TEXT = _NullAsText()
"""For options with a choice called `null`: YAML parses the bare word as no value, and so do editors
that validate a file against its JSON Schema."""

PropertyText: TypeAlias = Annotated[
    str,
    BeforeValidator(_as_text),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
"""Value of a property that is passed on to another system; numbers and booleans become text."""


def _split_levels(value: Any) -> Any:
    return tuple(value.split(".")) if isinstance(value, str) else value


Namespace: TypeAlias = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1)], ...],
    BeforeValidator(_split_levels),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
"""Levels of a namespace, written as a name (`a.b`) or as a list (`[a, b]`)."""


def _check_address(address: str) -> str:
    if any(letter.isspace() for letter in address):
        raise ValueError("contains a space or a line break")
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 - raises when it is no port
        (parts.hostname or "").encode("idna")  # as a socket will; a label may have 63 letters
    except ValueError:
        raise ValueError("has an invalid host or port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not the address of a server; write http://HOST:PORT or https://HOST")
    if "@" in parts.netloc:
        raise ValueError("contains a user or a password, which would be shown; remove them")
    if parts.query or parts.fragment:
        raise ValueError("contains more than an address; end it before the ? or #")
    return address


HttpAddress: TypeAlias = Annotated[str, AfterValidator(_check_address)]
"""Address of a server that speaks HTTP, without a user, a password or a query."""


class _TextForm:
    def __init__(self, pattern: str, kind: str, todo: str) -> None:
        self._pattern = pattern
        # In Python, `$` also matches before a line break at the end.
        self._regex = re.compile(re.sub(r"\$$", r"\\Z", pattern))
        self._words = {"kind": kind, "todo": todo}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": self._pattern}

    def _check(self, value: str) -> str:
        if self._regex.search(value) is None:
            raise PydanticCustomError("text_form", "not {kind}. {todo}", self._words)
        return value


def text_form(pattern: str, kind: str, todo: str) -> Any:
    """Return an annotation for a text of a certain form.

    Args:
        pattern: a regular expression for it, for editors. Messages never show it.
        kind: what such a text is called, with an article.
        todo: how to write one, with examples.
    """
    return _TextForm(pattern, kind, todo)


Duration: TypeAlias = Annotated[
    str,
    text_form(
        "^[1-9][0-9]*[smhdw]$",
        "a duration",
        "Write a whole number and a unit (s, m, h, d or w), e.g. `30s`, `15m`, `12h`, `5d`, `2w`.",
    ),
]
"""A duration such as `5d`."""


if TYPE_CHECKING:
    _Model = BaseModel
else:

    class _ErrorsOfCalls(type(BaseModel)):
        """Turns pydantic's errors into ours where Python code builds options.

        Blocks of a file are validated without a call, and their errors get a line of the file.
        """

        def __call__(cls, *args: Any, **options: Any) -> Any:
            from icestream.contracts.option_errors import config_error, describe_type

            if args:
                raise PlanError(
                    f"options are given by name, found {describe_type(args[0])}",
                    where=cls.__name__,
                    todo=f"Write {cls.__name__}(OPTION=VALUE, ...).",
                )
            try:
                return super().__call__(**options)
            except ValidationError as exc:
                raise config_error(exc, cls, options, cls.__name__) from None

    class _Model(BaseModel, metaclass=_ErrorsOfCalls):
        pass


class Options(_Model):
    """Options of one part, as its block in the YAML file names them.

    Unknown keys are refused and a built object never changes. Every field has a description.
    A field's `json_schema_extra` holds what else the planner must know:

    - `{"planned": True}`: accepted but not built yet; `plan` shows it, `run` and `check` refuse it.
    - `{"planned": ["upsert"]}`: the same for these values only.
    - `{"path": True}`: a local path, or an address with a scheme; a relative one is taken from
      the folder of the configuration file.
    - `LOCATION`: the same, and it may be in an object store.
    - `EXPRESSIONS`: a list of SQL expressions. Unquoted in `[...]`, YAML splits `bucket(4, id)` at
      the comma; its parts are joined again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def yaml_key(name: str, field: FieldInfo) -> str:
    """Return the name of a field in the file: its alias, if it has one."""
    return field.alias or name


class ShorthandOptions(Options):
    """Options that may be written as the bare value of their main field: `filter: "a > 0"`."""

    shorthand: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return value if cls.is_full_form(value) else {cls.shorthand: value}

    @classmethod
    def is_full_form(cls, value: Any) -> bool:
        """Tell whether a value names its fields, instead of being that of the main field."""
        if not isinstance(value, dict):
            return isinstance(value, cls)
        return bool(value) and set(value) <= set(cls.model_fields)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        full_form = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [full_form["properties"][cls.shorthand], full_form]}
