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
    """Yield the steps that test a store below a location; they leave nothing behind.

    Args:
        storage: the store.
        warehouse: the location.
        properties: PyIceberg's properties for it, if they are not the store's own.
    """
    path = f"{warehouse.rstrip('/')}/.icestream-check-{uuid.uuid4().hex[:12]}"
    where = f"storage {storage.identity()}"

    def step(name: str, action: Callable[[FileIO], str]) -> CheckStep:
        def run() -> str:
            try:
                return action(_file_io(properties or storage.pyiceberg_properties(), warehouse))
            except ModuleNotFoundError as exc:
                raise _missing_package_error(exc, storage, where) from exc
            except storage.faults() as exc:
                text = exception_text(exc)
                # The warehouse's address marks the fault as one of this store.
                error = storage.explain(f"{text}\n{warehouse}", where)
                raise error or _unknown_error(text, storage, where) from None

        return CheckStep(name, run)

    yield step("list store", lambda io: _list(io, warehouse))
    yield step("write an object", lambda io: _write(io, path))
    yield step("read it back", lambda io: _read(io, path, storage.faults()))
    yield step("remove it", lambda io: _remove(io, path))


def _missing_package_error(
    fault: ModuleNotFoundError, storage: Storage, where: str
) -> DependencyError:
    return DependencyError(
        f"needs the package {fault.name}, which is not installed",
        where=where,
        todo=f"pip install 'icestream[{storage.kind}]'",
    )


def _unknown_error(text: str, storage: Storage, where: str) -> ConnectorError:
    return ConnectorError(
        f"the store answered: {storage.mask_secrets(text.splitlines()[0])}",
        where=where,
        todo=f"Check the `{storage.kind}` block.",
    )


def _file_io(properties: Mapping[str, str], warehouse: str) -> FileIO:
    from pyiceberg.io import load_file_io

    return load_file_io(dict(properties), warehouse)


def _list(io: Any, warehouse: str) -> str:
    parts = urlsplit(warehouse)
    # PyArrowFileIO gives a file system of Arrow, FsspecFileIO one of fsspec.
    if hasattr(io, "fs_by_scheme"):
        from pyarrow.fs import FileSelector

        folder = f"{parts.netloc}{parts.path}".rstrip("/")
        below = FileSelector(folder, allow_not_found=bool(parts.path.strip("/")))
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
    content = b""
    try:
        with io.new_input(path).open() as stream:
            content = stream.read()
    finally:
        if content != CONTENT:
            # The step that removes it does not run if this one fails.
            with suppress(*faults):
                io.delete(path)
    if content != CONTENT:
        raise ConnectorError(
            f"{len(CONTENT)} bytes were written and {len(content)} different bytes were read back",
            where=path,
            todo="Does a proxy or a gateway in front of the store modify responses?",
        )
    return f"{len(content)} bytes"


def _remove(io: FileIO, path: str) -> str:
    io.delete(path)
    return "removed"
