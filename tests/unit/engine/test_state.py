"""Our own files: for our eyes only, replaced as a whole, and one process a pipeline."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.waiting import wait_until

from icestream.engine import state as state_module
from icestream.engine.state import PipelineState
from icestream.errors import CorruptStateError, SupersededError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    made = PipelineState(tmp_path / "deep" / ".icestream", "orders")
    made.make()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_private_to_the_user(state: PipelineState) -> None:
    state.remember_start({"row": 0})
    state.publish({"row": 10})
    state.remember_schema({"columns": {}})
    state.accept(None)
    state.write_status({"rows": 1})
    with state.locked():
        pass

    folders = [state.root, *(path for path in state.root.rglob("*") if path.is_dir())]
    files = [path for path in state.root.rglob("*") if path.is_file()]
    assert {path.name: oct(mode(path)) for path in folders} == {
        ".icestream": "0o700",
        "pipelines": "0o700",
        "orders": "0o700",
        "checkpoints": "0o700",
    }
    assert {path.name: oct(mode(path)) for path in files} == dict.fromkeys(
        ["start.json", state.next_file.name, "schema.json", "accepted.json", "status.json", "lock"],
        "0o600",
    )


def test_folders_open_to_other_users_are_made_private(state: PipelineState) -> None:
    state.checkpoint.mkdir()
    (state.root / "spark.log").touch()
    folders = [state.root, *(path for path in state.root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o755)
    state.make()

    assert {path.name: oct(mode(path)) for path in folders} == dict.fromkeys(
        [".icestream", "pipelines", "orders", "checkpoints"], "0o700"
    )


def test_folder_with_other_files_keeps_its_permissions(state: PipelineState) -> None:
    (state.root / "lake").mkdir()
    for folder in (state.root, state.folder.parent):
        folder.chmod(0o755)
    state.make()

    assert (oct(mode(state.root)), oct(mode(state.folder.parent))) == ("0o755", "0o700")


def test_what_was_written_is_read_back(state: PipelineState) -> None:
    assert state.start() is None
    assert state.schema() is None
    assert state.status() is None
    assert state.accepted() is None
    state.remember_start({"orders-0": 12})
    state.remember_schema({"columns": {"id": "long"}})
    state.write_status({"rows": 1})
    state.accept("a mark")

    again = PipelineState(state.root, "orders")
    assert again.start() == {"orders-0": 12}
    assert again.schema() == {"columns": {"id": "long"}}
    assert again.status() == {"rows": 1}
    assert again.accepted() == "a mark"
    assert PipelineState(state.root, "other").start() is None


def test_file_is_replaced_as_a_whole(state: PipelineState) -> None:
    state.publish({"row": 1})
    path = state.next_file
    with path.open() as reader:
        state.publish({"row": 2, "more": "x" * 10_000})
        assert reader.read() == '{"row": 1}', "a reader sees the old file or the new one"

    assert path.read_text().startswith('{"row": 2')
    assert [entry.name for entry in state.folder.iterdir()] == [path.name]


def test_interrupted_write_leaves_the_old_file(state: PipelineState) -> None:
    state.publish({"row": 1})
    with pytest.raises(TypeError):
        state.publish({"row": object()})

    assert state.next_file.read_text() == '{"row": 1}'


@pytest.mark.parametrize("text", ["", "{", "\0\0\0"])
def test_unreadable_file_is_reported(state: PipelineState, text: str) -> None:
    path = state.folder / "status.json"
    path.write_text(text)
    with pytest.raises(CorruptStateError) as caught:
        state.status()

    head, todo = str(caught.value).splitlines()
    assert head.startswith(f"pipeline 'orders': the file {path} can't be read: ")
    assert todo == (
        "  Restore it from a backup, or remove the pipeline's state and start over with "
        "`icestream run --start-over`."
    )


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_file_with_other_content_is_reported(state: PipelineState, text: str) -> None:
    (state.folder / "start.json").write_text(text)
    with pytest.raises(CorruptStateError, match=r"start\.json can't be read: "):
        state.start()


def test_forget_removes_the_checkpoint_but_not_the_schema(state: PipelineState) -> None:
    state.checkpoint.mkdir()
    (state.checkpoint / "metadata").write_text("{}")
    state.remember_start({"row": 1})
    state.publish({"row": 2})
    state.remember_schema({"columns": {}})
    state.write_status({"rows": 1})
    state.forget()
    state.forget()

    assert not state.checkpoint.exists()
    left = sorted(path.name for path in state.folder.iterdir())
    assert left == [state.next_file.name, "schema.json", "status.json"]


def test_each_instance_publishes_offsets_to_its_own_spark(tmp_path: Path) -> None:
    paused, other = (PipelineState(tmp_path, "orders", name) for name in ("paused", "other"))
    other.make()
    paused.publish({"row": 9})
    other.clean_up()
    other.publish({"row": 20})
    paused.publish({"row": 10})

    assert json.loads(other.next_file.read_text()) == {"row": 20}


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process checks the lock, so one attempt is conclusive."""
    monkeypatch.setattr(state_module, "LOCK_TRIES", 1)
    monkeypatch.setattr(state_module, "LOCK_AGAIN_SECS", 0.01)


