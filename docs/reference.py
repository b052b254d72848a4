#!/usr/bin/env python3
"""Writes the pages of docs/reference: configuration.md, cli.md and metrics.md.

Usage: docs/reference.py --binary PROGRAM             writes the pages
       docs/reference.py --binary PROGRAM --check     exits 1 and names each page that is not current

PROGRAM is the built `tensorcast`. The configuration comes from its `config show`, the commands from the `--help` of each,
and the metrics from otel/api/metrics_catalogue.h.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
CATALOGUE = ROOT / "otel" / "api" / "metrics_catalogue.h"
GENERATED = "<!-- docs/reference.py writes this page. -->"

HELP_COLUMN = 30  # where CLI11 begins the help of an option


class Program:
    def __init__(self, path: pathlib.Path):
        self._path = path

    def output(self, *arguments: str) -> str:
        # As root without configuration, wherever this runs: defaults depend on the state folder, and CLI11 on the width.
        environment = {"PATH": os.environ.get("PATH", ""), "XDG_STATE_HOME": "/var/lib", "HOME": "/nowhere"}
        done = subprocess.run([self._path, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"run {self._path} {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout


def cell(text: str) -> str:
    """Text for a cell of a table, or for prose: Markdown would take it for HTML, a column or emphasis otherwise."""
    return re.sub(r"([|*\\])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


def code(text: str) -> str:
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`" if text else ""


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in [head, ["---"] * len(head), *rows]]


# Configuration.


@dataclasses.dataclass
class Key:
    name: str
    default: str
    values: str  # what it takes, empty where any text will do
    help: str


def configuration_keys(shown: str) -> dict[str, list[Key]]:
    """The keys that `config show` prints, by the top section."""
    sections: dict[str, list[Key]] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in shown.splitlines():
        indent, text = (len(line) - len(line.lstrip())) // 2, line.strip()
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
            continue
        if text.startswith("- "):
            keys = sections[path[0]]
            keys[-1].default = f"{keys[-1].default}, {text[2:]}".removeprefix(", ")
            continue
        name, _, value = text.partition(":")
        path = [*path[:indent], name]
        if value or comment:
            words = re.fullmatch(r"(.*?)(?: \[([^\[\]]*)\])?", " ".join(comment))
            assert words is not None
            sections.setdefault(path[0], []).append(Key(".".join(path), value.strip(), words[2] or "", words[1]))
        comment = []
    return sections


def default_of(key: Key) -> str:
    return {"~": "not set", '""': "empty", "[]": "empty"}.get(key.default, code(key.default))


def configuration(program: Program) -> str:
    sections = configuration_keys(program.output("config", "show"))
    lines = [
        "# Configuration",
        "",
        GENERATED,
        "",
        "This page lists every key of the configuration with its default, as `tensorcast config show` prints",
        "them for root. Other users have their own state folder",
        "([Getting started](../getting-started.md#which-daemon-a-program-uses)).",
        "",
        "- A configuration is one YAML file, which servers and commands take as `--config FILE`.",
        "- `--set KEY=VALUE` sets one key. It wins over the file.",
        "- `tensorcast config check --config FILE` refuses what a start would refuse.",
        "- Sizes are a number and `B`, `KiB`, `MiB`, `GiB`, `TiB`, `kB`, `MB`, `GB` or `TB`. Durations are a",
        "  number and `ns`, `us`, `ms`, `s`, `m`, `h` or `d`.",
    ]
    for section, keys in sections.items():
        rows = [[code(key.name), default_of(key), cell(key.values), cell(key.help)] for key in keys]
        lines += ["", f"## {section}", "", *table(["key", "default", "values", "meaning"], rows)]
    return "\n".join(lines) + "\n"


# Commands.


@dataclasses.dataclass(frozen=True)
class Entry:
    """A flag, an argument or a subcommand, with its help."""

    name: str
    help: str


@dataclasses.dataclass
class Help:
    about: str
    usage: str
    sections: dict[str, list[Entry]]  # by the heading in lower case
    footer: str

    def options(self) -> list[Entry]:
        """The options of all groups."""
        groups = [entries for heading, entries in self.sections.items() if heading not in ("positionals", "subcommands")]
        return [entry for entries in groups for entry in entries]


def parse_help(text: str) -> Help:
    """What CLI11 prints for --help. Its versions differ in blank lines and in the case of headings."""
    about: list[str] = []
    usage, footer = "", []
    sections: dict[str, list[Entry]] = {}
    heading = ""
    for line in text.splitlines():
        if footer:
            footer.append(line)
        elif usage_line := re.fullmatch(r"Usage: (.*)", line, re.IGNORECASE):
            usage = usage_line[1].strip()
        elif not usage:
            about.append(line.strip())
        elif not line.strip():
            continue
        elif title := re.fullmatch(r"(\w[\w ]*):\s*", line):
            heading = title[1].lower()
            sections[heading] = []
        elif line.startswith("  ") and line[2] != " " and heading:
            sections[heading].append(entry_of(line))
        elif line.startswith("  ") and sections.get(heading):
            last = sections[heading].pop()
            sections[heading].append(Entry(last.name, f"{last.help} {line.strip()}".strip()))
        else:
            footer.append(line)
    return Help(" ".join(about).strip(), usage, sections, "\n".join(footer))


def entry_of(line: str) -> Entry:
    parts = re.split(r"\s{2,}", line.strip(), maxsplit=1)
    if len(parts) == 2:
        return Entry(*parts)
    if len(line) > HELP_COLUMN and line[HELP_COLUMN - 1] == " ":
        return Entry(line[:HELP_COLUMN].strip(), line[HELP_COLUMN:].strip())
    return Entry(line.strip(), "")


def commands_of(program: Program, words: tuple[str, ...] = ()) -> list[tuple[str, Help]]:
    """The help of the command and of all below it, in their order."""
    shown = parse_help(program.output(*words, "--help"))
    found = [(" ".join(("tensorcast", *words)), shown)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        for below in pool.map(lambda entry: commands_of(program, (*words, entry.name)), shown.sections.get("subcommands", [])):
            found += below
    return found


def common_options(leaves: list[Help]) -> list[Entry]:
    """The options that every command has, in the order of the first."""
    first, *others = [leaf.options() for leaf in leaves]
    return [entry for entry in first if all(entry in options for options in others)]


def entries_table(kind: str, entries: list[Entry]) -> list[str]:
    return table([kind, "meaning"], [[code(entry.name), cell(entry.help)] for entry in entries])


def cli(program: Program) -> str:
    commands = commands_of(program)
    common = common_options([shown for _, shown in commands if "subcommands" not in shown.sections])
    lines = [
        "# Command line",
        "",
        GENERATED,
        "",
        "This page lists every command of `tensorcast` with its arguments and options, as `--help` prints",
        "them. [Getting started](../getting-started.md#commands) has the exit codes and an overview.",
        "",
        "## Options of every command",
        "",
        *entries_table("option", common),
    ]
    for name, shown in commands[1:]:
        if "subcommands" in shown.sections:
            continue  # its commands follow
        lines += ["", f"## {name}", "", cell(shown.about) + ".", "", "```", shown.usage, "```"]
        options = [entry for entry in shown.options() if entry not in common]
        for kind, entries in (("argument", shown.sections.get("positionals")), ("option", options)):
            if entries:
                lines += ["", *entries_table(kind, entries)]
        if section := re.search(r'Keys of the section "(\w+)"', shown.footer):
            lines += ["", f"It reads the section [{section[1]}](configuration.md#{section[1]}) of the configuration."]
        elif shown.footer:
            lines += ["", cell(shown.footer)]
    return "\n".join(lines) + "\n"


# Metrics.

_METRIC = re.compile(r'X\((\w+), \d, \w+, "([^"]*)", "([^"]*)", \w+, \(([^)]*)\), "((?:[^"\\]|\\.)*)"\)')
_GROUP = re.compile(r"/\* (.*?) \*/")
_KINDS = {
    "Counter": "counter",
    "ObservedCounter": "counter (observed)",
    "UpDownCounter": "up-down counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
}


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        GENERATED,
        "",
        "This page lists every metric that TensorCast exports. [Observability](../observability.md) says how",
        "they reach a collector, and [Operations](../operations.md#alerts) explains the alerts.",
        "",
        "Names are the same in OTLP and in Prometheus. No metric carries ids.",
    ]
    catalogue = CATALOGUE.read_text(encoding="utf-8").split("#define TENSORCAST_METRICS(X)")[1].split("// clang-format on")[0]
    rows: list[list[str]] = []

    def end_group() -> None:
        if rows:
            lines.extend(["", *table(["metric", "kind", "unit", "labels", "what"], rows)])
        rows.clear()

    for line in catalogue.splitlines():
        if group := _GROUP.search(line):
            end_group()
            title, _, about = group[1].partition(". ")
            lines.extend(["", f"## {title.rstrip('.')}"] + (["", about] if about else []))
        elif metric := _METRIC.search(line):
            kind, name, unit, labels, about = metric.groups()
            rows.append([code(name), _KINDS[kind], unit, labels.replace('"', ""), cell(about)])
        elif "X(" in line:
            sys.exit(f"read {CATALOGUE.name}: a metric has another form than {_METRIC.pattern}: {line.strip()}")
    end_group()
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True, help="the built tensorcast program")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is not current")
    arguments = parser.parse_args()
    program = Program(arguments.binary.resolve())
    pages = {"configuration.md": configuration(program), "cli.md": cli(program), "metrics.md": metrics()}
    if not arguments.check:
        PAGES.mkdir(exist_ok=True)
        for name, text in pages.items():
            (PAGES / name).write_text(text, encoding="utf-8")
        return 0
    old = [name for name, text in pages.items() if not (PAGES / name).is_file() or (PAGES / name).read_text(encoding="utf-8") != text]
    if old:
        print(f"docs/reference: not current: {', '.join(old)}; run docs/reference.py --binary {arguments.binary}")
        return 1
    print("docs/reference: current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
