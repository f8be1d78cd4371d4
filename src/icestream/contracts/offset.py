"""Offsets in a source, as Spark logs them, and the batch marks that carry them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from icestream.errors import SupersededError

Offset: TypeAlias = dict[str, Any]
"""An offset in a source: a JSON object whose meaning only the source knows.

Two offsets of one source are equal if and only if they mean the same point in it.
"""

MAX_SHORT_TEXT = 200


def short_text(offset: Offset) -> str:
    """Return an offset as text of at most 200 characters, for people.

    A truncated text ends in a digest of the whole, so that two of them still differ.
    """
    text = json.dumps(offset, sort_keys=True)
    if len(text) <= MAX_SHORT_TEXT:
        return text
    end = f"... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"
    return text[: MAX_SHORT_TEXT - len(end)] + end


@dataclass(frozen=True)
class BatchMark:
    """Which batch of which pipeline a commit holds.

    Attributes:
        pipeline: the pipeline's name in the file.
        query_id: id of the Spark query, kept in its checkpoint; a new checkpoint has a new one.
        epoch: number of the batch within that query.
        source: what the pipeline reads (`Source.identity`).
        start: offset at which the batch starts.
        end: offset at which it ends.
        rows: rows written.
        instance: id of the running process that wrote it.
        load: id of the bounded load that the batch is a part of, where the rows of one load
            replace what the table held; empty otherwise.
        branch: the branch that the batch was written to; empty for the main one.
        generation: how often the pipeline had started with a new checkpoint; tells which of its
            marks in many tables is the newest.
        records: records read from the source, good and bad; of a batch of changes 0.
        bad: how many of them were bad, so that they were dropped or became dead letters.
        span: how many offsets lie between `start` and `end` (`Source.partition_ranges`); 0 if
            the source does not count records.
    """

    pipeline: str
    query_id: str
    epoch: int
    source: str
    start: Offset
    end: Offset
    rows: int = 0
    instance: str = ""
    load: str = ""
    branch: str = ""
    generation: int = 0
    records: int = 0
    bad: int = 0
    span: int = 0

    def to_json(self) -> str:
        """Return the mark in the one form that is stored and compared."""
        facts = asdict(self)
        for optional in ("load", "branch", "generation", "records", "bad", "span"):
            # The marks of older versions lack them, and must keep their text.
            if not facts[optional]:
                del facts[optional]
        return json.dumps(facts, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> BatchMark:
        """Read what `to_json` wrote; ValueError or TypeError if it is something else."""
        return cls(**json.loads(text))


def replay_name(pipeline: str) -> str:
    """Return the name in marks of replayed dead letters; no pipeline's name has a slash."""
    return f"{pipeline}/dlq"


def pipeline_of(name: str) -> str:
    """Return the pipeline that a mark belongs to, also one of replayed dead letters."""
    return name.removesuffix("/dlq")


def is_replay(mark: BatchMark) -> bool:
    """Tell whether a mark is of replayed dead letters; each replay has its own query id."""
    return mark.pipeline.endswith("/dlq")


def superseded_error(by: BatchMark, where: str) -> SupersededError:
    """Return the error of an instance that finds the mark of another one in the table."""
    return SupersededError(
        f"another instance of this pipeline has taken over and wrote batch {by.epoch}",
        where=where,
        todo="Nothing was written by this one. Run one instance of a pipeline at a time.",
    )
