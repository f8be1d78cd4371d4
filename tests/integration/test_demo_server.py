"""The PostgreSQL of `icestream demo --cdc`, which is there for as long as the demo."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import psycopg
import pytest

from icestream.cli import demo_postgres
from icestream.cli.demo_postgres import demo_server
from icestream.errors import DependencyError, IcestreamError


def test_server_has_logical_decoding_requires_a_password_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path] = []

    def noted(prefix: str) -> str:
        folders.append(Path(mkdtemp(prefix=prefix)))
        return str(folders[-1])

    monkeypatch.setattr("tempfile.mkdtemp", noted)
    with demo_server() as server:
        with psycopg.connect(**server.connection) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
            assert connection.execute("SHOW server_version").fetchone() == (server.version,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**{**server.connection, "password": "wrong"})
    assert [path.exists() for path in folders] == [False]
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(**server.connection)


def test_server_stops_when_the_demo_fails() -> None:
    with pytest.raises(ZeroDivisionError), demo_server() as server:
        raise ZeroDivisionError
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(**server.connection)


@pytest.mark.skipif(os.geteuid() != 0, reason="somebody else's folder is closed to root alone")
def test_binaries_inaccessible_to_another_user_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec(demo_postgres.PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    for folder in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, tmp_path / "closed" / folder.name, symlinks=True)
    (tmp_path / "closed").chmod(0o700)
    binaries = tmp_path / "closed" / package.name / "pginstall18" / "bin"
    monkeypatch.setattr(demo_postgres, "_wheel_folders", lambda: [binaries])
    with demo_server() as server:
        psycopg.connect(**server.connection).close()


def test_missing_postgresql_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_postgres, "_wheel_folders", list)
    monkeypatch.setattr(demo_postgres, "_system_folders", list)
    with pytest.raises(DependencyError) as caught, demo_server():
        pass
    assert str(caught.value) == (
        "demo: the demo needs PostgreSQL, which is not installed\n  pip install 'icestream[demo]'"
    )


def test_failed_server_start_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_postgres, "USER", "pg_reserved")
    with pytest.raises(IcestreamError) as caught, demo_server():
        pass
    assert caught.value.what.startswith("PostgreSQL does not start: initdb: error: ")
