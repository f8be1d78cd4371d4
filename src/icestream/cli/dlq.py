"""`icestream dlq`: lists and replays dead letters."""

from __future__ import annotations

import base64
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.engine.dead_letters.replay import ReplayResult
    from icestream.engine.dead_letters.table import DeadLetterList
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.tables.lookup import NamedTable

REASON_HEADERS = ("letters", "pipeline", "newest (UTC)", "reason")
LETTER_HEADERS = ("failed at (UTC)", "pipeline", "batch", "position", "reason", "record")
MAX_TEXT_LENGTH = 60
DURATION = re.compile(r"(\d+)\s*(s|m|h|d)")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.group("dlq", short_help="List and replay dead letters.")
def command() -> None:
    """List the records that were rejected, and replay them once they pass."""


@command.command("list", short_help="List dead letters by reason, and the newest ones.")
@click.option("--pipeline", metavar="NAME", help="Only dead letters of this pipeline.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of reasons and of letters to show.",
)
@with_config_option
def list_command(printer: Printer, path: Path, pipeline: str | None, limit: int) -> int:
    """List dead letters by reason, and the newest ones. Spark is not started."""
    from icestream.config import read
    from icestream.engine.dead_letters.table import list_dead_letters
    from icestream.plan.planner import build

    plan = build(read(path)).export_environment()
    chosen = _pipelines_with_dead_letters(plan, pipeline)
    reports, texts = [], []
    for name in dict.fromkeys(one.dead_letter.identity() for one in chosen if one.dead_letter):
        found = _find_dead_letter_table(plan, name)
        if found is None:
            reports.append({"table": name, "total": 0, "reasons": [], "letters": []})
            texts.append(f"{name}: no dead letters, the table does not exist yet")
            continue
        letters = list_dead_letters(found, pipeline=pipeline, limit=limit)
        reports.append(_document(name, letters))
        texts.append(_text(name, letters, limit))
    printer.print_result({"tables": reports}, "\n\n".join(texts))
    return 0


@command.command("replay", short_help="Replay dead letters that now pass.")
@click.option(
    "--pipeline", metavar="NAME", required=True, help="The pipeline whose dead letters to replay."
)
@click.option("--reason", metavar="TEXT", help="Only letters whose reason contains this text.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only letters that failed since this time: `2026-11-15`, `2026-11-15T10:30`, or `2h` ago.",
)
@with_config_option
def replay_command(
    printer: Printer, path: Path, pipeline: str, reason: str | None, since: str | None
) -> int:
    """Replay dead letters through the pipeline as the file describes it now.

    Records that now pass are written to the pipeline's table, exactly once, and removed from the
    dead-letter table. The others stay there. The pipeline may keep running.
    """
    from icestream.config import read
    from icestream.engine.dead_letters.replay import Replay, ReplayResult
    from icestream.engine.dead_letters.table import PipelineDeadLetters
    from icestream.engine.run import open_plan_session
    from icestream.plan.planner import build, refuse_planned
    from icestream.tables.lookup import find_table

    after = None if since is None else parse_timestamp(since)
    plan = build(read(path), only=[pipeline]).export_environment()
    refuse_planned(plan)
    (chosen,) = _pipelines_with_dead_letters(plan, pipeline)
    _refuse_unreplayable(chosen)
    assert chosen.dead_letter is not None  # noqa: S101 - only pipelines with one are selected
    name = chosen.dead_letter.identity()
    if _find_dead_letter_table(plan, name) is None:
        outcome = ReplayResult()
    else:
        spark = open_plan_session(plan)
        letter_table = PipelineDeadLetters(
            lambda: find_table(name.split("."), plan.catalogs), pipeline, spark
        )
        replay = Replay(spark, chosen, plan.state, letter_table)
        replay.open()
        replay.run(letter_table.read(reason=reason, since=after))
        outcome = replay.outcome
    printer.print_result(_replay_document(chosen, outcome), _replay_text(chosen, outcome))
    return 0


