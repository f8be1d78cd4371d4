"""HDFS: Hadoop's own client for Spark, WebHDFS for Python."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit
from xml.etree import ElementTree

from pydantic import BeforeValidator, Field, WithJsonSchema

from icestream.contracts.faults import (
    TIMED_OUT,
    CheckStep,
    Fault,
    check_connection,
    first_match,
    mentions,
    transport_faults,
)
from icestream.contracts.options import HttpAddress, Options
from icestream.contracts.storage import Storage
from icestream.errors import ConnectorError, PlanError, RefusedError, TransientError
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icestream.errors import IcestreamError

# Properties of `webhdfs.HdfsFileIO`; behind the second, the host of a location may follow.
USER, WEB = "hdfs.user", "hdfs.web"
DEFAULT_WEB_PORT = 9870
CONFIGURATION = ("core-site.xml", "hdfs-site.xml")

# Recognises whose fault it is: sources and Spark report similar ones.
HDFS_PATTERN = r"hdfs://|WebHDFS|webhdfs|hadoop\.(hdfs|ipc|security)|NameNode|nameservice"
FAULTS = (
    Fault(
        r"HTTP status 401|Authentication required|SIMPLE authentication is not enabled"
        r"|Client cannot authenticate via",
        RefusedError,
        "the cluster requires Kerberos",
        "Kerberos is not supported.",
    ),
    Fault(
        r"AccessControlException|PermissionError|Permission denied",
        RefusedError,
        "HDFS denies access",
        "Give the user write permission on the warehouse's folder, or set `hdfs.user` to one that "
        "has it.",
    ),
    Fault(
        r"SafeModeException|in safe mode",
        TransientError,
        "the name node is in safe mode",
        "It leaves it once its data nodes have reported; `hdfs dfsadmin -safemode get` shows it.",
    ),
    Fault(
        r"QuotaExceeded",
        ConnectorError,
        "the folder's quota is used up",
        "Raise the quota (`hdfs dfsadmin -setSpaceQuota`), or remove files.",
    ),
    Fault(
        r"StandbyException",
        TransientError,
        "no name node is active",
        "Check the name nodes with `hdfs haadmin -getAllServiceState`, and that `hdfs.web` lists "
        "all of them.",
    ),
    Fault(
        r"could only be (written|replicated) to 0|no datanodes? running",
        TransientError,
        "no data node takes new blocks",
        "Check the data nodes with `hdfs dfsadmin -report`.",
    ),
    Fault(
        r"UnknownHostException|NameResolutionError|Name or service not known"
        r"|nodename nor servname|Failed to resolve",
        ConnectorError,
        "cannot resolve the name of a name node, a data node or a nameservice",
        "Set HADOOP_CONF_DIR to the folder of the cluster's core-site.xml and hdfs-site.xml, and "
        "check that this machine resolves the names of its data nodes.",
    ),
    *transport_faults(
        "HDFS",
        "the warehouse's address and `hdfs.web`",
        no_answer=rf"{TIMED_OUT}|ConnectTimeout|NoRouteToHost|RemoteDisconnected"
        r"|Connection aborted|Connection reset|HTTP status 50\d|ConnectException",
    ),
)


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Addresses: TypeAlias = Annotated[
    tuple[HttpAddress, ...],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class HdfsOptions(Options):
    """HDFS; the cluster's own configuration files are read from HADOOP_CONF_DIR."""

    user: str | None = Field(
        None,
        min_length=1,
        description="User to act as; defaults to HADOOP_USER_NAME, or the user of the process.",
    )
    web: Addresses | None = Field(
        None,
        min_length=1,
        description="WebHDFS addresses of the name nodes, or of HttpFS gateways; defaults to those "
        "in `hdfs-site.xml`, or `http://HOST:9870`.",
    )


