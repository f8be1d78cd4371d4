"""Errors for options that are built in Python: what is wrong, and the option that was meant."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from icestream.contracts.registry import did_you_mean
from icestream.contracts.secrets import HIDDEN, is_secret
from icestream.errors import ConfigError, IcestreamError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)
OptionPath: TypeAlias = tuple[str | int, ...]
EXPECTED = {
    "int": "an int",
    "float": "a number",
    "finite_number": "a number",
    "bool": "True or False",
    "string": "a str",
    "tuple": "a list",
    "list": "a list",
    "dict": "a dict",
    "model": "a dict",
    "datetime": "a datetime",
}
MISSING = object()


def validated(kind: type[ModelT], data: Any, where: str) -> ModelT:
    """Return options built from a value.

    Args:
        kind: the class of the options.
        data: a dict, or what a shorthand takes.
        where: what the options are of, for messages.

    Raises:
        ConfigError: the value is wrong; it holds every problem.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as exc:
        raise config_error(exc, kind, data, where) from None


def require_options(owner: object, options: object) -> None:
    """Refuse options that are not of the class that a source or a sink takes.

    Raises:
        PlanError: they are not.
    """
    kind: type = getattr(type(owner), "options_type", object)
    if not isinstance(options, kind):
        name = type(owner).__name__
        raise PlanError(
            f"expected {kind.__name__}, found {describe_type(options)}",
            where=name,
            todo=f"Write {name}({kind.__name__}(...)).",
        )


def describe_type(value: object) -> str:
    """Name the type of a value, or the class that was passed in place of an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"an object of type {type(value).__name__!r}"


def config_error(exc: ValidationError, kind: type[BaseModel], data: Any, where: str) -> ConfigError:
    """Return an error with every problem of some options; none of them shows a secret."""
    located = [(_path(error["loc"], error["type"], data), error) for error in exc.errors()]
    deepest = {path for path, _ in located}
    kept = [
        (path, error)
        for path, error in located
        # Each branch of a union complains; the one that got furthest is the one that was meant.
        if not any(len(other) > len(path) and other[: len(path)] == path for other in deepest)
    ]
    kept.sort(key=lambda pair: [str(part) for part in pair[0]])
    problems = []
    for path, group in groupby(kept, key=lambda pair: pair[0]):
        errors = [error for _, error in group]
        problem = _problem(errors, path, kind, value_at(data, path))
        problem.where = ".".join([where, *map(str, path[: -1 if _is_named(errors[0]) else None])])
        problems.append(problem)
    return ConfigError(problems)


def _is_named(error: ErrorDetails) -> bool:
    """Tell whether the message itself names the option."""
    return error["type"] in ("extra_forbidden", "missing")


def _path(location: OptionPath, fault: str, data: Any) -> OptionPath:
    """Return the path of a fault without the tags of unions, which are not part of the value."""
    path: OptionPath = ()
    for part in location:
        if value_at(data, (*path, part)) is not MISSING:
            path = (*path, part)
    return (*path, location[-1]) if fault == "missing" else path


def value_at(data: Any, path: OptionPath) -> Any:
    """Return the value at a path, or `MISSING`."""
    for part in path:
        in_list = isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if not in_list and not (isinstance(data, dict) and part in data):
            return MISSING
        data = data[part]
    return data


def _problem(
    errors: list[ErrorDetails], path: OptionPath, kind: type[BaseModel], value: Any
) -> IcestreamError:
    error = errors[0]
    if error["type"] == "extra_forbidden":
        options = list(_options(_model_at(kind, path[:-1])))
        hint = did_you_mean(str(path[-1]), options).rstrip()
        todo = hint or f"Valid options: {', '.join(sorted(options))}."
        return IcestreamError(f"unknown option {path[-1]!r}", todo=todo)
    if error["type"] == "missing":
        about = _options(_model_at(kind, path[:-1])).get(str(path[-1]), "")
        todo = f"Add `{path[-1]}`. {about}".rstrip()
        return IcestreamError(f"{path[-1]!r} is missing", todo=todo)
    expected = list(dict.fromkeys(filter(None, map(expected_value, errors))))
    if not expected:
        what, _, todo = _message(error).partition("\n")
        return IcestreamError(what, todo=todo)
    choices = [choice for each in errors for choice in literal_choices(each)]
    hint = did_you_mean(value, choices).rstrip() if isinstance(value, str) else ""
    found = _describe(path, value)
    return IcestreamError(f"expected {' or '.join(expected)}, found {found}", todo=hint)


def expected_value(error: ErrorDetails, words: Mapping[str, str] = EXPECTED) -> str | None:
    """Return what a value should have been, if an error is about that.

    Args:
        error: one of pydantic's errors.
        words: what its types are called.
    """
    kind = error["type"]
    if kind == "literal_error":
        return f"one of {error['ctx']['expected']}".replace(" or ", ", ")
    if kind.endswith(("_type", "_parsing", "_from_float", "_parsing_size")):
        return words.get(kind.split("_", maxsplit=1)[0])
    return words.get(kind)


def literal_choices(error: ErrorDetails) -> Iterator[str]:
    """Yield the values that an option may have, if an error is about that."""
    if error["type"] == "literal_error":
        for choice in str(error["ctx"]["expected"]).replace(" or ", ", ").split(", "):
            yield choice.strip("'")


def _message(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] in ("string_too_short", "too_short"):
        return "must not be empty"
    return error["msg"][:1].lower() + error["msg"][1:]


def _describe(path: OptionPath, value: Any) -> str:
    name = str(path[-1]) if path else ""
    if isinstance(value, SecretStr) or is_secret(name, str(value)):
        return f"a value {HIDDEN}"
    return repr(value) if isinstance(value, str | int | float) else describe_type(value)


def _options(kind: type[BaseModel] | None) -> dict[str, str]:
    """Return the options of a block with their descriptions."""
    fields = kind.model_fields.items() if kind is not None else ()
    return {field.alias or name: field.description or "" for name, field in fields}


def _model_at(kind: type[BaseModel], path: OptionPath) -> type[BaseModel] | None:
    found: type[BaseModel] | None = kind
    for part in path:
        if found is not None and not isinstance(part, int):
            fields = found.model_fields.items()
            inner = {field.alias or name: field.annotation for name, field in fields}
            found = model_in(inner.get(part))
    return found


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of an annotation such as `Block | None`; None if it has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)
