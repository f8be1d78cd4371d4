"""The object stores, Glue and MariaDB of the tests, really used, killed and started again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.waiting import wait_until

if TYPE_CHECKING:
    from tests.fixtures.azure_store import AzureStore
    from tests.fixtures.gcs_store import GcsStore
    from tests.fixtures.glue import GlueServer
    from tests.fixtures.mariadb import MariaDb
    from tests.fixtures.s3_store import S3Store


def test_s3_returns_an_object_to_pyarrow(s3_store: S3Store) -> None:
    from pyarrow.fs import S3FileSystem

    bucket = s3_store.new_bucket()
    files = S3FileSystem(
        endpoint_override=s3_store.endpoint,
        region=s3_store.region,
        access_key=s3_store.access_key_id,
        secret_key=s3_store.secret_access_key,
    )
    with files.open_output_stream(f"{bucket}/a folder/o=1") as output:
        output.write(b"kept")

    with files.open_input_file(f"{bucket}/a folder/o=1") as found:
        assert found.read() == b"kept"


@pytest.mark.parametrize(
    ("access_key_id", "secret_access_key", "code"),
    [
        ("outsider", "only-for-outsiders", "AccessDenied"),
        ("owner", "wrong", "SignatureDoesNotMatch"),
        ("nobody", "wrong", "InvalidAccessKeyId"),
    ],
)
def test_s3_refuses_a_user_without_permission(
    s3_store: S3Store, access_key_id: str, secret_access_key: str, code: str
) -> None:
    from botocore.exceptions import ClientError

    bucket = s3_store.new_bucket()
    client = s3_store.client(access_key_id, secret_access_key)

    with pytest.raises(ClientError) as refused:
        client.list_objects_v2(Bucket=bucket)

    answer = refused.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, 403)


def test_s3_conditional_write_succeeds_only_once(s3_store: S3Store) -> None:
    from botocore.exceptions import ClientError

    bucket, client = s3_store.new_bucket(), s3_store.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")

    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")

    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first"


def test_own_s3_keeps_its_objects_and_users_after_a_kill(s3_store_own: S3Store) -> None:
    from botocore.exceptions import ClientError

    bucket = s3_store_own.new_bucket()
    s3_store_own.client().put_object(Bucket=bucket, Key="k", Body=b"kept")
    s3_store_own.kill()
    s3_store_own.start()

    outsider = s3_store_own.client(
        s3_store_own.outsider_access_key_id, s3_store_own.outsider_secret_access_key
    )
    with pytest.raises(ClientError, match="AccessDenied"):
        outsider.get_object(Bucket=bucket, Key="k")
    found = s3_store_own.client().get_object(Bucket=bucket, Key="k")
    assert found["Body"].read() == b"kept"


def test_own_gcs_keeps_its_objects_after_a_kill(gcs_store_own: GcsStore) -> None:
    from pyarrow.fs import GcsFileSystem

    bucket = gcs_store_own.new_bucket()
    files = GcsFileSystem(
        anonymous=True,
        scheme="http",
        endpoint_override=f"{gcs_store_own.host}:{gcs_store_own.port}",
        retry_time_limit=timedelta(seconds=30),
    )
    with files.open_output_stream(f"{bucket}/a folder/o=1") as output:
        output.write(b"kept")
    gcs_store_own.kill()
    gcs_store_own.start()

    with files.open_input_file(f"{bucket}/a folder/o=1") as found:
        assert found.read() == b"kept"


def test_own_azure_keeps_what_is_on_disk_after_a_kill(azure_store_own: AzureStore) -> None:
    container = azure_store_own.new_container()
    with azure_store_own.client() as client:
        client.get_blob_client(container, "a folder/o=1").upload_blob(b"kept")
    wait_until(lambda: azure_store_own.is_on_disk("a folder/o=1"), "the blob to be noted")
    azure_store_own.kill()
    azure_store_own.start()

    with azure_store_own.client() as client:
        found = client.get_blob_client(container, "a folder/o=1").download_blob().readall()
    assert found == b"kept"


def test_own_azure_keeps_everything_after_a_stop(azure_store_own: AzureStore) -> None:
    container = azure_store_own.new_container()
    with azure_store_own.client() as client:
        client.get_blob_client(container, "k").upload_blob(b"kept")
    azure_store_own.stop()
    azure_store_own.start()

    with azure_store_own.client() as client:
        assert client.get_blob_client(container, "k").download_blob().readall() == b"kept"


def test_azure_accepts_a_token_until_it_expires(azure_store: AzureStore) -> None:
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob import BlobClient

    container = azure_store.new_container()
    good = azure_store.sas_token(container)
    old = azure_store.sas_token(container, lasts=timedelta(minutes=-5))

    def blob(token: str) -> BlobClient:
        return BlobClient(azure_store.endpoint, container, "k", credential=token, retry_total=0)

    with blob(good) as client:
        client.upload_blob(b"kept")
        assert client.download_blob().readall() == b"kept"
    with blob(old) as client, pytest.raises(HttpResponseError) as refused:
        client.download_blob()
    assert refused.value.status_code == 403


def test_glue_lists_databases_and_serves_their_bucket(glue_server: GlueServer) -> None:
    bucket = glue_server.new_bucket()
    location = f"s3://{bucket}/lake"
    glue_server.client().create_database(DatabaseInput={"Name": bucket, "LocationUri": location})
    glue_server.client("s3").put_object(Bucket=bucket, Key="k", Body=b"kept")

    found = glue_server.client().get_database(Name=bucket)["Database"]
    assert (found["Name"], found["LocationUri"]) == (bucket, location)
    body = glue_server.client("s3").get_object(Bucket=bucket, Key="k")["Body"]
    assert body.read() == b"kept"


def test_own_glue_restarts_empty_after_a_kill(glue_server_own: GlueServer) -> None:
    glue_server_own.client().create_database(DatabaseInput={"Name": "d"})
    glue_server_own.kill()
    glue_server_own.start()

    assert glue_server_own.client().get_databases()["DatabaseList"] == []


def test_mariadb_logs_each_row_of_a_change(mariadb: MariaDb) -> None:
    database = mariadb.new_database()
    with mariadb.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (7)")
        cursor.execute("SELECT @@server_id, @@log_bin, @@binlog_format, @@binlog_row_image")
        settings = cursor.fetchone()
        cursor.execute("SHOW BINLOG EVENTS")
        kinds = {event[2] for event in cursor.fetchall()}

    assert settings == (1, 1, "ROW", "FULL")
    assert {kind for kind in kinds if kind.startswith("Write_rows")}


def test_mariadb_refuses_a_wrong_password(mariadb: MariaDb) -> None:
    import pymysql

    with pytest.raises(pymysql.OperationalError, match="Access denied for user 'icestream'"):
        mariadb.connect(password="wrong")  # noqa: S106


def test_own_mariadb_keeps_its_rows_after_a_kill(mariadb_own: MariaDb) -> None:
    database = mariadb_own.new_database()
    with mariadb_own.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (7)")
    mariadb_own.kill()
    mariadb_own.start()

    with mariadb_own.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM t")
        assert cursor.fetchall() == ((7,),)
