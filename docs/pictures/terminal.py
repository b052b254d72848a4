#!/usr/bin/env python3
"""Draws terminals with the program's own output: demo.svg, top.svg and explain.svg.

Usage: docs/pictures/terminal.py                     draws demo.txt, top.txt and explain.txt
       docs/pictures/terminal.py --check             exits 1 where a picture is not what its text gives
       docs/pictures/terminal.py --record PROGRAM    runs the built `tensorcast`, writes the texts and draws them

A text has the command in its first line and then what the program printed. `--record` starts a global store and two
daemons, of which b has a fake GPU, puts a model of 512 MiB on a and gets it on b.
"""

import argparse
import contextlib
import html
import os
import pathlib
import subprocess
import sys
import tempfile

from drawing import FOLDER, add_check, svg, write_or_check

NAMES = ("demo", "top", "explain")
TITLES = {
    "demo": "What tensorcast demo prints",
    "top": "What tensorcast top shows",
    "explain": "What tensorcast explain prints",
}
CELL, LINE, SIZE, MARGIN = 7.8, 18, 13, 16
BACKGROUND, TEXT, PROMPT = "#0d1117", "#d0d7de", "#7ee787"
FONT = "ui-monospace, 'DejaVu Sans Mono', monospace"


def draw_line(number: int, line: str) -> str:
    """One line on the grid of the terminal, whatever the width of the reader's font."""
    words = line.lstrip()
    x = MARGIN + (len(line) - len(words)) * CELL
    colour = PROMPT if line.startswith("$ ") else TEXT
    return (
        f'<text x="{x:.1f}" y="{MARGIN + (number + 1) * LINE - 5}" font-size="{SIZE}" fill="{colour}" xml:space="preserve" '
        f'textLength="{len(words) * CELL:.1f}" lengthAdjust="spacingAndGlyphs">{html.escape(words, quote=False)}</text>'
    )


def draw(name: str) -> str:
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n").splitlines()
    width = round(max(map(len, lines)) * CELL + 2 * MARGIN)
    drawn = [draw_line(number, line) for number, line in enumerate(lines) if line.strip()]
    return svg(width, 2 * MARGIN + len(lines) * LINE, TITLES[name], "terminal.py", drawn, font=FONT, paper=BACKGROUND)


class Cluster:
    """A global store and the daemons a and b, in a folder of their own."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path, stack: contextlib.ExitStack):
        self._program, self._stack = program, stack
        store = f"unix:{folder}/store.sock"
        self._start("global-store", {"global_store.listen": store, "global_store.metadata_path": f"{folder}/store/meta.db"})
        for name, device_runtime in (("a", "none"), ("b", "fake")):
            self._start("daemon", {"daemon.name": name, "daemon.state_dir": f"{folder}/{name}", "daemon.global_store": store,
                                   "daemon.host_pool": "1GiB", "daemon.device_runtime": device_runtime})

    def _start(self, server: str, configuration: dict[str, str]) -> None:
        ready, write = os.pipe()
        arguments = [f"--set={key}={value}" for key, value in configuration.items()]
        process = subprocess.Popen([self._program, server, *arguments, "--ready-fd", str(write)], pass_fds=[write],
                                   stderr=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        os.close(write)
        with open(ready, "rb") as end:
            if not end.read(1):
                sys.exit(f"start {server}: it ended before it was ready; run it by hand to see why")


def run(program: pathlib.Path, *arguments: str, daemon: str = "") -> str:
    """What the command prints, without the blanks at the ends of lines."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TENSORCAST", "OTEL"))}
    done = subprocess.run([program, *arguments], env=environment | ({"TENSORCAST_DAEMON": daemon} if daemon else {}), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"run {program} {' '.join(arguments)}: exit code {done.returncode}: {done.stdout}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def record(program: pathlib.Path) -> None:
    (FOLDER / "demo.txt").write_text("$ tensorcast demo\n" + run(program, "demo"), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tc-")))
        Cluster(program, folder, stack)
        model, a, b = str(folder / "model.safetensors"), f"unix:{folder}/a/daemon.sock", f"unix:{folder}/b/daemon.sock"
        run(program, "make-model", model, "--size", "512MiB")
        run(program, "put", model, "--key", "llama/prod", daemon=a)
        run(program, "get", "llama/prod", "--device", "gpu:0", daemon=b)
        for name, arguments in (("top", ["top", "--once"]), ("explain", ["explain", "last"])):
            shown = run(program, *arguments, daemon=b)
            (FOLDER / f"{name}.txt").write_text(f"$ tensorcast {' '.join(arguments)}\n{shown}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_check(parser)
    parser.add_argument("--record", type=pathlib.Path, metavar="PROGRAM", help="run this tensorcast first, and keep its output")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record.resolve())
    return write_or_check({f"{name}.svg": draw(name) for name in NAMES}, "terminal.py", arguments.check)


if __name__ == "__main__":
    sys.exit(main())
