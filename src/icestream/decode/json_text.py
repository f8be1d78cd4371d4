"""JSON as text: an object a value, or a line."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from icestream.decode.blocks import BadValueError
from icestream.decode.values import show

ENDLESS = "not JSON: a number of thousands of digits, or as many brackets"
_DECODER = json.JSONDecoder(parse_float=Decimal)


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
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        raise BadValueError(ENDLESS) from None
    if not isinstance(record, dict):
        raise BadValueError(f"not a JSON object: {show(record)}")
    return record
