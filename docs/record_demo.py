"""Records `icestream demo` as an animated SVG: `python -m docs.record_demo`.

The demo runs in a pseudo-terminal, so the picture shows real output with the real timing, played
faster. `images/demo.svg` needs no script and no font from elsewhere; readers who have turned off
animations see the last frame.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "demo.svg"
COLUMNS, ROWS = 100, 27
# The demo goes on to print a script for each engine; the picture ends before them.
LAST_LINE = re.compile(r"^\(\d+ rows\)")
# Seconds of the recording between two frames, and how long the picture shows a frame.
SAMPLE_SECS, FRAME_SECS, LAST_FRAME_SECS = 1.0, 0.45, 4.0
CONTROL = re.compile(
    r"\x1b\[(?P<count>\d*)A|(?P<erase>\x1b\[2K)|(?P<line>\n)|(?P<other>\x1b\[\?25[lh]|\r)"
)
# Rich's own format loads a font from the network.
SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix, .{unique_id}-title {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; white-space: pre;
}}
{styles}
</style>
{chrome}
<g class="screen" transform="translate({terminal_x}, {terminal_y})">{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""
SCREEN = '<g class="screen"'
TITLE = "<title>icestream demo: events stream into an Iceberg table</title>"
# Rich clips each line, and adds a text for each line break.
SUPERFLUOUS = re.compile(r' clip-path="[^"]*"|<text[^>]*>\n</text>')


class Terminal:
    """The lines of a terminal, as far as Rich's live view moves about in them."""

    def __init__(self) -> None:
        self._lines = [""]
        self._row = 0

    def write(self, text: str) -> None:
        """Take output of the program."""
        end = 0
        for control in CONTROL.finditer(text):
            self._put(text[end : control.start()])
            end = control.end()
            if control["count"] is not None:
                self._row = max(self._row - int(control["count"] or 1), 0)
            elif control["erase"]:
                self._lines[self._row] = ""
            elif control["line"]:
                self._row += 1
                if self._row == len(self._lines):
                    self._lines.append("")
        self._put(text[end:])

    def shows(self) -> tuple[str, ...]:
        """Return the lines up to the last one that belongs into the picture."""
        shown = []
        for line in self._lines:
            shown.append(line)
            if LAST_LINE.match(line):
                break
        return tuple(shown)

    def _put(self, text: str) -> None:
        self._lines[self._row] += text


def main() -> int:
    """Run the demo and write the picture."""
    frames = record([str(Path(sys.executable).with_name("icestream")), "demo"])
    PICTURE.write_text(animated(frames), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.name}: {len(frames)} frames\n")
    return 0


def record(command: list[str]) -> list[tuple[str, ...]]:
    """Run a command in a terminal, and return what the terminal showed every second."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    # The temporary folder is shown: that of most machines, not of this one.
    environment["TMPDIR"] = "/tmp"  # noqa: S108
    process = subprocess.Popen(  # noqa: S603
        command, stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    terminal, sampled_at = Terminal(), time.monotonic()
    frames: list[tuple[str, ...]] = [("",)]
    while data := _read(leader):
        terminal.write(data)
        if time.monotonic() - sampled_at >= SAMPLE_SECS:
            sampled_at = time.monotonic()
            frames.append(terminal.shows())
    if process.wait() != 0:
        raise SystemExit("\n".join(terminal.shows()))
    frames.append(terminal.shows())
    return [
        frame for frame, before in zip(frames, [None, *frames], strict=False) if frame != before
    ]


def _read(descriptor: int) -> str:
    try:
        return os.read(descriptor, 65536).decode("utf-8", errors="replace")
    except OSError:  # Linux says so when the program has ended
        return ""


def animated(frames: list[tuple[str, ...]]) -> str:
    """Return one SVG that shows the frames one after the other, again and again."""
    total = FRAME_SECS * (len(frames) - 1) + LAST_FRAME_SECS
    rules, groups = [".frame { visibility: hidden; }"], []
    for number, frame in enumerate(frames):
        picture = _picture(frame, f"f{number}")
        begin = 100 * number * FRAME_SECS / total
        end = 100 * (number + 1) * FRAME_SECS / total
        rules.append(_between(picture, "<style>", "</style>").strip())
        rules.append(_timing(number, begin, end, total, is_last=number == len(frames) - 1))
        screen = _between(picture, SCREEN, "</svg>")
        groups.append(f'<g class="frame frame-{number}">{SCREEN}{screen}</g>')
    rules.append(
        "@media (prefers-reduced-motion: reduce) { .frame { animation: none !important; } }"
    )
    head, window = _picture((), "window").split("<style>")
    window = _between(window, "</style>", SCREEN)
    style = "\n".join([_between(_picture((), "window"), "<style>", "</style>").strip(), *rules])
    return f"{head}{TITLE}\n<style>\n{style}\n</style>{window}{''.join(groups)}\n</svg>\n"


def _timing(number: int, begin: float, end: float, total: float, *, is_last: bool) -> str:
    """Return the rules that show a frame for its time; the last one also without animation."""
    steps = f"0% {{ visibility: hidden; }} {begin:.3f}% {{ visibility: visible; }}"
    if not is_last:
        steps += f" {end:.3f}% {{ visibility: hidden; }}"
    visible = "visibility: visible; " if is_last else ""
    return (
        f"@keyframes show-{number} {{ {steps} }}\n.frame-{number} "
        f"{{ {visible}animation: show-{number} {total:.2f}s step-end infinite; }}"
    )


def _picture(frame: tuple[str, ...], name: str) -> str:
    console = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False)
    lines = ["$ icestream demo", *frame]
    for line in [*lines, *[""] * (ROWS - len(lines))][:ROWS]:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    svg = console.export_svg(title="icestream", theme=MONOKAI, code_format=SVG, unique_id=name)
    return SUPERFLUOUS.sub("", svg)


def _between(text: str, begin: str, end: str) -> str:
    return text.split(begin, 1)[1].rsplit(end, 1)[0]


if __name__ == "__main__":
    sys.exit(main())
