from __future__ import annotations

from typing import Any

import pytest

from icestream.config import yaml
from icestream.errors import IcestreamError

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcde", "bcdef", strict=True)
)


def refusal(text: str) -> str:
    with pytest.raises(IcestreamError) as caught:
        yaml.read(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("'true'", "true"),
        ("1_000", "1_000"),
        ("010", 10),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("2024-10-01", "2024-10-01"),
        ("~", None),
        ("", None),
        ("12:30:45", "12:30:45"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    assert yaml.read(f"a: {text}\n", "f.yaml").data == {"a": value}


def test_keys_and_values_have_lines_and_columns() -> None:
    tree = yaml.read("a:\n  b: [x, y]\n", "f.yaml")
    assert tree.where(("a", "b", 1)) == "f.yaml:2:10 a.b[1]"
    assert tree.where(("a", "b"), key=True) == "f.yaml:2:3 a.b"
    assert tree.where(("a", "c", "d")) == "f.yaml:1:1 a.c.d"


def test_aliases_and_merge_keys_are_followed() -> None:
    tree = yaml.read("a: &x {p: 1, q: 2}\nb: *x\nc:\n  <<: *x\n  q: 3\n", "f.yaml")
    assert tree.data["b"] == {"p": 1, "q": 2}
    assert tree.data["c"] == {"p": 1, "q": 3}


def test_merge_key_takes_a_list_whose_earlier_mappings_win() -> None:
    text = "a: &x {p: 1, q: 2}\nb: &y {q: 3, r: 4, s: 5}\nc:\n  <<: [*x, *y]\n  s: 6\n"
    tree = yaml.read(text, "f.yaml")
    assert tree.data["c"] == {"p": 1, "q": 2, "r": 4, "s": 6}
    assert tree.where(("c", "r")) == "f.yaml:4:12 c.r"


def test_aliases_of_aliases_are_bounded() -> None:
    assert refusal(BOMB).endswith("the file holds more than 50000 values")


# Brackets are few, since the scanner's time grows by the square of how many it looks ahead.
@pytest.mark.parametrize("text", ["[" * 400, "- " * 100_000], ids=["flow", "block"])
def test_depth_is_bounded(text: str) -> None:
    assert refusal(text).endswith("the file is nested more than 40 levels deep")


def test_tags_are_refused() -> None:
    assert refusal("a: !!python/object/apply:os.system [ls]\n") == (
        "f.yaml:1:4: the YAML tag 'tag:yaml.org,2002:python/object/apply:os.system' "
        "is not allowed here"
    )


def test_second_document_is_refused() -> None:
    assert refusal("a: 1\n---\nb: 2\n") == (
        "f.yaml:2:1: the file holds more than one YAML document"
    )


def test_alias_without_an_anchor_is_refused() -> None:
    assert refusal("a: &a [*a]\n") == "f.yaml:1:8: the alias '*a' has no anchor before it"


def test_key_that_is_not_a_string_is_refused() -> None:
    assert refusal("? [a]\n: b\n") == (
        "f.yaml:1:3: a key must be a text, not a list, mapping or alias"
    )