@pytest.mark.usefixtures("_impatient")
def test_lock_has_one_holder_and_is_released_with_it(state: PipelineState) -> None:
    assert not state.is_running()
    with state.locked():
        assert state.is_running()
        with pytest.raises(SupersededError) as caught, state.locked():
            pass
        assert state.is_running(), "a refused attempt does not release the lock"
    assert not state.is_running()
    with state.locked():
        pass

    assert str(caught.value) == (
        f"pipeline 'orders': the pipeline is already running as process {os.getpid()} on "
        f"{socket.gethostname()}\n"
        "  Stop that process first. If it hangs and can't be stopped, `icestream run --take-over` "
        "replaces it."
    )


def test_lock_is_released_when_the_body_raises(state: PipelineState) -> None:
    with pytest.raises(KeyError), state.locked():
        raise KeyError

    assert not state.is_running()


@pytest.mark.usefixtures("_impatient")
def test_lock_of_a_killed_process_is_free_and_its_holder_was_reported(state: PipelineState) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from icestream.engine.state import PipelineState\n"
        "with PipelineState(Path(sys.argv[1]), 'orders').locked():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(state.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(SupersededError, match=f"running as process {other.pid} on "),
            state.locked(),
        ):
            pass
        other.kill()
        other.wait()

    with state.locked():
        assert (state.folder / "lock").read_text().startswith(f"{os.getpid()} ")


@pytest.mark.usefixtures("_impatient")
def test_take_over_proceeds_despite_a_hung_process(state: PipelineState) -> None:
    with state.locked(), state.locked(take_over=True):
        pass
    assert not state.is_running()
    with state.locked(take_over=True):
        assert state.is_running(), "a lock that is free is taken as always"


@pytest.mark.usefixtures("_impatient")
def test_lock_is_acquired_once_the_hung_process_has_exited(state: PipelineState) -> None:
    with ExitStack() as hanging:
        hanging.enter_context(state.locked())
        (state.folder / "lock").write_text("1 elsewhere")
        with state.locked(take_over=True):
            hanging.close()
            signature = f"{os.getpid()} {socket.gethostname()}"
            wait_until(lambda: (state.folder / "lock").read_text() == signature, "the lock")
            with pytest.raises(SupersededError), state.locked():
                pass
    assert not state.is_running()


def test_other_pipelines_have_their_own_locks(state: PipelineState) -> None:
    other = PipelineState(state.root, "returns")
    other.make()
    with state.locked(), other.locked():
        assert state.is_running()
        assert other.is_running()
