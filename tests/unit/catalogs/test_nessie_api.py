"""What our client of Nessie makes of answers, given by a server of ours."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException, RESTError

from icestream.catalogs.nessie import NessieCatalog, NessieCatalogOptions
from icestream.catalogs.nessie_api import ConflictError, NessieApi
from icestream.errors import ConnectorError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Answers(ThreadingHTTPServer):
    """Answers each request with the next of the answers; None breaks off."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, Any] | None] = []
        self.requests: list[tuple[str, str | None]] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/v2"


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        answer = self.server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        body = json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815 - the base class's names

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def api(server: Answers) -> Iterator[NessieApi]:
    api = NessieApi(server.uri, "team/dev", "a-token")
    yield api
    api.close()


def test_branch_and_token_reach_the_server(server: Answers, api: NessieApi) -> None:
    server.answers = [(200, {"reference": {"hash": "h1"}})]

    assert api.head() == "h1"
    assert server.requests == [("/api/v2/trees/team%2Fdev", "Bearer a-token")]


def test_read_is_retried_once_if_the_connection_breaks(server: Answers, api: NessieApi) -> None:
    server.answers = [None, (200, {"reference": {"hash": "h1"}})]

    assert api.head() == "h1"


@pytest.mark.parametrize("answer", [None, (500, {"message": "no database"}), (502, {})])
def test_commit_without_a_response_is_unknown_and_not_retried(
    server: Answers, api: NessieApi, answer: tuple[int, Any] | None
) -> None:
    server.answers = [answer]

    with pytest.raises(CommitStateUnknownException):
        api.commit("m", [], "h1")

    assert [path for path, _ in server.requests] == ["/api/v2/trees/team%2Fdev@h1/history/commit"]


ODD = [[], "text", 5, None, {}, {"reference": "main"}, {"message": "hello"}, {"contents": [{}]}]


@pytest.mark.parametrize("answer", ODD, ids=str)
def test_another_server_at_the_address_is_recognised(server: Answers, answer: Any) -> None:
    server.answers = [(200, answer)]
    block = {"nessie": {"uri": server.uri, "warehouse": "/w"}}
    catalog = NessieCatalog("lake", NessieCatalogOptions.model_validate(block))

    with pytest.raises(ConnectorError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog 'lake' ({catalog.identity()}): the server at that path is not Nessie's API\n"
        "  Check `nessie.uri`; it is usually `http://HOST:19120/api/v2`."
    )


@pytest.mark.parametrize("answer", ODD, ids=str)
def test_response_without_contents_is_unreadable(
    server: Answers, api: NessieApi, answer: Any
) -> None:
    server.answers = [(200, answer), (200, answer)]

    with pytest.raises(RESTError, match="no JSON from its API; check the address"):
        api.contents(("db", "t"))
    with pytest.raises(RESTError, match="no JSON from its API; check the address"):
        list(api.names("ICEBERG_TABLE", ("db",)))


@pytest.mark.parametrize("answer", [[], "text", None], ids=str)
def test_commit_with_an_unreadable_response_is_unknown(
    server: Answers, api: NessieApi, answer: Any
) -> None:
    server.answers = [(200, answer)]

    with pytest.raises(CommitStateUnknownException):
        api.commit("m", [], "h1")


def test_conflict_has_its_kinds(server: Answers, api: NessieApi) -> None:
    details = {"conflicts": [{"conflictType": "KEY_EXISTS"}]}
    server.answers = [(409, {"message": "no", "errorCode": "X", "errorDetails": details})]

    with pytest.raises(ConflictError, match="Nessie answered 409 X: no") as caught:
        api.commit("m", [], "h1")

    assert caught.value.kinds == {"KEY_EXISTS"}


def test_refused_token_is_not_shown(server: Answers) -> None:
    server.answers = [(401, {"message": "a-token is not known"})]
    nessie = {"uri": server.uri, "warehouse": "/w", "token": "a-token"}
    catalog = NessieCatalog("lake", NessieCatalogOptions.model_validate({"nessie": nessie}))

    with pytest.raises(RefusedError) as caught:
        catalog.client()

    assert str(caught.value) == (
        f"catalog 'lake' ({catalog.identity()}): Nessie rejects the token, or requires one\n"
        "  Check `nessie.token`, and whether it has expired."
    )
    assert caught.value.__cause__ is None
