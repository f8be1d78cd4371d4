"""`icestream dlq`: look at dead letters, and let them through once they are good."""

from __future__ import annotations

import base64
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Screen, with_config
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.engine.dead_letters.replay import Replayed
    from icestream.engine.dead_letters.table import Letters
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.tables.lookup import FoundTable

REASONS = ("letters", "pipeline", "newest (UTC)", "reason")
NEWEST = ("failed at (UTC)", "pipeline", "batch", "position", "reason", "record")
SHOWN = 60
SPAN = re.compile(r"(\d+)\s*(s|m|h|d)")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.group("dlq", short_help="Show dead letters, and replay them.")
def command() -> None:
    """Show the records that tables did not take, and let them through once they are good."""


@command.command("list", short_help="Show dead letters by reason, and the newest.")
@click.option("--pipeline", metavar="NAME", help="Only those of this pipeline.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The most reasons and the most letters to show.",
)
@with_config
def list_command(screen: Screen, path: Path, pipeline: str | None, limit: int) -> int:
    """Show dead letters by reason, and the newest of them. No Spark is started."""
    from icestream.config import load
    from icestream.engine.dead_letters.table import list_letters
    from icestream.plan.planner import build

    plan = build(load(path)).enter_environment()
    chosen = _with_letters(plan, pipeline)
    reports, texts = [], []
    for name in dict.fromkeys(one.dead_letter.identity() for one in chosen if one.dead_letter):
        found = _table(plan, name)
        if found is None:
            reports.append({"table": name, "total": 0, "reasons": [], "letters": []})
            texts.append(f"{name}: no dead letters, the table is not made yet")
            continue
        letters = list_letters(found, pipeline=pipeline, limit=limit)
        reports.append(_document(name, letters))
        texts.append(_text(name, letters, limit))
    screen.show({"tables": reports}, "\n\n".join(texts))
    return 0


@command.command("replay", short_help="Let dead letters through that are good now.")
@click.option("--pipeline", metavar="NAME", required=True, help="The pipeline they belong to.")
@click.option("--reason", metavar="TEXT", help="Only letters whose reason has this text in it.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only letters that failed since then: `2026-11-15`, `2026-11-15T10:30`, or `2h` ago.",
)
@with_config
def replay_command(
    screen: Screen, path: Path, pipeline: str, reason: str | None, since: str | None
) -> int:
    """Read dead letters again, as the file describes the pipeline now.

    What is good now is written to the pipeline's table, exactly once, and leaves the dead-letter
    table. What is still bad stays there. The pipeline may run meanwhile.
    """
    from icestream.config import load
    from icestream.engine.dead_letters.replay import Replay, Replayed
    from icestream.engine.dead_letters.table import LetterBox
    from icestream.engine.run import open_plan_session
    from icestream.plan.planner import build, refuse_planned
    from icestream.tables.lookup import find_table

    after = None if since is None else moment(since)
    plan = build(load(path), only=[pipeline]).enter_environment()
    refuse_planned(plan)
    (chosen,) = _with_letters(plan, pipeline)
    _refuse_unreplayable(chosen)
    assert chosen.dead_letter is not None  # noqa: S101 - chosen for having one
    name = chosen.dead_letter.identity()
    if _table(plan, name) is None:
        outcome = Replayed()
    else:
        spark = open_plan_session(plan)
        box = LetterBox(lambda: find_table(name.split("."), plan.catalogs), pipeline, spark)
        replay = Replay(spark, chosen, plan.state, box)
        replay.open()
        replay.run(box.read(reason=reason, since=after))
        outcome = replay.outcome
    screen.show(_replay_document(chosen, outcome), _replay_text(chosen, outcome))
    return 0


def moment(text: str) -> datetime:
    """Read a time: a date, a date and a time (UTC unless it says otherwise), or a span ago."""
    span = SPAN.fullmatch(text.strip())
    if span is not None:
        return datetime.now(tz=timezone.utc) - timedelta(**{UNITS[span[2]]: int(span[1])})
    try:
        # Python 3.10 does not know the Z.
        found = datetime.fromisoformat(re.sub(r"Z$", "+00:00", text.strip()))
    except ValueError as exc:
        raise click.UsageError(
            f"--since: expected a time such as 2026-11-15T10:30 or 2h, found {text!r}"
        ) from exc
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def _with_letters(plan: Plan, pipeline: str | None) -> list[PipelinePlan]:
    """Return the pipelines that have a dead-letter table: all of them, or the one named."""
    names = [one.name for one in plan.pipelines]
    if pipeline is not None and pipeline not in names:
        raise PlanError(
            f"no pipeline is named {pipeline!r}",
            where=str(plan.path),
            todo=f"There are: {', '.join(names) or 'none'}.",
        )
    chosen = [one for one in plan.pipelines if pipeline in (None, one.name)]
    found = [one for one in chosen if one.dead_letter is not None]
    if found:
        return found
    raise PlanError(
        "no pipeline has a dead-letter table"
        if pipeline is None
        else f"the pipeline {pipeline!r} has no dead-letter table",
        where=str(plan.path),
        todo="Set `on_error: dead_letter` and `dead_letter: NAMESPACE.TABLE` on its sink.",
    )