def parse_timestamp(text: str) -> datetime:
    """Parse a date, a date and time (UTC by default), or a duration ago such as `2h`."""
    duration = DURATION.fullmatch(text.strip())
    if duration is not None:
        return datetime.now(tz=timezone.utc) - timedelta(**{UNITS[duration[2]]: int(duration[1])})
    try:
        # Python 3.10 does not parse a trailing Z.
        time = datetime.fromisoformat(re.sub(r"Z$", "+00:00", text.strip()))
    except ValueError as exc:
        raise click.UsageError(
            f"--since: expected a time such as 2026-11-15T10:30 or 2h, found {text!r}"
        ) from exc
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _pipelines_with_dead_letters(plan: Plan, pipeline: str | None) -> list[PipelinePlan]:
    """Return the pipelines that have a dead-letter table: all of them, or the one named."""
    names = [one.name for one in plan.pipelines]
    if pipeline is not None and pipeline not in names:
        raise PlanError(
            f"unknown pipeline {pipeline!r}",
            where=str(plan.path),
            todo=f"Pipelines: {', '.join(names) or 'none'}.",
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
    """Refuse to replay where writing letters out of order would corrupt the table."""
    if pipeline.sink.is_mirror:
        raise PlanError(
            "dead letters of a mirror can't be replayed: the changes of a row must be applied "
            "in order",
            where=f"pipeline {pipeline.name!r}",
            todo="Fix the cause, then read the source again: "
            f"icestream run --pipeline {pipeline.name} --start-over",
        )
    mode = pipeline.sink.options.commit_mode
    if mode.startswith("overwrite"):
        raise PlanError(
            f"dead letters can't be replayed with commit_mode {mode!r}: they would replace the "
            "table's rows",
            where=f"pipeline {pipeline.name!r}",
            todo="Reload the whole batch instead.",
        )


def _find_dead_letter_table(plan: Plan, name: str) -> NamedTable | None:
    from icestream.tables.lookup import NamedTable, load_table

    catalog, *identifier = name.split(".")
    table = load_table([catalog, *identifier], plan.catalogs)
    return None if table is None else NamedTable(catalog, tuple(identifier), table)


def _document(name: str, letters: DeadLetterList) -> dict[str, Any]:
    return {
        "table": name,
        "total": letters.total,
        "reasons": [
            {
                "pipeline": one.pipeline,
                "reason": one.reason,
                "count": one.count,
                "newest": output.iso_timestamp(one.newest),
            }
            for one in letters.reasons
        ],
        "letters": [
            {
                **row,
                "failed_at": output.iso_timestamp(row["failed_at"]),
                "raw": _as_text(row["raw"]),
                "raw_base64": None if row["raw"] is None else base64.b64encode(row["raw"]).decode(),
            }
            for row in letters.newest
        ],
    }


def _as_text(raw: bytes | None) -> str | None:
    """Return a record as text; None if it is missing or not UTF-8."""
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _text(name: str, letters: DeadLetterList, limit: int) -> str:
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
            _shorten(row["reason"]),
            _shorten("" if row["raw"] is None else row["raw"].decode(errors="backslashreplace")),
        )
        for row in letters.newest
    ]
    more = len(letters.reasons) - limit
    lines = [f"{name}: {output.format_count(letters.total, 'dead letter')}", ""]
    lines += [output.format_table(REASON_HEADERS, reasons)]
    lines += [f"... and {output.format_count(more, 'more reason')}"] if more > 0 else []
    return "\n".join([*lines, "", "Newest:", output.format_table(LETTER_HEADERS, newest)])


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 3] + "..."


def _replay_document(pipeline: PipelinePlan, outcome: ReplayResult) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "table": pipeline.sink.identity(),
        "letters": outcome.letters,
        "replayed": outcome.replayed,
        "rows": outcome.rows,
        "still_bad": dict(outcome.still_bad.most_common()),
        "untraced": outcome.untraced,
        "settled": outcome.finished,
    }


def _replay_text(pipeline: PipelinePlan, outcome: ReplayResult) -> str:
    lines = []
    if outcome.finished:
        letters = output.format_count(outcome.finished, "letter")
        lines.append(f"removed {letters} whose rows an earlier replay had already written")
    lines.append(
        f"{pipeline.name}: {output.format_count(outcome.letters, 'dead letter')} read, "
        f"{outcome.replayed:,} replayed, {output.format_count(outcome.rows, 'row')} written to "
        f"{pipeline.sink.identity()}"
    )
    lines += [
        f"still failing: {n:,} x {_shorten(reason)}"
        for reason, n in outcome.still_bad.most_common(20)
    ]
    if outcome.untraced:
        lines.append(f"skipped: {outcome.untraced:,} that do not belong to a single record")
    return "\n".join(lines)
