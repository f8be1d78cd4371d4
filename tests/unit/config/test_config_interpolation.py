from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import parse
from icestream.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

JDBC = """\
catalogs:
  pg:
    type: jdbc
    warehouse: wh
    jdbc:
      uri: postgresql://db/lake
      user: app
      password: {password}
"""


def state_path(text: str, **environment: str) -> str:
    config = parse(f"state:\n  path: {text}\n", "a.yaml", environment=environment)
    return config.block.state.path


def message(text: str, path: str | Path = "a.yaml", **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, path, environment=environment)
    return str(caught.value)


def test_variables_are_interpolated_anywhere_in_a_value() -> None:
    assert state_path("/data/${TEAM}/${ENV}-state", TEAM="x", ENV="prod") == "/data/x/prod-state"


def test_default_is_used_when_a_variable_is_unset_or_empty() -> None:
    assert state_path("${DIR:-here}") == "here"
    assert state_path("${DIR:-here}", DIR="") == "here"
    assert state_path("${DIR:-here}", DIR="there") == "there"


def test_two_dollars_are_an_escaped_one_and_a_single_one_stays() -> None:
    assert state_path("'a$$b$${X}c$'") == "a$b${X}c$"


def test_interpolated_value_is_not_interpolated_again() -> None:
    assert state_path("${A}", A="${B}", B="x") == "${B}"


def test_variable_may_hold_a_number() -> None:
    config = parse("metrics: {port: '${PORT}'}\n", "a.yaml", environment={"PORT": "99"})
    assert config.block.metrics.port == 99


def test_secret_of_digits_stays_a_string() -> None:
    text = JDBC.replace("{password}", "${PW}")
    options = parse(text, "a.yaml", environment={"PW": "12345"}).catalogs["pg"].options
    assert options.model_dump()["jdbc"]["password"].get_secret_value() == "12345"


def test_file_next_to_the_configuration_is_read_without_its_trailing_newline(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret.txt").write_text("a b\n")
    config = parse("state: {path: '${file:secret.txt}'}\n", tmp_path / "a.yaml")
    assert config.block.state.path == "a b"


def test_missing_file_is_reported() -> None:
    assert message("state: {path: '${file:no/such}'}\n") == (
        "a.yaml:1:15 state.path: the file 'no/such' cannot be read: No such file or directory\n"
        "  A relative path starts from the folder of the configuration file."
    )


def test_unclosed_reference_is_reported() -> None:
    assert message("state: {path: '${HOME'}\n") == (
        "a.yaml:1:15 state.path: `${` is not closed by `}`\n  Write `$$` for a plain `$`."
    )


def test_reference_without_a_variable_name_is_refused() -> None:
    assert message("state: {path: '${a-b}'}\n") == (
        "a.yaml:1:15 state.path: '${a-b}' does not name a variable\n"
        "  Write `${NAME}`, `${NAME:-default}` or `${file:PATH}`; `$$` is a plain `$`."
    )


def test_wrong_value_from_a_variable_is_shown_as_its_reference() -> None:
    assert message("metrics: {port: '${PORT}'}\n", PORT="hunter2") == (
        "a.yaml:1:17 metrics.port: expected a whole number, found the value of '${PORT}'"
    )


def test_literal_secret_of_the_wrong_type_is_not_shown() -> None:
    assert message(JDBC.replace("{password}", "991177")) == (
        "a.yaml:8:17 catalogs.pg.jdbc.password: expected a text, found a number (hidden)\n"
        "  Put it in quotes."
    )


def test_secrets_are_in_no_repr_of_the_configuration() -> None:
    text = JDBC.replace("{password}", "${PW}") + (
        "sinks:\n  lake:\n    connector: iceberg\n    config:\n      namespace: a\n      table: b\n"
        "      catalog: {type: rest, rest: {uri: x, token: hunter2}}\n"
        "      s3: {access_key_id: key, secret_access_key: hunter2}\n"
    )
    config = parse(text, "a.yaml", environment={"PW": "hunter2"})
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config.sinks["lake"].options)
