"""The command itself: finding subcommands, telling errors, colours and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import click
import pytest

from icestream.cli import main
from icestream.cli.output import Printer, unexpected_error_text
from icestream.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.command_line import Icestream

HEAVY = ("pyspark", "pyarrow", "pyiceberg", "pydantic", "rich", "duckdb", "prometheus_client")
NAMES = ", ".join(main.COMMANDS)


def replace_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `icestream plan` end with an error of our choice."""
    from icestream.cli import plan

    def raising(**_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(plan.command, "callback", raising)


def test_help_lists_every_command(icestream: Icestream) -> None:
    ended = icestream("--help")
    listed = [line.split()[0] for line in ended.out.partition("Commands:\n")[2].splitlines()]
    assert (ended.code, listed) == (0, list(main.COMMANDS))


def command_lines() -> Iterator[tuple[str, ...]]:
    """Every command that does something, those within `dlq` and the like by both names."""
    for name in main.COMMANDS:
        command = main.group.get_command(click.Context(main.group), name)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.commands)
        else:
            yield (name,)


@pytest.mark.parametrize("words", list(command_lines()), ids=" ".join)
def test_every_command_has_help_and_json_output(
    icestream: Icestream, words: tuple[str, ...]
) -> None:
    ended = icestream(*words, "--help")
    assert ended.code == 0
    assert "--output [text|json]" in ended.out
    assert "--color [auto|always|never]" in ended.out


def test_help_and_completion_load_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from icestream.cli.main import group, run_command\n"
        "run_command(['--help'])\n"
        "run_command(['run', '--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_completion_offers_the_commands() -> None:
    script = (
        "import sys\n"
        "from icestream.cli.main import run_command\n"
        "code = run_command([])\n"
        f"assert not [name for name in {HEAVY!r} if name in sys.modules]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "_ICESTREAM_COMPLETE": "bash_complete",
            "COMP_WORDS": "icestream s",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["plain,status", "plain,snapshots", "plain,schema"]


def test_unknown_command_gets_a_suggestion(icestream: Icestream) -> None:
    ended = icestream("chek")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: icestream: unknown command 'chek'\n"
        f"  Did you mean 'check'? Commands: {NAMES}.\n"
        "  See `icestream --help`.\n"
    )


def test_usage_error_is_json_if_json_is_requested(icestream: Icestream) -> None:
    ended = icestream("run", "--resume", "--start-over", "--output", "json")
    assert ended.code == 2
    assert ended.document == {
        "format_version": 1,
        "error": {
            "type": "UsageError",
            "where": "icestream run",
            "message": "--resume, --start-over and --reload are mutually exclusive",
            "todo": "See `icestream run --help`.",
            "exit_code": 2,
        },
    }


def test_known_error_is_reported_with_its_exit_code(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UnreachableError(
        "nobody answers at 'db:5432'", where="catalog 'lake'", todo="Is it up?"
    )
    replace_command(monkeypatch, error)
    assert icestream("plan").code == 3
    assert icestream("plan").err == (
        "error: catalog 'lake': nobody answers at 'db:5432'\n  Is it up?\n"
    )
    assert icestream("plan", "--output=json").document["error"] == {
        "type": "UnreachableError",
        "where": "catalog 'lake'",
        "message": "nobody answers at 'db:5432'",
        "todo": "Is it up?",
        "exit_code": 3,
    }


def test_unexpected_error_is_one_line_and_a_hint(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_command(monkeypatch, ZeroDivisionError("division by zero\nand more"))
    ended = icestream("plan")
    assert (ended.code, ended.err) == (
        1,
        "error: unexpected ZeroDivisionError: division by zero\n"
        "  Run again with --verbose for the traceback.\n",
    )


def test_verbose_shows_the_traceback_of_an_unexpected_error(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_command(monkeypatch, ZeroDivisionError("division by zero"))
    ended = icestream("plan", "--verbose")
    assert ended.code == 1
    assert "Traceback (most recent call last)" in ended.err
    assert "Run it again" not in ended.err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupt_ends_quietly(
    icestream: Icestream, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    replace_command(monkeypatch, error)
    ended = icestream("plan")
    assert (ended.code, ended.out, ended.err.strip()) == (130, "", "")


def test_missing_file_error_says_how_to_create_one(icestream: Icestream) -> None:
    ended = icestream("plan")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: file not found\n"
        "  Create one with `icestream init`, or pass yours with `--config FILE`.\n",
    )


@pytest.mark.parametrize(
    ("color", "environment", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colors_follow_option_then_environment_then_terminal(
    icestream: Icestream,
    monkeypatch: pytest.MonkeyPatch,
    color: str,
    environment: dict[str, str],
    expected: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Printer(color=color).wants_color(sys.stdout) is expected
    assert ("\x1b[" in icestream("plan", f"--color={color}").err) is expected


def test_version_is_shown(icestream: Icestream) -> None:
    from importlib.metadata import version

    assert icestream("--version").out == f"icestream {version('icestream')}\n"


@pytest.mark.parametrize("module", ["icestream", "icestream.cli.main"])
def test_module_runs_the_command(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "no-such-command"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "icestream: unknown command 'no-such-command'" in done.stderr


def test_jvm_error_is_reported_by_its_cause() -> None:
    text = "An error occurred while calling o7.load.\n: java.io.IOException: disk full\n\tat x.y"
    assert (
        unexpected_error_text(RuntimeError(text))
        == "unexpected RuntimeError: java.io.IOException: disk full"
    )
    assert unexpected_error_text(KeyError()) == "unexpected KeyError"
