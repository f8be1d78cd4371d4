"""PyIceberg's Hive metastore client, with failover to other addresses.

PyIceberg only uses the first address, waits for it indefinitely, and has a single connection, which
concurrent threads would close for each other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hive_metastore.ThriftHiveMetastore import Client
from pyiceberg.catalog.hive import HiveCatalog
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

if TYPE_CHECKING:
    from types import TracebackType

CONNECT_SECS = 5
ANSWER_SECS = 60


class MetastoreClient(HiveCatalog):
    """A Hive catalog whose calls go to the first address that answers."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._client: Any = Connections(properties["uri"].split(","))

    def ping(self) -> None:
        """Open and close a connection, to check that the server answers."""
        with self._client:
            pass

    def create_namespace(
        self, namespace: str | tuple[str, ...], properties: dict[str, str] | None = None
    ) -> None:
        # Without a location, the metastore would use its own warehouse; Java's client uses ours.
        name = self.identifier_to_database(namespace)
        location = f"{self.properties['warehouse'].rstrip('/')}/{name}.db"
        super().create_namespace(namespace, {"location": location, **(properties or {})})


class Connections:
    """A new connection for each `with`, to the address that answered last or to the next one.

    Any number of threads may use it at the same time.
    """

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._first = 0
        self._local = threading.local()

    def __enter__(self) -> Client:
        transport = self._open()
        self._stack.append(transport)
        return Client(TBinaryProtocol(transport))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.pop().close()
        if isinstance(fault, TTransportException):
            # The connection broke: the next call starts with the next address.
            self._first = (self._first + 1) % len(self._addresses)

    @property
    def _stack(self) -> list[Any]:
        """The open connections of this thread."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[Any] = self._local.stack
        return stack

    def _open(self) -> Any:
        count, first = len(self._addresses), self._first
        for index in (*range(first, count), *range(first)):
            try:
                transport = _connect(self._addresses[index])
            except TTransportException as exc:  # noqa: PERF203 - a handful of addresses
                fault = exc
            else:
                self._first = index
                return transport
        raise fault


def _connect(address: str) -> Any:
    parts = urlsplit(address)
    socket = TSocket(parts.hostname, parts.port)
    socket.setTimeout(CONNECT_SECS * 1000)
    transport = TBufferedTransport(socket)
    transport.open()
    socket.setTimeout(ANSWER_SECS * 1000)
    return transport
