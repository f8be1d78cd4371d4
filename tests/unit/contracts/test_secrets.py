from __future__ import annotations

import pytest
from pydantic import SecretStr

from icestream.contracts.options import Options
from icestream.contracts.secrets import hide, is_secret, without_secrets


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


class Tokens(Options):
    tokens: tuple[SecretStr, ...]


def test_each_secret_of_a_list_is_hidden() -> None:
    both = Tokens(tokens=(SecretStr("first-one"), SecretStr("other-one")))
    assert without_secrets("first-one, other-one", both) == "***, ***"


@pytest.mark.parametrize(
    "value", ["jdbc:x://db/m?keyStorePassword=a", "http://a?b=c&authToken=d", "x;clientSecret=y"]
)
def test_address_with_a_secret_in_a_parameter_is_secret(value: str) -> None:
    assert is_secret("uri", value)


@pytest.mark.parametrize("value", ["http://a?b=c&sslmode=d", "x:y;host=z", "http://a/token"])
def test_address_without_a_secret_is_not(value: str) -> None:
    assert not is_secret("uri", value)


def test_longer_secret_is_hidden_before_one_that_it_contains() -> None:
    assert hide("token-and-more", ["token", "token-and-more"]) == "***"


def test_empty_secret_hides_nothing() -> None:
    assert hide("all is shown", [""]) == "all is shown"
