"""Whatever the file contains, it is read or refused with a location, never with a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icestream.config import parse, yaml
from icestream.errors import ConfigError
from icestream.plan import build

TEXT = (Path(__file__).parents[1] / "unit" / "config" / "everything.yaml").read_text()
DATA = yaml.read(TEXT, "everything.yaml").data
PLACE = re.compile(r"^broken\.yaml:\d+:\d+( \S.*)?: \S")
SCALARS = st.sampled_from([None, True, False, 0, -1, 2.5, "", "x", "a.b", "${", "$$", "€"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("x"), inner, max_size=1),
    max_leaves=3,
)


def paths_in(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
    return [path, *(each for key, item in items for each in paths_in(item, (*path, key)))]


PATHS = [path for path in paths_in(DATA) if path]


def replaced(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(data))
    block = copy
    for part in path[:-1]:
        block = block[part]
    block[path[-1]] = value
    return copy


def problems_of(text: str) -> list[str] | None:
    """Return the problems of a file, or None if it was read."""
    try:
        build(parse(text, "broken.yaml", environment={}))
    except ConfigError as exc:
        return [str(problem) for problem in exc.problems]
    return None


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(path=st.sampled_from(PATHS), value=VALUES)
def test_any_value_anywhere_is_read_or_refused_with_its_location(
    path: tuple[str | int, ...], value: Any
) -> None:
    # JSON is YAML, so this is a file with one value replaced.
    text = json.dumps(replaced(DATA, path, value), indent=1, ensure_ascii=False)
    problems = problems_of(text)
    assert [problem for problem in problems or [] if not PLACE.match(problem)] == []


@settings(max_examples=150, deadline=None, database=None)
@given(text=st.text(max_size=60) | st.text(alphabet="ab: -[]{}&*!#|>'\"\n\t$", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert problems_of(text) != []
