"""Nessie's REST API, version 2: the contents of a branch, and commits to it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import requests
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ForbiddenError,
    RESTError,
    ServerError,
    UnauthorizedError,
)
from urllib3.exceptions import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Key = tuple[str, ...]
Content = dict[str, Any]

CONNECT_SECS = 5
ANSWER_SECS = 60
PAGE_SIZE = 500


class ConflictError(Exception):
    """Nessie refused a commit, because the branch is not in the expected state.

    Attributes:
        kinds: Nessie's names for the conflicts, such as `KEY_EXISTS`.
    """

    def __init__(self, message: str, kinds: frozenset[str]) -> None:
        super().__init__(message)
        self.kinds = kinds


class UnreadableResponseError(RESTError):
    """A response that is not from Nessie's API: another server is at the address."""

    def __init__(self) -> None:
        super().__init__("Nessie answered with no JSON from its API; check the address")


@dataclass(frozen=True)
class BranchContents:
    """Contents of a branch at one commit.

    Attributes:
        commit: the commit.
        contents: the contents of the requested keys that exist.
    """

    commit: str
    contents: dict[Key, Content]


class NessieApi:
    """One branch of one server. Any number of threads may use it at the same time."""

    def __init__(self, uri: str, branch: str, token: str | None = None) -> None:
        self._uri = uri
        self._branch = branch
        self._session = requests.Session()
        self._session.headers["Accept"] = "application/json"
        # Without it, the server does not report the kinds of conflicts.
        self._session.headers["Nessie-Client-Spec"] = "2"
        if token is not None:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def contents(self, *keys: Key) -> BranchContents:
        """Return the contents of some keys, all at one commit."""
        request = {"requestedKeys": [{"elements": list(key)} for key in keys]}
        answer = self._read("POST", f"{self._path()}/contents", request)
        with _reject_unreadable():
            contents = {tuple(e["key"]["elements"]): e["content"] for e in answer["contents"]}
            return BranchContents(answer["effectiveReference"]["hash"], contents)

    def head(self) -> str:
        """Return the newest commit of the branch."""
        answer = self._read("GET", self._path())
        with _reject_unreadable():
            hash_: str = answer["reference"]["hash"]
            return hash_

    def names(self, kind: str, namespace: Key) -> Iterator[Key]:
        """Yield the keys of one kind directly below a namespace."""
        depth = len(namespace) + 1
        conditions = [
            f"entry.contentType == {json.dumps(kind)}",
            f"size(entry.keyElements) == {depth}",
        ]
        conditions += [
            f"entry.keyElements[{index}] == {json.dumps(name)}"
            for index, name in enumerate(namespace)
        ]
        params = {"filter": " && ".join(conditions), "max-records": str(PAGE_SIZE)}
        while True:
            answer = self._read("GET", f"{self._path()}/entries", params=params)
            with _reject_unreadable():
                names = [tuple(entry["name"]["elements"]) for entry in answer["entries"]]
                next_page = answer["token"] if answer.get("hasMore") else None
            yield from names
            if next_page is None:
                return
            params["page-token"] = next_page

    def commit(self, message: str, operations: Sequence[dict[str, Any]], at: str) -> None:
        """Change the branch, unless the same keys were changed after the commit `at`.

        Raises:
            ConflictError: they were.
            CommitStateUnknownException: no valid response, so the outcome is unknown.
        """
        body = {"commitMeta": {"message": message}, "operations": list(operations)}
        try:
            self._request("POST", f"{self._path(at)}/history/commit", body)
        except (ServerError, UnreadableResponseError) as exc:
            raise CommitStateUnknownException(str(exc)) from exc
        except requests.ConnectTimeout:
            raise
        except (requests.Timeout, requests.exceptions.ChunkedEncodingError) as exc:
            raise CommitStateUnknownException(f"Nessie: {exc}") from exc
        except requests.ConnectionError as exc:
            if _is_disconnect(exc):
                raise CommitStateUnknownException(f"Nessie: {exc}") from exc
            raise

    def close(self) -> None:
        self._session.close()

    def _path(self, at: str = "") -> str:
        return f"/trees/{quote(self._branch, safe='')}" + (f"@{at}" if at else "")

    def _read(
        self, verb: str, path: str, body: Any = None, *, params: dict[str, str] | None = None
    ) -> Any:
        """Send a read-only request; repeat it once if a kept-alive connection was dead."""
        try:
            return self._request(verb, path, body, params=params)
        except requests.ReadTimeout as exc:
            # Its own text does not name the server.
            raise requests.ReadTimeout(f"Nessie: {exc}") from exc
        except requests.ConnectionError as exc:
            if not _is_disconnect(exc):
                raise
            return self._request(verb, path, body, params=params)

    def _request(
        self, verb: str, path: str, body: Any = None, *, params: dict[str, str] | None = None
    ) -> Any:
        response = self._session.request(
            verb, self._uri + path, json=body, params=params, timeout=(CONNECT_SECS, ANSWER_SECS)
        )
        try:
            content = response.json()
        except requests.exceptions.JSONDecodeError:
            content = None if response.ok else {"message": "no JSON"}
        if not response.ok:
            raise _error_for(response.status_code, content)
        if not isinstance(content, dict) or "message" in content:
            raise UnreadableResponseError
        return content


@contextmanager
def _reject_unreadable() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError) as exc:
        raise UnreadableResponseError from exc


def _is_disconnect(fault: requests.ConnectionError) -> bool:
    """Tell whether there was a connection, so that the server may have got the request."""
    return bool(fault.args) and isinstance(fault.args[0], ProtocolError)


def _error_for(status: int, content: Any) -> Exception:
    error = content if isinstance(content, dict) else {}
    code, message = error.get("errorCode", ""), error.get("message", "")
    text = f"Nessie answered {status} {code}: {message}"
    if status == 401:
        return UnauthorizedError(text)
    if status == 403:
        return ForbiddenError(text)
    if status == 409:
        conflicts = (error.get("errorDetails") or {}).get("conflicts") or []
        kinds = frozenset(str(conflict.get("conflictType")) for conflict in conflicts)
        return ConflictError(text, kinds)
    return ServerError(text) if status >= 500 else RESTError(text)