def _refuse_unreplayable(pipeline: PipelinePlan) -> None:
    """Refuse to replay where letters, written later than their neighbours, make tables wrong."""
    from icestream.contracts.sink import MirroredTables

    if isinstance(pipeline.sink, MirroredTables):
        raise PlanError(
            "dead letters of a mirror can't be replayed: a change is only right in its place among "
            "the other changes of its row",
            where=f"pipeline {pipeline.name!r}",
            todo="Fix what made them bad, then read the source again: "
            f"icestream run --pipeline {pipeline.name} --start-over",
        )
    mode = getattr(getattr(pipeline.sink, "options", None), "commit_mode", "append")
    if mode.startswith("overwrite"):
        raise PlanError(
            f"dead letters can't be replayed with commit_mode {mode!r}: they would replace the "
            "rows that the table holds",
            where=f"pipeline {pipeline.name!r}",
            todo="Load the whole batch again instead.",
        )


def _table(plan: Plan, name: str) -> FoundTable | None:
    from icestream.tables.lookup import FoundTable, load_table

    catalog, *identifier = name.split(".")
    table = load_table([catalog, *identifier], plan.catalogs)
    return None if table is None else FoundTable(catalog, tuple(identifier), table)


def _document(name: str, letters: Letters) -> dict[str, Any]:
    return {
        "table": name,
        "total": letters.total,
        "reasons": [
            {
                "pipeline": one.pipeline,
                "reason": one.reason,
                "count": one.count,
                "newest": output.iso(one.newest),
            }
            for one in letters.reasons
        ],
        "letters": [
            {
                **row,
                "failed_at": output.iso(row["failed_at"]),
                "raw": _as_text(row["raw"]),
                "raw_base64": None if row["raw"] is None else base64.b64encode(row["raw"]).decode(),
            }
            for row in letters.newest
        ],
    }


def _as_text(raw: bytes | None) -> str | None:
    """Return a record as text; None if it is none, or not UTF-8."""
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _text(name: str, letters: Letters, limit: int) -> str:
    if not letters.total:
        return f"{name}: no dead letters"
    reasons = [
        (one.count, one.pipeline, f"{one.newest:%Y-%m-%d %H:%M:%S}", one.reason)
        for one in letters.reasons[:limit]
    ]
    newest = [
        (
            f"{row['failed_at']:%Y-%m-%d %H:%M:%S}",
            row["pipeline"],
            row["epoch"],
            row["position"],
            _short(row["reason"]),
            _short("" if row["raw"] is None else row["raw"].decode(errors="backslashreplace")),
        )
        for row in letters.newest
    ]
    more = len(letters.reasons) - limit
    lines = [f"{name}: {output.count(letters.total, 'dead letter')}", ""]
    lines += [output.table(REASONS, reasons)]
    lines += [f"... and {output.count(more, 'more reason')}"] if more > 0 else []
    return "\n".join([*lines, "", "The newest:", output.table(NEWEST, newest)])


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _replay_document(pipeline: PipelinePlan, outcome: Replayed) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "table": pipeline.sink.identity(),
        "letters": outcome.letters,
        "replayed": outcome.taken,
        "rows": outcome.rows,
        "still_bad": dict(outcome.still_bad.most_common()),
        "untraced": outcome.untraced,
        "settled": outcome.settled,
    }


def _replay_text(pipeline: PipelinePlan, outcome: Replayed) -> str:
    lines = []
    if outcome.settled:
        had = output.count(outcome.settled, "letter")
        lines.append(f"{had} of an earlier replay, whose rows were written already, removed")
    lines.append(
        f"{pipeline.name}: {output.count(outcome.letters, 'dead letter')} read, "
        f"{outcome.taken:,} replayed, {output.count(outcome.rows, 'row')} written to "
        f"{pipeline.sink.identity()}"
    )
    lines += [f"still bad: {n:,} x {_short(why)}" for why, n in outcome.still_bad.most_common(20)]
    if outcome.untraced:
        lines.append(f"left alone: {outcome.untraced:,} that no single record stands for")
    return "\n".join(lines)
