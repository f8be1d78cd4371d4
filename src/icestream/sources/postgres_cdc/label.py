"""Names of tables as positions write them: `public.orders`, quoted as SQL does where needed."""

from __future__ import annotations

import re

PIECE = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def names_of(label: str) -> tuple[str, str]:
    """Return schema and name of a label."""
    schema, name = (
        quoted.replace('""', '"') if quoted else plain for quoted, plain in PIECE.findall(label)
    )
    return schema, name
