"""The webhook source held to the suite of all sources, and what is its own."""

from __future__ import annotations

import json
import pickle
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.ports import answers, free_port

from icestream.errors import (
    ConnectorError,
    CorruptStateError,
    SourceChangedError,
    TransientError,
)
from icestream.sources.webhook import WebhookOptions, WebhookSource
from icestream.sources.webhook.segments import NO_KEY, Arrival
from icestream.sources.webhook.spool import Spool
from icestream.testing.source_suite import SourceSuite, System, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Hook:
    """An endpoint; events are posted while it listens, and put into the spool while not."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.spool = folder / "spool"
        self.port = free_port()
        self.changes = changes
        self.sources: list[WebhookSource] = []
        self.added = 0

    def source(self) -> WebhookSource:
        include = ["event_id", "received_at", "stream", "number", "headers"]
        settings = {"port": self.port, "spool": str(self.spool), "include": include, **self.changes}
        self.sources.append(WebhookSource(WebhookOptions.model_validate(settings)))
        return self.sources[-1]

    def add(self, rows: int) -> None:
        events = [{"id": self.added + place} for place in range(rows)]
        self.added += rows
        if answers(self.port):
            self.post(events)
            return
        spool = Spool(self.spool)
        spool.append(
            [Arrival(b"/", 1, NO_KEY, b"", b"", [json.dumps(each).encode()]) for each in events]
        )
        spool.close()

    def post(self, events: object, **headers: str) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/", json.dumps(events), headers)
        answer = connection.getresponse()
        body: dict[str, Any] = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, body
        return body

    def close(self) -> None:
        for source in self.sources:
            source.close()


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    hook = Hook(tmp_path)
    yield hook
    hook.close()


class TestWebhook(SourceSuite):
    @pytest.fixture
    def system(self, hook: Hook) -> System:
        return hook


def test_segments_are_removed_only_after_their_commit(hook: Hook, tmp_path: Path) -> None:
    hook.changes["max_spool_mb"] = 4
    source = hook.source()
    start = source.initial()
    for number in range(4):
        hook.post([{"id": number, "filling": "x" * 700_000}])
    hook.post([{"id": 4}])
    end = source.latest(start)

    files = sorted(hook.spool.glob("*.events"))
    assert len(files) == 3
    source.committed({**end, "event": 3}, 3)
    assert sorted(hook.spool.glob("*.events")) == files[1:]
    assert len(rows_of(source, {**end, "event": 2}, end)) == 3

    source.committed(end, 2)
    assert sorted(hook.spool.glob("*.events")) == files[2:]
    assert source.latest(end) == end
    assert source.initial() == {**end, "event": 4}


def test_duplicate_is_recognised_after_segment_removal_and_restart(hook: Hook) -> None:
    hook.changes["max_spool_mb"] = 4
    source = hook.source()
    start = source.initial()
    body = [{"id": 1, "filling": "x" * 900_000}]
    for number in range(3):
        key = {"Idempotency-Key": f"k{number}"}
        assert hook.post(body, **key) == {"taken": 1, "already_had": 0}
    source.committed(source.latest(start), 3)
    assert source.initial()["event"] == 2
    source.close()

    anew = hook.source()
    anew.initial()
    for number in range(3):
        key = {"Idempotency-Key": f"k{number}"}
        assert hook.post(body, **key) == {"taken": 0, "already_had": 1}


def test_committed_segments_are_removed_at_the_start(hook: Hook) -> None:
    hook.changes["max_spool_mb"] = 4
    source = hook.source()
    start = source.initial()
    for number in range(2):
        hook.post([{"id": number, "filling": "x" * 1_000_000}])
        hook.post([{"id": number, "filling": "x" * 100_000}])
    end = source.latest(start)
    source.close()

    anew = hook.source()
    assert len(list(hook.spool.glob("*.events"))) == 2
    anew.committed(end, 0)
    assert len(list(hook.spool.glob("*.events"))) == 1


def test_offset_of_another_spool_is_refused(hook: Hook) -> None:
    source = hook.source()
    current = source.initial()
    with pytest.raises(SourceChangedError) as caught:
        source.latest({**current, "spool": "old"})
    assert str(caught.value) == (
        f"source webhook 127.0.0.1:{hook.port}: the spool {hook.spool} is not the one of the "
        f"checkpoint (id 'old', now {current['spool']!r})\n"
        "  Set `spool` to the old folder: it has unread events. Without it, read the new one with "
        "`icestream run --start-over`."
    )


def test_offset_past_the_end_of_the_spool_is_refused(hook: Hook) -> None:
    source = hook.source()
    hook_first = source.initial()
    hook.add(3)
    with pytest.raises(SourceChangedError) as caught:
        source.latest({**hook_first, "event": 4})
    assert str(caught.value) == (
        f"source webhook 127.0.0.1:{hook.port}: event 4 is not in the spool {hook.spool}, which "
        "holds events 0 to 2\n"
        "  Was it restored from a backup? Restore its latest state, or read what it holds "
        "with `icestream run --start-over`."
    )


def test_range_of_removed_events_is_refused(hook: Hook) -> None:
    source = hook.source()
    start = source.initial()
    with pytest.raises(SourceChangedError) as caught:
        source.splits(start, {**start, "event": 5}, 1)
    assert caught.value.what == "events 0 to 4 are gone; remaining: none"


def test_second_pipeline_on_a_source_is_refused(hook: Hook) -> None:
    hook.source().initial()
    with pytest.raises(ConnectorError) as caught:
        hook.source().initial()
    assert str(caught.value) == (
        f"source webhook 127.0.0.1:{hook.port}: cannot listen: address already in use\n"
        "  Does another program, or another pipeline with this source, use the port? Check "
        "`host` and `port`; ports below 1024 need a privilege."
    )
    hook.port = free_port()
    with pytest.raises(ConnectorError, match="is in use by process") as caught:
        hook.source().initial()
    assert caught.value.todo == (
        "A webhook source feeds one pipeline: write several tables with `route_by`, or give each "
        "pipeline a source with its own port and `spool`."
    )


def test_corrupt_record_is_reported_by_the_task_that_reads_it(hook: Hook) -> None:
    source = hook.source()
    start = source.initial()
    hook.add(3)
    (split,) = source.splits(start, source.latest(start), 1)
    (file,) = hook.spool.glob("*.events")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)

    with pytest.raises(CorruptStateError) as caught:
        list(source.read(split))
    assert str(caught.value) == (
        f"cannot read {file}: at byte 32: the checksum does not match\n"
        "  Restore it from a backup. It holds events that were acknowledged, so it must not be "
        "skipped."
    )


def test_tasks_get_no_secrets(hook: Hook) -> None:
    hook.changes["auth"] = {"type": "bearer", "secrets": "no-task-needs-it"}
    assert b"no-task-needs-it" not in pickle.dumps(hook.source())


def test_check_reports_a_running_pipeline(hook: Hook) -> None:
    hook.source().initial()
    step = next(step for step in hook.source().check() if step.name == "bind port")
    assert step.run().startswith("in use by process ")


def test_check_leaves_nothing_behind(hook: Hook, tmp_path: Path) -> None:
    for step in hook.source().check():
        step.run()
    assert list(tmp_path.iterdir()) == []
    assert not answers(hook.port)


def test_check_names_a_port_in_use_and_an_unwritable_folder(hook: Hook, tmp_path: Path) -> None:
    other = Hook(tmp_path / "other")
    other.port = hook.port
    other.source().initial()
    steps = {step.name: step for step in hook.source().check()}
    with pytest.raises(ConnectorError, match="cannot listen: address already in use"):
        steps["bind port"].run()
    other.close()

    hook.spool = tmp_path / "file" / "spool"
    (tmp_path / "file").write_text("")
    steps = {step.name: step for step in hook.source().check()}
    with pytest.raises(ConnectorError) as caught:
        steps["write spool"].run()
    assert caught.value.what == f"cannot use the spool {hook.spool}: not a directory"


def test_broken_spool_is_reported_once_and_reopened(hook: Hook) -> None:
    source = hook.source()
    start = source.initial()
    hook.add(2)
    endpoint = source._server
    assert endpoint is not None
    endpoint.spool.fault = OSError(5, "Input/output error")
    with pytest.raises(TransientError) as caught:
        source.latest(start)
    assert str(caught.value) == (
        f"source webhook 127.0.0.1:{hook.port}: cannot write to the spool {hook.spool}: "
        "[Errno 5] Input/output error"
    )
    assert not answers(hook.port)

    assert source.latest(start)["event"] == 2
    hook.add(1)
    assert source.latest(start)["event"] == 3


def test_stopped_server_is_reported_once_and_restarted(hook: Hook) -> None:
    source = hook.source()
    start = source.initial()
    endpoint = source._server
    assert endpoint is not None
    assert endpoint._thread is not None
    endpoint._server.should_exit = True
    endpoint._thread.join()
    with pytest.raises(TransientError, match="the webhook server has stopped"):
        source.latest(start)
    hook_end = source.latest(start)
    assert hook_end == start
    hook.add(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_stopped_writer_is_reported_once_and_restarted(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = hook.source()
    start = source.initial()
    endpoint = source._server
    assert endpoint is not None

    def run_out(_: object) -> list[bool]:
        raise MemoryError

    monkeypatch.setattr(endpoint.spool, "append", run_out)
    sender = threading.Thread(target=_post_unanswered, args=(hook.port,))
    sender.start()
    endpoint._commit._thread.join(20)
    with pytest.raises(TransientError, match="the thread that writes the spool has stopped"):
        source.latest(start)
    sender.join()
    assert source.latest(start) == start
    assert hook.post({"id": 1}) == {"taken": 1, "already_had": 0}


def _post_unanswered(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    with suppress(HTTPException, OSError):
        connection.request("POST", "/", "{}")
        connection.getresponse()
    connection.close()


def test_segments_stay_until_their_ids_are_flushed(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.changes["max_spool_mb"] = 4
    source = hook.source()
    start = source.initial()
    for key in ("1", "2"):
        hook.post([{"filling": "x" * 600_000}], **{"Idempotency-Key": key})
    hook.post([{"id": 1}])
    end = source.latest(start)
    endpoint = source._server
    assert endpoint is not None

    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(endpoint.spool._ids, "flush", refuse)
    source.committed(end, 2)
    assert len(list(hook.spool.glob("*.events"))) == 2
    monkeypatch.undo()
    source.committed(end, 2)
    assert len(list(hook.spool.glob("*.events"))) == 1
