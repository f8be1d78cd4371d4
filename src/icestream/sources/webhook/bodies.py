"""From the bytes of a request to events, each as the sender wrote it."""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

from icestream.sources.webhook.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JSON_TYPES = frozenset({b"", b"application/json", b"text/json"})
LINES_TYPES = frozenset(
    {b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonl"}
)
# So deep an object makes no column that tables and their readers could bear.
MOST_LEVELS = 64
_GZIP_BITS = 31
# What follows a member of a gzip body is copied, and a body may have thousands of them.
_GZIP_PIECE = 16 << 10
_BLANK = " \t\r\n"
_BLANKS = re.compile(f"[{_BLANK}]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def is_lines(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is NDJSON, an event a line, rather than one JSON value.

    Raises:
        Refusal: it is neither.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in LINES_TYPES:
        return True
    if kind in JSON_TYPES or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return False
    shown = kind.decode("latin-1")
    raise Refusal(415, f"content type {shown!r} is not JSON: application/json or x-ndjson")


def is_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is compressed.

    Raises:
        Refusal: in another way than gzip.
    """
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"gzip", b"x-gzip"):
        return True
    if coding in (b"", b"identity"):
        return False
    raise Refusal(415, f"content encoding {coding.decode('latin-1')!r} is not gzip")


def unzipped(body: bytes, most: int) -> bytes:
    """Return what a gzip body holds, never more than `most` bytes of it in memory.

    Raises:
        Refusal: it holds more, or is no gzip.
    """
    parts: list[bytes] = []
    left, place = most, 0
    member = zlib.decompressobj(_GZIP_BITS)
    while place < len(body):
        if member.eof:
            member = zlib.decompressobj(_GZIP_BITS)
        piece = body[place : place + _GZIP_PIECE]
        try:
            part = member.decompress(piece, left + 1)
        except zlib.error:
            raise Refusal(400, "the body is not gzip") from None
        if len(part) > left:
            raise too_large(most)
        parts.append(part)
        left -= len(part)
        place += len(piece) - len(member.unused_data)
    if body and not member.eof:
        raise Refusal(400, "the gzip body ends too early")
    return b"".join(parts)


def too_large(most: int) -> Refusal:
    """Return the answer to a body that is larger than may be."""
    return Refusal(413, f"the body is larger than {most // 1024} KiB")


def events_in(body: bytes, *, lines: bool) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each event as it was sent, and what it says.

    Raises:
        Refusal: the body is not JSON, or holds something else than objects.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not UTF-8") from None
    if lines:
        yield from _lines(text)
        return
    text = text.strip(_BLANK)
    if text.startswith("["):
        yield from _elements(text)
    else:
        yield text.encode(), _object(text, "the body")


def _lines(text: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    # Not splitlines, which breaks at letters that JSON texts may hold.
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(_BLANK)
        if stripped:
            yield stripped.encode(), _object(stripped, f"line {number}")


def _elements(text: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Cut an array where its elements end: what is stored is what was sent, digit for digit."""
    place, number = _past_blanks(text, 1), 0
    if text[place : place + 1] == "]":
        place += 1
    else:
        while True:
            number += 1
            what = f"event {number} of the array"
            event, end = _parse(text, place, what)
            yield text[place:end].encode(), _as_object(event, what)
            place = _past_blanks(text, end)
            follows = text[place : place + 1]
            place = _past_blanks(text, place + 1)
            if follows == "]":
                break
            if follows != ",":
                raise Refusal(400, f"the body is not JSON: no comma or ] after event {number}")
    if place != len(text):
        raise Refusal(400, "the body is not JSON: more follows the array")


def _object(text: str, what: str) -> dict[str, Any]:
    value, end = _parse(text, 0, what)
    if end != len(text):
        raise Refusal(400, f"{what} is not JSON: more follows the value")
    return _as_object(value, what)


def _parse(text: str, place: int, what: str) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, place)
    except RecursionError:
        raise Refusal(400, f"{what} is nested too deep") from None
    except ValueError as exc:
        reason = exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)
        raise Refusal(400, f"{what} is not JSON: {reason}") from None
    # Most events have fewer brackets than levels are allowed, so they are not walked through.
    if text.count("{", place, end) + text.count("[", place, end) > MOST_LEVELS and _is_deep(value):
        raise Refusal(400, f"{what} is nested too deep")
    return value, end


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"{what} is not a JSON object, and events are")
    return value


def _past_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found is not None else place
