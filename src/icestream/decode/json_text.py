"""JSON as text: an object a value, or a line."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from icestream.decode.blocks import BadValueError
from icestream.decode.values import json_text, show

ENDLESS = "not JSON: a number of thousands of digits, or as many brackets"
# The escape of half a pair, which JSON can write and UTF-8 cannot.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MOST_DIGITS = 4300  # what Python's own `int` takes


def _integer(text: str) -> int | Decimal:
    # A double has a zero below zero, which an `int` has not.
    return int(text) if text != "-0" else Decimal(text)


def _fraction(text: str) -> Decimal:
    if len(text) > _MOST_DIGITS:
        raise ValueError(ENDLESS)
    return Decimal(text)


_DECODER = json.JSONDecoder(parse_float=_fraction, parse_int=_integer)


def joined(texts: pa.Array) -> pa.Buffer:
    """Return texts as one, a line each."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(whole, "\n")[0].as_buffer()


def read_text(text: pa.Buffer, schema: pa.Schema | None, others: str = "infer") -> pa.Table:
    """Read lines with Arrow.

    Args:
        text: an object a line.
        schema: types of fields that are known.
        others: what becomes of other fields, `infer` or `ignore`.

    Raises:
        pa.ArrowInvalid: a line is no object, or a value not of its type.
    """
    return arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=others, newlines_in_values=False
        ),
    )


def parse_object(value: bytes) -> dict[str, Any]:
    """Return one record, or say why it is none.

    Raises:
        BadValueError: the value is no object.
    """
    try:
        record = _DECODER.decode(value.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise BadValueError(f"not JSON: byte {exc.start} is not UTF-8") from None
    except json.JSONDecodeError as exc:
        where = "" if value else ", the value is empty"
        raise BadValueError(f"not JSON: {exc.msg.lower()} at character {exc.pos}{where}") from None
    # Thousands of digits or of brackets, or an exponent that no decimal has.
    except (ValueError, RecursionError, ArithmeticError):
        raise BadValueError(ENDLESS) from None
    if not isinstance(record, dict):
        raise BadValueError(f"not a JSON object: {show(record)}")
    if _SURROGATE.search(value) is not None:
        _refuse_half_pairs(record)
    return record


def _refuse_half_pairs(record: dict[str, Any]) -> None:
    try:
        json_text(record).encode()
    except UnicodeEncodeError:
        raise BadValueError("not JSON: half of a surrogate pair, which no text can hold") from None
    except RecursionError:
        raise BadValueError(ENDLESS) from None
