from __future__ import annotations

import pytest
from pydantic import SecretStr

from icestream.contracts.options import Options
from icestream.contracts.secrets import hide, without_secrets


class Login(Options):
    password: SecretStr


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("p", "connection timeout expired", "connection timeout expired"),
        ("p", "password 'p' refused", "password '***' refused"),
        ("abc", "abcd abc", "abcd ***"),
        ("a.b", "aab a.b", "aab ***"),
        ("hunter2", "user:xhunter2x@host", "user:x***x@host"),
        ("open", "opening", "***ing"),
    ],
)
def test_short_secret_is_hidden_as_a_word_and_a_long_one_anywhere(
    secret: str, text: str, shown: str
) -> None:
    assert without_secrets(text, Login(password=SecretStr(secret))) == shown


def test_longer_secret_is_hidden_before_one_that_it_holds() -> None:
    assert hide("token-and-more", ["token", "token-and-more"]) == "***"


def test_empty_secret_hides_nothing() -> None:
    assert hide("all is shown", [""]) == "all is shown"
