from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.hdfs import write_hadoop_file

from icestream.errors import ConnectorError, IcestreamError, PlanError, RefusedError, TransientError
from icestream.storage.hdfs import HdfsOptions, HdfsStorage, read_configuration, web_addresses

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "me")


def storage(**options: Any) -> HdfsStorage:
    return HdfsStorage(HdfsOptions.model_validate(options))


def test_spark_needs_no_jar() -> None:
    assert storage().jars() == ()
    assert storage().spark_settings() == {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}


def test_python_writes_over_webhdfs() -> None:
    assert storage(web="http://nn:9870", user="etl").pyiceberg_properties() == {
        "py-io-impl": "icestream.storage.webhdfs.HdfsFileIO",
        "hdfs.user": "etl",
        "hdfs.web": "http://nn:9870",
    }
    assert storage(web=["http://a:1", "http://b:2"]).pyiceberg_properties()["hdfs.web"] == (
        "http://a:1,http://b:2"
    )
    assert storage().pyiceberg_properties()["hdfs.user"] == "me"


def test_user_is_set_for_spark_too() -> None:
    assert storage(user="etl").environment() == {"HADOOP_USER_NAME": "etl"}
    assert storage(user="etl").chain_variables() == ()
    assert storage().environment() == {}
    assert storage().chain_variables() == ("HADOOP_USER_NAME",)


def test_identity_names_the_user() -> None:
    assert storage().identity() == "hdfs, user me"
    assert storage(web="http://nn:9870").identity() == "hdfs http://nn:9870, user me"


def test_location_without_a_name_node_is_refused() -> None:
    assert HdfsStorage.normalize("hdfs://nn:8020/lake/") == "hdfs://nn:8020/lake"
    with pytest.raises(PlanError) as caught:
        HdfsStorage.normalize("hdfs:///lake")

    assert str(caught.value) == (
        "the warehouse 'hdfs:///lake' names no name node\n"
        "  Write `warehouse: hdfs://HOST:8020/FOLDER`, or hdfs://NAMESERVICE/FOLDER."
    )


def test_addresses_are_those_of_the_hadoop_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hadoop_file(
        tmp_path / "hdfs-site.xml",
        {
            "dfs.nameservices": "Lakes, one",
            "dfs.ha.namenodes.Lakes": "nn1, nn2",
            "dfs.namenode.http-address.Lakes.nn1": "a:9870",
            "dfs.namenode.http-address.Lakes.nn2": "b:9870",
            "dfs.namenode.http-address.one": "c:9870",
        },
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    properties = storage().pyiceberg_properties()

    assert properties["hdfs.web.lakes"] == "http://a:9870,http://b:9870"
    assert properties["hdfs.web.one"] == "http://c:9870"


@pytest.mark.parametrize(
    ("configuration", "found"),
    [
        ({}, {}),
        ({"fs.defaultFS": "hdfs://nn:8020"}, {}),
        (
            {"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": "0.0.0.0:50070"},
            {"nn": ("http://nn:50070",)},
        ),
        (
            {
                "fs.defaultFS": "hdfs://nn:8020",
                "dfs.http.policy": "HTTPS_ONLY",
                "dfs.namenode.https-address": "web:9871",
            },
            {"nn": ("https://web:9871",)},
        ),
        ({"dfs.nameservices": "lakes"}, {}),
    ],
)
def test_single_name_node_is_found_by_the_default_file_system(
    configuration: dict[str, str], found: dict[str, tuple[str, ...]]
) -> None:
    assert web_addresses(configuration) == found


def test_configuration_that_is_not_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>")

    with pytest.raises(PlanError) as caught:
        read_configuration(str(tmp_path))

    assert str(caught.value) == (
        f"{tmp_path}/core-site.xml: is not XML (no element found: line 1, column 15)\n"
        "  HADOOP_CONF_DIR names its folder."
    )


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("OSError: WebHDFS http://nn:9870: HTTP status 401: Unauthorized", RefusedError,
         "the cluster requires Kerberos"),
        ("PermissionError: WebHDFS http://nn:9870: AccessControlException: Permission denied",
         RefusedError, "HDFS denies access"),
        ("OSError: WebHDFS http://nn:9870: SafeModeException: Cannot create file", TransientError,
         "the name node is in safe mode"),
        ("OSError: WebHDFS x: StandbyException: Operation category READ", TransientError,
         "no name node is active"),
        ("OSError: WebHDFS x: DSQuotaExceededException: The DiskSpace quota", ConnectorError,
         "the folder's quota is used up"),
        ("java.lang.IllegalArgumentException: java.net.UnknownHostException: lakes\n"
         "hdfs://lakes/warehouse", ConnectorError,
         "cannot resolve the name of a name node, a data node or a nameservice"),
        ("IOException: File hdfs://nn/a could only be written to 0 of the 1 minReplication nodes",
         TransientError, "no data node takes new blocks"),
    ],
)  # fmt: skip
def test_faults_are_explained(text: str, kind: type[IcestreamError], what: str) -> None:
    error = storage().explain(text, "table lake.n.t")

    assert type(error) is kind
    assert error.what == what
    assert error.where == "table lake.n.t"
