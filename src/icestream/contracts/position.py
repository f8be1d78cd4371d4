"""Places in a source: what Spark logs as offsets and what marks carry."""

from __future__ import annotations

from typing import Any, TypeAlias

Position: TypeAlias = dict[str, Any]
"""A place in a source, as a JSON object whose meaning only the source knows.

Two positions of one source are equal if and only if they are the same place.
"""
