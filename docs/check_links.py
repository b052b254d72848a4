#!/usr/bin/env python3
"""Checks the relative links and anchors of all tracked Markdown files. Exits 1 and names each link that leads nowhere.

Usage: docs/check_links.py [--root FOLDER]

Checked are inline links, pictures, reference definitions, and `src` and `href` of HTML. The target of a link must be a
tracked file, or a folder with tracked files. An anchor must be a heading of its page, in GitHub's spelling, or an `id`.
A page below docs/ must be in the navigation of mkdocs.yml. Links with a scheme (https:, mailto:) are not followed.
"""

import argparse
import dataclasses
import pathlib
import posixpath
import re
import subprocess
import sys
import urllib.parse

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_INLINE = re.compile(r"\]\(\s*(<[^>]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(<[^>]*>|\S+)")
_HTML = re.compile(r"\b(?:src|href)=\"([^\"]*)\"")
_ID = re.compile(r"\b(?:id|name)=\"([^\"]*)\"")
_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")
_LINK_TEXT = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NAVIGATION = re.compile(r"^\s*- (?:[^:]+: )?(\S+\.md)\s*$", re.MULTILINE)


@dataclasses.dataclass
class Page:
    """What one Markdown file has: its links with their line numbers, and the anchors that others may name."""

    links: list[tuple[int, str]]
    anchors: set[str]


def lines_of_text(text: str) -> list[tuple[int, str]]:
    """The lines outside of code blocks, with their numbers."""
    fence = ""
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if mark:
            fence = mark[1]
            continue
        lines.append((number, line))
    return lines


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives to a heading: lower case, blanks as hyphens, punctuation left out."""
    words = _LINK_TEXT.sub(r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def page_of(text: str) -> Page:
    page = Page(links=[], anchors=set())
    seen: dict[str, int] = {}
    for number, line in lines_of_text(text):
        if heading := _HEADING.match(line):
            anchor = anchor_of(heading[1])
            repeated = seen.get(anchor, 0)
            seen[anchor] = repeated + 1
            page.anchors.add(f"{anchor}-{repeated}" if repeated else anchor)
        plain = _CODE_SPAN.sub("", line)
        page.anchors.update(_ID.findall(plain))
        found = [*_INLINE.findall(plain), *_REFERENCE.findall(plain), *_HTML.findall(plain)]
        page.links += [(number, link.strip("<>")) for link in found]
    return page


def tracked_files(root: pathlib.Path) -> list[str]:
    """The files that git tracks, or all but build/ in a tree without git; paths with slashes, relative to the root."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = [path.relative_to(root).as_posix() for path in root.rglob("*")]
        names = [name for name in names if not name.startswith("build/")]
    return sorted(name for name in names if name and (root / name).is_file())


def folders_of(files: list[str]) -> set[str]:
    folders = {"."}
    for file in files:
        while file := posixpath.dirname(file):
            folders.add(file)
    return folders


def problems(root: pathlib.Path) -> list[str]:
    """Each link that leads nowhere, as `file:line: what is wrong`."""
    files = tracked_files(root)
    targets = {*files, *folders_of(files)}
    pages = {name: page_of((root / name).read_text(encoding="utf-8")) for name in files if name.endswith(".md")}
    found = []
    for name, page in pages.items():
        for number, link in page.links:
            if problem := problem_of(name, link, targets, pages):
                found.append(f"{name}:{number}: {problem}")
    return found + navigation_problems(root, pages)


def problem_of(name: str, link: str, targets: set[str], pages: dict[str, Page]) -> str | None:
    if _SCHEME.match(link) or link.startswith("//"):
        return None
    path, _, anchor = link.partition("#")
    path = urllib.parse.unquote(path)
    if path.startswith("/"):
        return f"{link}: a link is relative to its page"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    if target not in targets:
        return f"{link}: git tracks no file {target}"
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"{link}: {target} has no heading for the anchor {anchor}"
    return None


def navigation_problems(root: pathlib.Path, pages: dict[str, Page]) -> list[str]:
    """Pages of docs/ that mkdocs.yml does not list, and pages that it lists and that are not there."""
    site = root / "mkdocs.yml"
    if not site.is_file():
        return []
    listed = {f"docs/{path}" for path in _NAVIGATION.findall(site.read_text(encoding="utf-8"))}
    written = {name for name in pages if name.startswith("docs/")}
    return [f"mkdocs.yml: the navigation does not list {name}" for name in sorted(written - listed)] + [
        f"mkdocs.yml: the navigation lists {name}, and git tracks no such file" for name in sorted(listed - written)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    found = problems(parser.parse_args().root.resolve())
    print("\n".join(found) or "links: good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
