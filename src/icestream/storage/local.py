"""Folders on this machine, or on a file system that every machine mounts at the same path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from icestream.contracts.faults import CheckStep
from icestream.contracts.storage import Storage
from icestream.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator


class LocalStorage(Storage):
    """Local folders, the default."""

    kind = "local"
    schemes = ("file",)

    @classmethod
    def normalize(cls, location: str) -> str:
        path = location.removeprefix("file:")
        if path.startswith("//"):
            path = "/" + path.lstrip("/")
        return f"file://{Path(path).expanduser().absolute()}"

    def identity(self) -> str:
        return "local files"

    def jars(self) -> tuple[str, ...]:
        return ()

    def spark_settings(self) -> dict[str, str]:
        return {}

    def pyiceberg_properties(self) -> dict[str, str]:
        return {}

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        yield CheckStep("write to warehouse", lambda: _write(warehouse))


def _write(warehouse: str) -> str:
    folder = Path(warehouse.removeprefix("file://"))
    probe = folder / ".icestream-check"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as exc:
        raise RefusedError(
            f"the warehouse {str(folder)!r} is not writable ({exc.strerror})",
            where="storage local files",
            todo="Give this user write permission, or set `warehouse` to another folder.",
        ) from exc
    return str(folder)
