"""The steps of `icestream check` that every object store has: list, write, read, remove."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from icestream.contracts.faults import CheckStep, exception_text
from icestream.errors import ConnectorError, DependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.io import FileIO

    from icestream.contracts.storage import Storage

CONTENT = b"icestream was here"


def probe(
    storage: Storage, warehouse: str, properties: Mapping[str, str] | None = None
) -> Iterator[CheckStep]:
    """Yield the steps that try a store below a place; nothing is left behind.

    Args:
        storage: the store.
        warehouse: the place.
        properties: PyIceberg's properties for it, where they are not the store's own.
    """
    path = f"{warehouse.rstrip('/')}/.icestream-check-{uuid.uuid4().hex[:12]}"
    where = f"storage {storage.identity()}"

    def step(name: str, ask: Callable[[FileIO], str]) -> CheckStep:
        def run() -> str:
            try:
                return ask(_file_io(properties or storage.pyiceberg_properties(), warehouse))
            except ModuleNotFoundError as exc:
                raise _missing(exc, storage, where) from exc
            except storage.faults() as exc:
                said = exception_text(exc)
                # Whatever was raised here is the store's: its address says so.
                known = storage.explain(f"{said}\n{warehouse}", where)
                raise known or _unknown(said, storage, where) from None

        return CheckStep(name, run)

    yield step("list store", lambda io: _list(io, warehouse))
    yield step("write an object", lambda io: _write(io, path))
    yield step("read it back", lambda io: _read(io, path, storage.faults()))
    yield step("remove it", lambda io: _remove(io, path))


def _missing(fault: ModuleNotFoundError, storage: Storage, where: str) -> DependencyError:
    return DependencyError(
        f"needs the package {fault.name}, which is not installed",
        where=where,
        todo=f"pip install 'icestream[{storage.kind}]'",
    )


def _unknown(said: str, storage: Storage, where: str) -> ConnectorError:
    return ConnectorError(
        f"the store answered: {storage.hidden(said.splitlines()[0])}",
        where=where,
        todo=f"Look at the `{storage.kind}` block.",
    )


def _file_io(properties: Mapping[str, str], warehouse: str) -> FileIO:
    from pyiceberg.io import load_file_io

    return load_file_io(dict(properties), warehouse)


def _list(io: Any, warehouse: str) -> str:
    parts = urlsplit(warehouse)
    # PyArrowFileIO gives a file system of Arrow, FsspecFileIO one of fsspec.
    if hasattr(io, "fs_by_scheme"):
        from pyarrow.fs import FileSelector

        place = f"{parts.netloc}{parts.path}".rstrip("/")
        below = FileSelector(place, allow_not_found=bool(parts.path.strip("/")))
        io.fs_by_scheme(parts.scheme, parts.netloc).get_file_info(below)
    else:
        system = io.get_fs(parts.scheme, parts.hostname)
        system.invalidate_cache()
        system.ls(f"{parts.scheme}://{parts.netloc}/")
    return warehouse


def _write(io: FileIO, path: str) -> str:
    with io.new_output(path).create() as stream:
        stream.write(CONTENT)
    return path.rpartition("/")[2]


def _read(io: FileIO, path: str, faults: tuple[type[Exception], ...]) -> str:
    found = b""
    try:
        with io.new_input(path).open() as stream:
            found = stream.read()
    finally:
        if found != CONTENT:
            # The step that removes it is not asked after this one has failed.
            with suppress(*faults):
                io.delete(path)
    if found != CONTENT:
        raise ConnectorError(
            f"{len(CONTENT)} bytes were written and {len(found)} others came back",
            where=path,
            todo="Does a proxy or a gateway in front of the store change what passes?",
        )
    return f"{len(found)} bytes"


def _remove(io: FileIO, path: str) -> str:
    io.delete(path)
    return "nothing is left behind"
