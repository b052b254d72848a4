#!/usr/bin/env python3
"""Formats every tracked C++ file: with clang-format (.clang-format), and with one brace style.

A body on the line of its condition has no braces; a body on a line of its own has braces:

    if (bytes == 0) return;
    for (const Chunk& chunk : chunks) {
      Verify(chunk, std::move(a_long_argument));
    }

clang-format can put braces everywhere or remove them everywhere, but not this. So it first removes them, which also joins
bodies that fit on the line of their condition. Then this file adds braces to the bodies on lines of their own. `make format`
calls it, and check_format.py compares.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import sources

CLANG_FORMAT = "clang-format-19"  # versions differ in their format; Debian 12 and 13 both have this one

# Macros of several statements: as a body they always need braces.
STATEMENTS = {"TC_ASSIGN_OR_RETURN", "TC_ASSERT_OK_AND_ASSIGN"}
# Macros that are an `if` themselves: as the body of another `if` the compiler warns of a dangling else.
IFS = ("EXPECT_", "ASSERT_")

TOKEN = re.compile(
    r'''(?P<skip>\s+|//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n\\]|\\.)*)'''
    r'''|(?P<text>(?:u8|[uUL])?R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|"(?:[^"\\\n]|\\.)*"|\b\d(?:'?[\w.])*|'(?:[^'\\\n]|\\.)*')'''
    r'''|(?P<word>\w+)|(?P<mark>.)''', re.DOTALL | re.MULTILINE)
CLOSES = {"(": ")", "[": "]", "{": "}"}


def clang_format(text: str, name: str, remove_braces: bool) -> str:
    style = '{BasedOnStyle: InheritParentConfig, RemoveBracesLLVM: true}' if remove_braces else "file"
    command = [CLANG_FORMAT, f"--style={style}", f"--assume-filename={name}"]
    return subprocess.run(command, input=text, capture_output=True, check=True, text=True).stdout


class Braces:
    """Finds the bodies without braces in clang-formatted source, and the places for braces."""

    def __init__(self, text: str):
        self._text = text
        self._tokens = [match for match in TOKEN.finditer(text) if match.lastgroup != "skip"]
        self._insert: list[tuple[int, str]] = []

    def added(self) -> str:
        at = 0
        while at < len(self._tokens):
            at = self._statement(at) if self._is_control(at) else at + 1
        text = self._text
        for position, inserted in sorted(self._insert, reverse=True):
            text = text[:position] + inserted + text[position:]
        return text

    def _word(self, at: int) -> str:
        return self._tokens[at].group() if at < len(self._tokens) else ""

    def _is_control(self, at: int) -> bool:
        return self._word(at) in ("if", "for", "while", "do")

    def _after_group(self, at: int) -> int:
        """The token after the group that opens at `at`. Bodies inside it (of a lambda) are handled too."""
        closes = CLOSES[self._word(at)]
        at += 1
        while at < len(self._tokens) and self._word(at) != closes:
            if self._word(at) in CLOSES:
                at = self._after_group(at)
            else:
                at = self._statement(at) if self._is_control(at) else at + 1
        return at + 1

    def _statement(self, at: int) -> int:
        """The token after the statement that begins at `at`."""
        word = self._word(at)
        if word == "{":
            return self._after_group(at)
        if word == "do":
            at = self._body(at + 1, at)
            return self._simple(at)
        if word in ("for", "while"):
            return self._body(self._after_group(at + 1), at)
        if word == "if":
            condition = at + (2 if self._word(at + 1) == "constexpr" else 1)
            after = self._body(self._after_group(condition), at)
            if self._word(after) != "else":
                return after
            if self._word(after + 1) == "if":
                return self._statement(after + 1)
            return self._body(after + 1, after)
        return self._simple(at)

    def _simple(self, at: int) -> int:
        while at < len(self._tokens) and self._word(at) != ";":
            if self._word(at) == "}":
                return at
            at = self._after_group(at) if self._word(at) in CLOSES else at + 1
        return at + 1

    def _body(self, at: int, control: int) -> int:
        """Handles the body that begins at `at`, of the keyword at `control`. Returns the token after it."""
        if self._word(at) in ("{", ";", ""):
            return self._statement(at)
        after_head = self._tokens[at - 1].end()
        alone = "\n" in self._text[after_head:self._tokens[at].start()]
        nested_if = self._word(control) == "if" and self._word(at).startswith(IFS)
        needed = alone or nested_if or self._word(at) in STATEMENTS
        end = self._statement(at)
        if needed:
            # After a comment at the end of the body's last line.
            line_end = self._text.find("\n", self._tokens[end - 1].end())
            self._insert += [(after_head, " {"), (line_end, "\n}")]
        return end


def formatted(text: str, name: str) -> str:
    return clang_format(Braces(clang_format(text, name, remove_braces=True)).added(), name, remove_braces=False)


def unformatted(root: pathlib.Path) -> dict[pathlib.PurePosixPath, str]:
    """The tracked files with a wrong format, each with its formatted text."""

    def run(path: pathlib.PurePosixPath) -> tuple[pathlib.PurePosixPath, str | None]:
        text = (root / path).read_text(encoding="utf-8")
        good = formatted(text, str(root / path))
        return path, None if good == text else good

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return {path: good for path, good in pool.map(run, sources.tracked_sources(root)) if good is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root.resolve()
    if shutil.which(CLANG_FORMAT) is None:
        print(f"{CLANG_FORMAT} is not installed; tools/setup.sh --tests installs it", file=sys.stderr)
        return 1
    for path, text in unformatted(root).items():
        print(path)
        (root / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
