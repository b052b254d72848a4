#!/usr/bin/env python3
"""Checks the words of comments, messages, documentation and names.

The rules are the tables below. Prints file:line for every finding and exits 1.
"""

import argparse
import bisect
import dataclasses
import io
import pathlib
import re
import sys
import tokenize

import sources

VERBATIM = {"LICENSE"}  # names of files with the words of others
RULES = {
    "people": "a process or an object is not a person: name the component",
    "is-no": 'write "is not a" or "does not"',
    "bound": "bounds are named max and min",
    "help": "this text is read without its neighbours: begin with the noun",
    "test-name": "test names are Condition_Result, at most 60 characters",
}

PEOPLE = re.compile(r"\b(?:who|whom|whose|whoever|(?:some|no|any|every)body|(?:some|any|every)one)(?:'?s)?\b", re.IGNORECASE)
# "There is no file", "is no longer" and "is no-op" are plain English.
IS_NO = re.compile(r"\b(?<!\bthere\s)(?:is|are|was|were)\sno\b(?!-|\s(?:longer|more)\b)", re.IGNORECASE)
BOUND = re.compile(r"(?:Most|Least|Fewest)(?![a-z])|(?<![A-Za-z])(?:most|least|fewest)(?![A-Za-z])")
# Names of other libraries, and superlatives that are not bounds.
NOT_BOUNDS = {"LogSeverityAtLeast", "AtLeast", "AtMost", "LeastRecentlyUsed", "LeastLoaded"}
FRAGMENT = r"(?:Of|Its|That|The\ same|Likewise)\b"
HELP = {
    ".proto": re.compile(rf'\bhelp:\s*"({FRAGMENT})', re.VERBOSE),
    ".py": re.compile(rf"""\bhelp\s*=\s*f?["']({FRAGMENT})""", re.VERBOSE),
    ".cc": re.compile(rf'(?<!")"({FRAGMENT})', re.VERBOSE),
    ".h": re.compile(rf'(?<!")"({FRAGMENT})', re.VERBOSE),
}
MAX_TEST_NAME = 60
TEST_NAME = re.compile(r"[A-Z0-9]\w*_[A-Z0-9]\w*")

CPP_FILES = {".h", ".cc", ".cu", ".proto"}
CPP_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
CPP_TEXT = re.compile(
    r'//(?P<comment>[^\n]*)|/\*(?P<block>.*?)\*/|R"(?P<tag>[^(\s"]*)\((?P<raw>.*?)\)(?P=tag)"'
    r'|"(?P<string>(?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)\'', re.DOTALL)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
CODE_SPAN = re.compile(r"(`+)[^`].*?\1")


@dataclasses.dataclass(frozen=True)
class Piece:
    """One line of text. Pieces of one kind on consecutive lines are read as one text."""
    line: int
    kind: str
    text: str


@dataclasses.dataclass
class Contents:
    """What people read in a file."""
    prose: list[Piece] = dataclasses.field(default_factory=list)
    names: list[tuple[int, str]] = dataclasses.field(default_factory=list)  # identifiers, test names excepted
    cpp_tests: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)  # line, suite, name
    python_tests: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, line: int, kind: str, text: str) -> None:
        """`text` may have several lines. A string without a blank is a value, not a text."""
        if kind == "string" and not re.search(r"\s", text.strip()):
            return
        for offset, one in enumerate(text.split("\n")):
            self.prose.append(Piece(line + offset, kind, one.strip().lstrip("*#/!<").strip()))


@dataclasses.dataclass(frozen=True)
class Finding:
    file: str
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.words}: {RULES[self.rule]}"


class Lines:
    """The line numbers of offsets in a text."""

    def __init__(self, text: str):
        self._starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def at(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)


def read_cpp(text: str) -> Contents:
    contents, lines = Contents(), Lines(text)

    def blank(match: re.Match) -> str:
        for group in ("comment", "block", "raw", "string"):
            if match[group] is not None:
                contents.add(lines.at(match.start(group)), "comment" if group in ("comment", "block") else "string", match[group])
        return re.sub(r"[^\n]", " ", match[0])

    code = CPP_TEXT.sub(blank, text)

    def test(match: re.Match) -> str:
        contents.cpp_tests.append((lines.at(match.start()), match[1], match[2]))
        return re.sub(r"[^\n]", " ", match[0])

    if "TEST" in code:
        code = CPP_TEST.sub(test, code)
    # Most files have no such name, and to look for it is faster than to list all.
    if re.search("[Mm]ost|[Ll]east|ewest", code):
        contents.names = [(lines.at(match.start()), match[0]) for match in IDENTIFIER.finditer(code)]
    return contents


