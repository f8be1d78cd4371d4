"""Python's access to HDFS: files over WebHDFS, which is HTTP and needs no Java."""

from __future__ import annotations

import http.client
import io
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import requests
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from pyiceberg.io.fsspec import FsspecFileIO, FsspecInputFile, FsspecOutputFile

from icestream.storage.hdfs import DEFAULT_WEB_PORT, USER, WEB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.io import InputFile, OutputFile

CONNECT_SECS = 10
REQUEST_SECS = 60
READ_BYTES = 8 << 20
FAULTS: Mapping[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
}


class HdfsFileIO(FsspecFileIO):
    """Reads and writes `hdfs://HOST/PATH` for PyIceberg."""

    def new_input(self, location: str) -> FsspecInputFile:
        return FsspecInputFile(location, self._system(location))

    def new_output(self, location: str) -> FsspecOutputFile:
        return FsspecOutputFile(location, self._system(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        self._system(path).rm(path)

    def _system(self, location: str) -> AbstractFileSystem:
        parts = urlsplit(location)
        return self.get_fs(parts.scheme, parts.hostname)

    def _get_fs(self, scheme: str, hostname: str | None = None) -> AbstractFileSystem:  # noqa: ARG002
        host = hostname or ""
        default = f"http://{host}:{DEFAULT_WEB_PORT}"
        web = self.properties.get(WEB) or self.properties.get(f"{WEB}.{host}") or default
        return WebHdfs(tuple(web.split(",")), self.properties.get(USER))


class WebHdfs(AbstractFileSystem):  # type: ignore[misc]
    """One HDFS, through the name node that is active.

    Args:
        addresses: the HTTP addresses of its name nodes, or of HttpFS gateways.
        user: the user that it trusts us to be.
    """

    protocol = "hdfs"

    def __init__(self, addresses: tuple[str, ...], user: str | None, **kwargs: Any) -> None:
        if self._cached:
            return
        super().__init__(**kwargs)
        self._addresses = list(addresses)
        self._user = {"user.name": user} if user else {}
        self._session = requests.Session()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        # No part of a name is special to HDFS, so this is not a URL.
        rest = path.partition("://")[2]
        return (f"/{rest.partition('/')[2]}" if rest else path).rstrip("/") or "/"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        status = self.request("GET", "GETFILESTATUS", path).json()["FileStatus"]
        return _entry(path, status)

    def exists(self, path: str, **_: Any) -> bool:
        # fsspec's own takes every fault for a missing file.
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = self.request("GET", "LISTSTATUS", path).json()["FileStatuses"]["FileStatus"]
        folder = path.rstrip("/")
        entries = [_entry(f"{folder}/{status['pathSuffix']}", status) for status in found]
        return entries if detail else [entry["name"] for entry in entries]

    def rm(self, path: str, recursive: bool = False, **_: Any) -> None:
        self.request("DELETE", "DELETE", path, recursive=str(recursive).lower())

    def modified(self, path: str) -> datetime:
        changed: datetime = self.info(path)["last_modified"]
        return changed

    def request(self, method: str, operation: str, path: str, **parameters: Any) -> Any:
        """Send a request to the active name node, and return its answer.

        Raises:
            OSError: no name node answered, or it answered with an error.
        """
        fault: OSError | None = None
        for address in tuple(self._addresses):
            try:
                answer = self._send(method, address, operation, path, parameters)
                _raise_fault(answer, address)
            except (requests.ConnectionError, requests.Timeout, _StandbyError) as exc:
                fault = exc
                continue
            if address != self._addresses[0]:
                self._addresses.sort(key=lambda each: each != address)
            return answer
        raise fault or OSError("WebHDFS: no address")

    def _send(
        self, method: str, address: str, operation: str, path: str, parameters: Mapping[str, Any]
    ) -> requests.Response:
        return self._session.request(
            method,
            f"{address.rstrip('/')}/webhdfs/v1{quote(self._strip_protocol(path))}",
            params={"op": operation, **self._user, **parameters},
            # The name node redirects to a data node, which gets the content.
            allow_redirects=operation != "CREATE",
            timeout=(CONNECT_SECS, REQUEST_SECS),
        )

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any
    ) -> io.IOBase | AbstractBufferedFile:
        if mode == "rb":
            return _HdfsInput(self, path, mode, block_size or READ_BYTES)
        answer = self.request("PUT", "CREATE", path, overwrite="true")
        return HdfsOutput(answer.headers["Location"])


class _StandbyError(OSError):
    """The name node is not the active one."""


class _HdfsInput(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        answer = self.fs.request("GET", "OPEN", self.path, offset=start, length=end - start)
        content: bytes = answer.content
        return content


class HdfsOutput(io.RawIOBase):
    """A file that is sent to a data node in one request, so that it needs no appends.

    Args:
        location: where the name node says that its content goes.

    Raises:
        OSError: the data node does not answer.
    """

    def __init__(self, location: str) -> None:
        super().__init__()
        parts = urlsplit(location)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._host = parts.netloc
        self._connection = kind(parts.netloc, timeout=REQUEST_SECS)
        self._connection.putrequest("PUT", f"{parts.path}?{parts.query}")
        self._connection.putheader("Content-Type", "application/octet-stream")
        self._connection.putheader("Transfer-Encoding", "chunked")
        with self._named_faults():
            self._connection.endheaders()
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        block = memoryview(data).cast("B")
        if block:  # an empty chunk would end the file
            with self._named_faults():
                self._connection.send(b"%x\r\n" % len(block))
                self._connection.send(block)
                self._connection.send(b"\r\n")
            self._position += len(block)
        return len(block)

    def close(self) -> None:
        if self.closed:
            return
        try:
            with self._named_faults():
                self._connection.send(b"0\r\n\r\n")
                answer = self._connection.getresponse()
                text = answer.read().decode(errors="replace")
            if answer.status != http.client.CREATED:
                raise OSError(f"WebHDFS {self._host}: HTTP status {answer.status}: {text[:500]}")
        finally:
            self._connection.close()
            super().close()

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        """Name the data node in connection errors, which do not say where they come from."""
        try:
            yield
        except (OSError, http.client.HTTPException) as exc:
            raise OSError(f"WebHDFS data node {self._host}: {exc!r}") from exc


def _entry(name: str, status: Mapping[str, Any]) -> dict[str, Any]:
    changed = datetime.fromtimestamp(status["modificationTime"] / 1000, tz=timezone.utc)
    kind = status["type"].lower()
    return {"name": name, "size": status["length"], "type": kind, "last_modified": changed}


def _raise_fault(answer: requests.Response, address: str) -> None:
    if answer.ok:
        return
    try:
        fault = answer.json()["RemoteException"]
        name, message = str(fault["exception"]), str(fault["message"])
    except (ValueError, KeyError, TypeError):
        name, message = f"HTTP status {answer.status_code}", answer.reason
    text = f"WebHDFS {address}: {name}: {message}"
    if name == "StandbyException":
        raise _StandbyError(text)
    raise FAULTS.get(name, OSError)(text)
