"""Puts a fault of somebody else's library, and what caused it, into one text to look into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST = 12


def told(fault: BaseException) -> str:
    """Return the classes and messages of a fault and its causes, a line each, Java's included."""
    return "\n".join(dict.fromkeys(_lines(fault)))


def _lines(fault: BaseException | None) -> Iterator[str]:
    for _ in range(DEEPEST):
        if fault is None:
            return
        java = getattr(fault, "java_exception", None) or getattr(fault, "_origin", None)
        if java is not None:
            yield from _java_lines(java)
        else:
            yield f"{type(fault).__name__}: {fault}"
        fault = fault.__cause__ or fault.__context__


def _java_lines(java: Any) -> Iterator[str]:
    for _ in range(DEEPEST):
        if java is None:
            return
        yield f"{java.getClass().getName()}: {java.getMessage()}"
        java = java.getCause()
