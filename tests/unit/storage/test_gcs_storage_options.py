from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.fixtures.ports import closed_port

from icestream.contracts.jars import GCP_BUNDLE
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    UnreachableError,
)
from icestream.storage.blocks import storage_at
from icestream.storage.gcs import GcsOptions, GcsStorage

KEY = json.dumps(
    {"type": "service_account", "client_email": "me@p.example", "private_key": "PRIVATE"}
)


def build(**options: Any) -> GcsStorage:
    return GcsStorage(GcsOptions.model_validate(options))


def test_emulator_settings_for_spark_and_pyiceberg() -> None:
    storage = build(endpoint="http://127.0.0.1:4443", project_id="p", bucket="b")

    assert storage.spark_settings() == {
        "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO",
        "gcs.project-id": "p",
        "gcs.service.host": "http://127.0.0.1:4443",
        "gcs.no-auth": "true",
    }
    assert storage.pyiceberg_properties() == {
        "gcs.project-id": "p",
        "gcs.service.host": "http://127.0.0.1:4443",
        "gcs.oauth2.token": "none",
        "gcs.oauth2.token-expires-at": "4102444800000",
    }
    assert storage.warehouse() == "gs://b"
    assert storage.jars() == (GCP_BUNDLE,)
    assert storage.identity() == "gcs http://127.0.0.1:4443, project p"
    assert storage.environment() == {}


def test_key_is_used_at_an_endpoint_too() -> None:
    storage = build(endpoint="https://gcs.example", service_account_key=KEY)

    assert "gcs.no-auth" not in storage.spark_settings()
    assert "gcs.oauth2.token" not in storage.pyiceberg_properties()


def test_address_alone_uses_default_credentials() -> None:
    storage = storage_at("gs://bucket/lake")

    assert isinstance(storage, GcsStorage)
    assert storage.spark_settings() == {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}
    assert storage.pyiceberg_properties() == {}
    assert storage.identity() == "gcs of Google"


def test_path_of_a_key_is_passed_on() -> None:
    storage = build(service_account_key="/keys/a.json")

    assert storage.environment() == {"GOOGLE_APPLICATION_CREDENTIALS": "/keys/a.json"}


def test_key_text_becomes_one_file_that_child_processes_can_open() -> None:
    path = build(service_account_key=KEY).environment()["GOOGLE_APPLICATION_CREDENTIALS"]

    assert Path(path).read_text() == KEY
    read = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", path]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == KEY
    copy: GcsStorage = pickle.loads(pickle.dumps(build(service_account_key=KEY)))  # noqa: S301
    assert copy.environment() == {"GOOGLE_APPLICATION_CREDENTIALS": path}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory on this system")
def test_key_text_is_not_written_to_disk() -> None:
    path = build(service_account_key=KEY).environment()["GOOGLE_APPLICATION_CREDENTIALS"]

    assert path.startswith(f"/proc/{os.getpid()}/fd/")
    assert str(Path(path).readlink()).startswith("/memfd:")


def test_key_file_without_memfd_is_private_to_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    other = KEY.replace("PRIVATE", "OTHER")

    path = Path(build(service_account_key=other).environment()["GOOGLE_APPLICATION_CREDENTIALS"])

    assert path.parent == tmp_path
    assert path.read_text() == other
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("{", "begins like JSON, but is not valid: was it truncated?"),
        (
            '{"type": "authorized_user"}',
            "is JSON of the type 'authorized_user', but must be of the type 'service_account'",
        ),
        ("{}", "is JSON of the type None, but must be of the type 'service_account'"),
        (
            '{"type": "service_account", "client_email": "a"}',
            "is the key of a service account without private_key",
        ),
        ("", "is neither a file path nor JSON text"),
        ("-----BEGIN\nPRIVATE", "is neither a file path nor JSON text"),
    ],
)
def test_unusable_key_is_refused_without_showing_it(key: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(service_account_key=key)

    (error,) = caught.value.errors()
    assert error["loc"] == ("service_account_key",)
    assert error["msg"] == f"Value error, {message}"
    assert "PRIVATE" not in str(caught.value)


def steps(storage: GcsStorage) -> dict[str, Any]:
    return {step.name: step.run for step in storage.check("gs://b")}


def test_key_file_is_checked_before_the_store_is_reached(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(KEY)
    bad.write_text("{}")

    assert steps(build(service_account_key=str(good)))["read key"]() == "good.json"
    with pytest.raises(RefusedError) as caught:
        steps(build(service_account_key=str(bad)))["read key"]()
    assert str(caught.value) == (
        f"storage gcs of Google: the key file '{bad}' is JSON of the type None, but must be of the "
        "type 'service_account'\n"
        "  Create a JSON key of the service account, and name its file in "
        "`gcs.service_account_key`."
    )
    with pytest.raises(RefusedError) as caught:
        steps(build(service_account_key=str(tmp_path / "no.json")))["read key"]()
    assert str(caught.value) == (
        f"storage gcs of Google: the key file '{tmp_path}/no.json' cannot be read (No such file or "
        "directory)\n"
        "  Check `gcs.service_account_key`, and that this user may read the file."
    )


def test_store_that_is_down_is_reported_at_once() -> None:
    port = closed_port()

    with pytest.raises(UnreachableError) as caught:
        steps(build(endpoint=f"http://127.0.0.1:{port}"))["reach store"]()

    assert str(caught.value) == (
        f"storage gcs http://127.0.0.1:{port}: connection to 127.0.0.1:{port} refused\n"
        "  Is the server running? Check `gcs.endpoint`."
    )


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (
            "OSError: google::cloud::Status(UNAUTHENTICATED: Permanent error in Upload: 401)",
            RefusedError,
            "the store does not accept the credentials",
        ),
        (
            "com.google.cloud.storage.StorageException: 403 Forbidden: me@p.example does not have "
            "storage.objects.create access to the Google Cloud Storage object.",
            RefusedError,
            "the store denies access",
        ),
        (
            "OSError: google::cloud::Status(NOT_FOUND: The specified bucket does not exist.)",
            ConnectorError,
            "there is no such bucket",
        ),
        (
            "java.io.IOException: Your default credentials were not found. To set up Application "
            "Default Credentials for your environment, see the documentation",
            RefusedError,
            "no credentials were found",
        ),
        (
            "java.io.IOException: Error reading credential file from environment variable "
            "GOOGLE_APPLICATION_CREDENTIALS, value '/no.json': File does not exist.",
            RefusedError,
            "the key of the service account cannot be read",
        ),
        (
            "com.google.api.client.http.HttpResponseException: 400 Bad Request "
            '{"error":"invalid_grant","error_description":"Invalid JWT '
            'Signature."}',
            RefusedError,
            "Google does not accept the key of the service account",
        ),
        (
            "POST https://oauth2.googleapis.com/token "
            '{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a '
            'short-lived token (60 minutes) and in a reasonable timeframe."}',
            RefusedError,
            "this machine's clock and Google's are too far apart",
        ),
        (
            "OSError: google::cloud::Status(UNAVAILABLE: Retry policy exhausted: Couldn't connect)",
            UnreachableError,
            "no answer from the store",
        ),
    ],
)
def test_fault_of_google_is_explained(message: str, kind: type[IcestreamError], what: str) -> None:
    error = build().explain(message, "storage gcs")

    assert type(error) is kind
    assert error.what == what
    assert error.todo
