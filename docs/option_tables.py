"""Tables of options in Markdown, from the option models that check the file."""

from __future__ import annotations

import types
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, SecretStr
from pydantic_core import PydanticUndefined

from icestream.contracts.options import yaml_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

UNAVAILABLE = "**Not available in this version.**"
HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
PLAIN: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    SecretStr: "text, secret",
    datetime: "time",
    type(None): "",
    Any: "anything",
}

INTO: dict[Any, str] = {tuple: "[]", dict: ".NAME"}
HOLDERS: dict[Any, tuple[str, int]] = {
    Annotated: ("", 0),
    tuple: ("list of ", 0),
    dict: ("mapping to ", 1),
}


def options_table(model: type[BaseModel], *, leave_out: tuple[str, ...] = ()) -> str:
    """Return the options of a model, those of its blocks below their own key."""
    lines = [
        line
        for name, line in _rows(model, "", planned=False)
        if name.split(".")[0] not in leave_out
    ]
    return "\n".join([HEAD, *lines])


def _rows(model: type[BaseModel], prefix: str, *, planned: bool) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        key = prefix + yaml_key(name, field)
        mark = _mark(field)
        unavailable = planned or mark is True
        meaning = " ".join((field.description or "").split())
        if _is_local(field) and not key.endswith("uri"):
            meaning += " Only local paths in this version."
        if unavailable:
            meaning += f" {UNAVAILABLE}"
        elif isinstance(mark, list):
            names = ", ".join(f"`{value}`" for value in mark)
            meaning += f" **Not available in this version:** {names}."
        cells = (f"`{key}`", _type_of(field), _default(field), meaning)
        yield key, f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        for block, suffix in _blocks(field.annotation):
            yield from _rows(block, f"{key}{suffix}.", planned=unavailable)


def _mark(field: FieldInfo) -> Any:
    extra = field.json_schema_extra
    return extra.get("planned") if isinstance(extra, dict) else None


def _is_local(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("path") is True and not extra.get("remote")


def _blocks(annotation: Any, suffix: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models that a type holds, and how a key leads into them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, suffix
        return
    into = INTO.get(get_origin(annotation), "")
    for argument in get_args(annotation):
        yield from _blocks(argument, suffix + into)


def _type_of(field: FieldInfo) -> str:
    text = _type_text(field.annotation)
    # What a validator turns into a list is written as a name, or with commas.
    loose = any(isinstance(each, BeforeValidator) for each in field.metadata)
    return f"text or {text}" if loose and text.startswith("list of") else text


def _type_text(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(filter(None, map(_type_text, arguments)))
    if origin in HOLDERS:
        words, place = HOLDERS[origin]
        return words + _type_text(arguments[place])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "block"
    return PLAIN.get(annotation, "text")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ((), {}, ""):
        return "-"
    if isinstance(value, BaseModel):
        return "-"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"