def read_python(text: str) -> Contents:
    contents, previous = Contents(), ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "COMMENT":
            contents.add(token.start[0], "comment", token.string)
        elif kind in ("STRING", "FSTRING_MIDDLE"):
            contents.add(token.start[0], "string", re.sub(r"^[A-Za-z]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string))
        elif kind == "NAME" and previous == "def" and token.string.startswith("test_"):
            contents.python_tests.append((token.start[0], token.string))
        elif kind == "NAME":
            contents.names.append((token.start[0], token.string))
        previous = token.string
    return contents


def read_markdown(text: str) -> Contents:
    contents, fence = Contents(), ""
    for number, line in enumerate(text.split("\n"), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            contents.add(number, "text", CODE_SPAN.sub("CODE", line))
    return contents


def read_plain(text: str) -> Contents:
    contents = Contents()
    contents.add(1, "text", text)
    return contents


def reader_of(file: pathlib.PurePosixPath):
    if file.suffix in CPP_FILES:
        return read_cpp
    return {".py": read_python, ".md": read_markdown}.get(file.suffix, read_plain)


def is_test(file: pathlib.PurePosixPath) -> bool:
    return file.parts[0] == "tests" or bool({"testing", "test", "fixture"} & {*file.parts, *file.stem.split("_")})


def joined(prose: list[Piece]) -> str:
    """The prose as one text: a break between two pieces is one blank within a text, and cannot be matched between texts."""
    parts, before = [], None
    for piece in prose:
        if before is not None:
            follows = (piece.line, piece.kind) == (before.line + 1, before.kind) and before.text and piece.text
            parts.append("\n" if follows else "\n\0\n")
        parts.append(piece.text)
        before = piece
    return "".join(parts)


def words_of(name: str) -> str:
    return " ".join(NAME_WORD.findall(name))


def findings_in(file: pathlib.PurePosixPath, text: str) -> list[Finding]:
    contents, found = reader_of(file)(text), set()

    def report(line: int, rule: str, words: str) -> None:
        found.add(Finding(str(file), line, rule, " ".join(words.split())))

    prose = joined(contents.prose)
    starts, offset = [], 0
    for piece in contents.prose:
        offset = prose.index(piece.text, offset)
        starts.append(offset)
        offset += len(piece.text)
    for rule, pattern in (("people", PEOPLE), ("is-no", IS_NO)):
        for match in pattern.finditer(prose):
            report(contents.prose[bisect.bisect_right(starts, match.start()) - 1].line, rule, match[0])
        tests = [(line, name) for line, *both in contents.cpp_tests for name in both]
        for line, name in {*tests, *contents.python_tests}:
            if pattern.search(words_of(name)):
                report(line, rule, name)
    for line, name in contents.names:
        if BOUND.search(name) and name not in NOT_BOUNDS:
            report(line, "bound", name)
    for line, _, name in contents.cpp_tests:
        if len(name) > MAX_TEST_NAME or not TEST_NAME.fullmatch(name):
            report(line, "test-name", name)
    for line, name in contents.python_tests:
        if len(name) > MAX_TEST_NAME:
            report(line, "test-name", name)
    if file.suffix in HELP and not is_test(file):
        lines = Lines(text)
        for match in HELP[file.suffix].finditer(text):
            report(lines.at(match.start(1)), "help", match[1])
    return sorted(found, key=lambda finding: (finding.line, finding.rule, finding.words))


def findings(root: pathlib.Path) -> list[Finding]:
    found = []
    for file in sources.tracked_files(root):
        if file.name in VERBATIM:
            continue
        try:
            text = (root / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        found.extend(findings_in(file, text))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    options = parser.parse_args()
    found = [str(finding) for finding in findings(options.root)]
    print("\n".join(found) if found else "words: good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
