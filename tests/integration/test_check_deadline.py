"""`icestream check` of servers that accept a connection and never answer."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.unit.cli.shop import FILE, write_file

from icestream.catalogs import nessie_api
from icestream.catalogs.nessie import NessieCatalog
from icestream.cli import check
from icestream.cli.deadline import OverdueError, call_with_deadline
from icestream.contracts.faults import CheckStep
from icestream.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

SHORT_SECS = 2
PATIENT_SECS = 120

ENDING = """\
import threading
from icestream.cli import check, deadline
from icestream.contracts.faults import CheckStep

# Python waits for a thread like this one at its end, as the clean-up of libraries waits.
threading.Thread(target=threading.Event().wait).start()
check.STEP_TIMEOUT_SECS = 0.1
done = check._run_step(CheckStep("wait", threading.Event().wait), "sink 'lake'")
print(done.error.what)
deadline.exit_process(done.error.exit_code)
"""


@pytest.fixture
def silent() -> Iterator[int]:
    """Gives the port of a server that accepts every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def files_of(port: int) -> dict[str, str]:
    s3 = f"s3: {{bucket: lake, endpoint: 'http://127.0.0.1:{port}', access_key_id: k, "
    s3 += "secret_access_key: s, path_style_access: true}"
    catalogs = {
        "rest": f"{{type: rest, rest: {{uri: 'http://127.0.0.1:{port}'}}}}",
        "nessie": f"{{type: nessie, nessie: {{uri: 'http://127.0.0.1:{port}/api/v2', "
        "warehouse: lake}}",
        "hive": f"{{type: hive, hive: {{uri: 'thrift://127.0.0.1:{port}', warehouse: lake}}}}",
    }
    blocks = {"s3": s3, **{name: f"catalog: {block}" for name, block in catalogs.items()}}
    return {
        name: FILE.replace("namespace: demo", f"{block}, namespace: demo")
        for name, block in blocks.items()
    }


@pytest.mark.parametrize(
    ("kind", "step"),
    [("s3", "list store"), ("rest", "sign in"), ("nessie", "sign in"), ("hive", "sign in")],
)
def test_silent_server_times_out(
    kind: str,
    step: str,
    silent: int,
    icestream: Icestream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "STEP_TIMEOUT_SECS", SHORT_SECS)
    write_file(tmp_path, files_of(silent)[kind])
    started = time.monotonic()
    ended = icestream("check", "--sink", "lake", "--output", "json")
    assert time.monotonic() - started < PATIENT_SECS
    assert ended.code == 3
    (part,) = ended.document["parts"]
    (failed,) = (each for each in part["steps"] if each["state"] == "failed")
    assert failed["name"] == step
    error = failed["error"]
    assert (error["type"], error["message"]) == (
        "UnreachableError",
        f"no answer within {SHORT_SECS:g} s",
    )


def test_overdue_step_names_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "STEP_TIMEOUT_SECS", 0.01)
    waiting = threading.Event()
    done = check._run_step(CheckStep("sign in", lambda: str(waiting.wait())), "sink 'lake'")
    waiting.set()
    assert str(done.error) == (
        "sink 'lake': no answer within 0.01 s\n"
        "  Check that the service is up, that the address is right, and that no firewall or proxy "
        "is in the way."
    )


def test_error_of_a_step_is_raised() -> None:
    def fail() -> str:
        raise LookupError("of its own")

    with pytest.raises(LookupError, match="of its own"):
        call_with_deadline(PATIENT_SECS, fail)


def test_result_within_the_deadline_is_returned() -> None:
    assert call_with_deadline(PATIENT_SECS, lambda: "well") == "well"


def test_overdue_call_is_abandoned() -> None:
    waiting = threading.Event()
    with pytest.raises(OverdueError):
        call_with_deadline(0.01, lambda: str(waiting.wait()))
    waiting.set()


def test_process_ends_although_a_step_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING],
        capture_output=True,
        text=True,
        timeout=PATIENT_SECS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (3, "no answer within 0.1 s\n")


def nessie(port: int) -> NessieCatalog:
    block = {"uri": f"http://127.0.0.1:{port}/api/v2", "warehouse": "/w"}
    return NessieCatalog("lake", NessieCatalog.options_type.model_validate({"nessie": block}))


def test_silent_nessie_is_explained(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nessie_api, "ANSWER_SECS", 0.1)
    with pytest.raises(UnreachableError, match="no answer from Nessie"):
        nessie(silent).client()


def test_hanging_catalog_does_not_block_others() -> None:
    hanging, other = nessie(1), nessie(1)
    with hanging._client_lock:
        other.close()
        pickle.loads(pickle.dumps(hanging)).close()  # noqa: S301 - our own