class HdfsStorage(Storage):
    """HDFS folders, through Iceberg's HadoopFileIO and WebHDFS."""

    kind = "hdfs"
    schemes = ("hdfs",)
    options_type = HdfsOptions
    description = "HDFS."

    def __init__(self, options: HdfsOptions) -> None:
        self.options = options
        # Looked up here: the processes that this is sent to may have other variables.
        self._user = options.user or os.getenv("HADOOP_USER_NAME") or getpass.getuser()
        self._known = web_addresses(read_configuration(os.getenv("HADOOP_CONF_DIR")))

    @classmethod
    def normalize(cls, location: str) -> str:
        if not urlsplit(location).netloc:
            raise PlanError(
                f"the warehouse {location!r} names no name node",
                todo="Write `warehouse: hdfs://HOST:8020/FOLDER`, or hdfs://NAMESERVICE/FOLDER.",
            )
        return super().normalize(location)

    def identity(self) -> str:
        web = ", ".join(self.options.web or ())
        return f"hdfs {web}, user {self._user}" if web else f"hdfs, user {self._user}"

    def jars(self) -> tuple[str, ...]:
        return ()  # Spark includes Hadoop's client

    def environment(self) -> dict[str, str]:
        return {"HADOOP_USER_NAME": self.options.user} if self.options.user else {}

    def chain_variables(self) -> tuple[str, ...]:
        return () if self.options.user else ("HADOOP_USER_NAME",)

    def spark_settings(self) -> dict[str, str]:
        return {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}

    def pyiceberg_properties(self) -> dict[str, str]:
        properties = {"py-io-impl": "icestream.storage.webhdfs.HdfsFileIO", USER: self._user}
        if self.options.web is not None:
            properties[WEB] = ",".join(self.options.web)
        known = {f"{WEB}.{host}": ",".join(web) for host, web in self._known.items()}
        return {**properties, **known}

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        host = urlsplit(warehouse).hostname or ""
        default = (f"http://{host}:{DEFAULT_WEB_PORT}",)
        addresses = self.options.web or self._known.get(host, default)
        where = f"storage {self.identity()}"
        if len(addresses) == 1:
            # Of several, one may be down; listing tries them all.
            yield CheckStep(
                "reach store", lambda: check_connection(addresses[0], where, "`hdfs.web`")
            )
        yield from probe(self, warehouse)

    def explain(self, text: str, where: str) -> IcestreamError | None:
        if not mentions(text, HDFS_PATTERN):
            return None
        return first_match(FAULTS, text, where)


def read_configuration(folder: str | None) -> dict[str, str]:
    """Return the properties of Hadoop's configuration files in a folder.

    Raises:
        PlanError: a file is not XML.
    """
    found: dict[str, str] = {}
    for path in (Path(folder) / name for name in CONFIGURATION) if folder else ():
        if not path.exists():
            continue
        try:
            root = ElementTree.parse(path).getroot()  # noqa: S314 - the cluster's own
        except ElementTree.ParseError as exc:
            raise PlanError(
                f"is not XML ({exc})", where=str(path), todo="HADOOP_CONF_DIR names its folder."
            ) from exc
        for entry in root.iter("property"):
            found[entry.findtext("name", "").strip()] = entry.findtext("value", "").strip()
    return found


def web_addresses(configuration: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the WebHDFS addresses of each nameservice and name node in Hadoop's configuration."""
    secure = configuration.get("dfs.http.policy") == "HTTPS_ONLY"
    key = f"dfs.namenode.http{'s' if secure else ''}-address"
    scheme = "https" if secure else "http"
    found = {}
    for service in _names(configuration, "dfs.nameservices"):
        nodes = _names(configuration, f"dfs.ha.namenodes.{service}")
        keys = [f"{key}.{service}.{node}" for node in nodes] or [f"{key}.{service}"]
        found[service.lower()] = tuple(
            f"{scheme}://{configuration[each]}" for each in keys if each in configuration
        )
    host = urlsplit(configuration.get("fs.defaultFS", "")).hostname
    if host and host not in found and key in configuration:
        name, _, port = configuration[key].rpartition(":")
        found[host] = (f"{scheme}://{host if name == '0.0.0.0' else name}:{port}",)  # noqa: S104
    return {host: addresses for host, addresses in found.items() if addresses}


def _names(configuration: Mapping[str, str], key: str) -> list[str]:
    return [name.strip() for name in configuration.get(key, "").split(",") if name.strip()]
