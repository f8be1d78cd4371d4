"""Secrets of catalogs and stores are in nothing that a command shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.ports import closed_port
from tests.unit.cli.shop import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

FILE = """\
version: "1.0"
catalogs:
  polaris:
    type: rest
    rest:
      uri: http://127.0.0.1:PORT
      credential: id:hush-1
      properties:
        header.Authorization: Bearer hush-2
        oauth2-server-uri: http://127.0.0.1:PORT/t
    s3:
      bucket: b
      endpoint: http://127.0.0.1:PORT
      access_key_id: hush-3
      secret_access_key: hush-4
      session_token: hush-5
  bearer: {type: rest, rest: {uri: "http://127.0.0.1:PORT", token: hush-6}}
  pg:
    type: jdbc
    jdbc: {uri: "postgresql://127.0.0.1:PORT/d", user: u, password: hush-7}
    azure:
      storage_account: a
      container: c
      access_key: aHVzaC04
      endpoint: http://127.0.0.1:PORT
  maria:
    type: jdbc
    jdbc: {uri: "mariadb://127.0.0.1:PORT/d", user: u, password: hush-9}
    azure: {storage_account: a, container: c, sas_token: sig=hush-10}
  nes: {type: nessie, nessie: {uri: "http://127.0.0.1:PORT", warehouse: w, token: hush-11}}
sources:
  shop: {connector: datagen, config: {rows: 1}}
sinks:
  a: {connector: iceberg, config: {catalog: polaris, namespace: n, table: a}}
  b: {connector: iceberg, config: {catalog: bearer, namespace: n, table: b}}
  c: {connector: iceberg, config: {catalog: pg, namespace: n, table: c}}
  d: {connector: iceberg, config: {catalog: maria, namespace: n, table: d}}
  e: {connector: iceberg, config: {catalog: nes, namespace: n, table: e}}
pipelines:
  a: {source: shop, sink: a}
  b: {source: shop, sink: b}
  c: {source: shop, sink: c}
  d: {source: shop, sink: d}
  e: {source: shop, sink: e}
metrics: {port: 0}
"""
SECRET = re.compile("hush|aHVzaC04")


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("command", ["plan", "check", "snapshots a", "status"])
def test_no_command_shows_a_secret(
    icestream: Icestream, tmp_path: Path, command: str, output: str
) -> None:
    write_file(tmp_path, FILE.replace("PORT", str(closed_port())))

    ended = icestream("--verbose", *command.split(), "--output", output)

    assert ended.out + ended.err
    assert not SECRET.search(ended.out), SECRET.search(ended.out)
    assert not SECRET.search(ended.err), SECRET.search(ended.err)


def test_every_unreachable_component_is_reported(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, FILE.replace("PORT", str(closed_port())))

    ended = icestream("check")

    assert ended.code == 3
    keys = ("rest.uri", "jdbc.uri", "nessie.uri")
    assert all(f"`{key}`" in ended.out for key in keys), ended.out
    assert ended.out.splitlines()[-1] == "5 of 6 components failed."
