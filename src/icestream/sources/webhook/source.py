"""The webhook source: an HTTP server on the driver; tasks read the events from its spool."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.faults import CheckStep
from icestream.contracts.source import Source, SourceTraits, Split
from icestream.errors import ConnectorError, SourceChangedError, TransientError
from icestream.formats.lookup import make_decoder, read_schema
from icestream.sources.webhook.options import WebhookOptions
from icestream.sources.webhook.segments import (
    EXTRA_TYPES,
    load_segment,
    make_splits,
    read_slices,
    segment_paths,
)
from icestream.sources.webhook.server import (
    WebhookServer,
    bind_socket,
    error_location,
    spool_error,
    tls_context,
)
from icestream.sources.webhook.spool import lock_holder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from icestream.contracts.decoder import Decoder, Records
    from icestream.contracts.offset import Offset
    from icestream.sources.webhook.segments import Segment


class WebhookSource(Source[WebhookOptions]):
    """Events posted over HTTP, each once by its id.

    An offset is the number of the next event, and the id of the spool that numbers them. The
    server listens from the first request for an offset until `close`.
    """

    options_type = WebhookOptions
    traits = SourceTraits(replayable=True)

    def __init__(self, options: WebhookOptions) -> None:
        super().__init__(options)
        self._declared = None if options.schema_ is None else read_schema(options.schema_)
        self._reset()

    def _reset(self) -> None:
        self._server: WebhookServer | None = None
        self._guard = threading.Lock()

    def required_packages(self) -> dict[str, str]:
        return dict.fromkeys(("uvicorn", "httptools"), "icestream[webhook]")

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only read files; authentication happens before events are written.
        return {
            "options": self.options.model_copy(update={"auth": None}),
            "_declared": self._declared,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def folder(self) -> Path:
        """The spool's folder."""
        return Path(self.options.spool or "")

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._running_server().port

    def identity(self) -> str:
        paths = ",".join(sorted(self.options.stream_by_path()))
        return f"webhook {self.options.port} {paths}"

    def initial(self) -> Offset:
        """Return the oldest event in the spool."""
        spool = self._running_server().spool
        return {"spool": str(spool.id), "event": spool.first}

    def latest(self, current: Offset) -> Offset:
        """Return the end of the durable events."""
        spool = self._running_server().spool
        self._refuse_foreign_offset(current, str(spool.id), spool.first, spool.end)
        end = spool.end
        return current if end == current["event"] else {"spool": str(spool.id), "event": end}

    def rows_between(self, start: Offset, end: Offset) -> int:
        count: int = end["event"] - start["event"]
        return count

    def partition_ranges(self, start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
        is_same_spool = start["spool"] == end["spool"]
        return {"event": (start["event"], end["event"])} if is_same_spool else {}

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        return {**end, "event": min(end["event"], start["event"] + max(max_rows, 1))}

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        if start == end:
            return []
        begin, stop = start["event"], end["event"]
        segments = self._segments()
        first, last = (segments[0].first, segments[-1].end) if segments else (0, 0)
        if begin < first or stop > last:
            remaining = f"events {first} to {last - 1}" if last > first else "none"
            raise SourceChangedError(
                f"events {begin} to {stop - 1} are gone; remaining: {remaining}",
                where=error_location(self.options),
                todo=f"Was the spool {self.folder} removed or restored from a backup?",
            )
        return make_splits(segments, begin, stop, slots)

    def read(self, split: Split) -> Iterator[Records]:
        return read_slices(split.what, self.options.extra_names())

    def first_rows(
        self,
        max_rows: int,
        tables: Collection[str] = (),  # noqa: ARG002 - the contract's
    ) -> Iterator[Records]:
        """Yield the oldest events of the spool, without the server that would receive more."""
        segments: list[Segment] = []
        for path in segment_paths(self.folder):
            segments.append(load_segment(path)[0])
            if segments[-1].end - segments[0].first >= max_rows:
                break
        begin, end = (segments[0].first, segments[-1].end) if segments else (0, 0)
        if begin == end:
            raise ConnectorError(
                f"the spool {self.folder} holds no events",
                where=error_location(self.options),
                todo="A webhook source receives events only while `icestream run` runs. Its "
                "pipeline can be tried on records of yours with `icestream test`.",
            )
        for split in make_splits(segments, begin, min(end, begin + max_rows), 1):
            yield from self.read(split)

    def decoder(self) -> Decoder:
        return make_decoder("json", schema=self._declared)

    def schema(self) -> pa.Schema | None:
        if self._declared is None:
            return None
        return pa.schema([*self._declared.columns, *(self.extra_columns() or ())])

    def extra_columns(self) -> pa.Schema | None:
        extras = self.options.extra_names()
        return pa.schema([(f"webhook_{name}", EXTRA_TYPES[name]) for name in extras]) or None

    def committed(self, position: Offset, rows: int) -> None:  # noqa: ARG002
        """Remove segments whose events are all committed."""
        spool = self._running_server().spool
        if position.get("spool") == str(spool.id):
            spool.release(position["event"])

    def check(self) -> Iterator[CheckStep]:
        if self.options.tls is not None:
            yield CheckStep("read certificate", self._read_certificate)
        yield CheckStep("bind port", self._bind)
        yield CheckStep("write spool", self._write_spool)

    def close(self) -> None:
        """Stop listening, after answering the requests that arrived."""
        with self._guard:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _running_server(self) -> WebhookServer:
        with self._guard:
            if self._server is None:
                self._server = WebhookServer(self.options)
            server = self._server
        try:
            server.raise_if_broken()
        except TransientError:
            # After the restart, the next call starts a new server.
            self.close()
            raise
        return server

    def _segments(self) -> list[Segment]:
        server = self._server
        if server is not None:
            return list(server.spool.segments)
        return [load_segment(path)[0] for path in segment_paths(self.folder)]

    def _refuse_foreign_offset(self, current: Offset, spool: str, first: int, end: int) -> None:
        if current.get("spool") != spool:
            raise SourceChangedError(
                f"the spool {self.folder} is not the one of the checkpoint "
                f"(id {current.get('spool')!r}, now {spool!r})",
                where=error_location(self.options),
                todo="Set `spool` to the old folder: it has unread events. Without it, read the "
                "new one with `icestream run --start-over`.",
            )
        if not first <= current["event"] <= end:
            raise SourceChangedError(
                f"event {current['event']} is not in the spool {self.folder}, which holds events "
                f"{first} to {end - 1}",
                where=error_location(self.options),
                todo="Was it restored from a backup? Restore its latest state, or read what it "
                "holds with `icestream run --start-over`.",
            )

    def _read_certificate(self) -> str:
        tls_context(self.options)
        return self.options.tls.cert if self.options.tls is not None else ""

    def _bind(self) -> str:
        owner = lock_holder(self.folder)
        if owner is not None:
            return f"in use by process {owner}, which runs the pipeline"
        bind_socket(self.options).close()
        return f"{self.options.host}:{self.options.port}"

    def _write_spool(self) -> str:
        """Check that the spool is writable, and leave nothing behind."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(b"icestream")
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise spool_error(self.options, exc) from exc
        return str(self.folder)
