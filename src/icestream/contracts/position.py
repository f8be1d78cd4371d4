"""Places in a source: what Spark logs as offsets and what marks carry."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

Position: TypeAlias = dict[str, Any]
"""A place in a source, as a JSON object whose meaning only the source knows.

Two positions of one source are equal if and only if they are the same place.
"""

SHORT_LENGTH = 200


def short_form(position: Position) -> str:
    """Return a position as text of at most 200 characters, for people.

    One that is cut ends in a digest of the whole, so that two of them still differ.
    """
    text = json.dumps(position, sort_keys=True)
    if len(text) <= SHORT_LENGTH:
        return text
    end = f"... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"
    return text[: SHORT_LENGTH - len(end)] + end
