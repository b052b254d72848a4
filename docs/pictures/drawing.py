"""What the scripts of the pictures share: the colours, a text in SVG, and writing or checking their pictures."""

import argparse
import html
import pathlib

FOLDER = pathlib.Path(__file__).parent

INK = "#24292f"
FAINT = "#8c959f"
DIM = "#57606a"
PAPER = "#ffffff"


def text(x: float, y: float, words: str, *, size: int = 12, colour: str = INK, weight: str = "normal", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{html.escape(words, quote=False)}</text>'
    )


def svg(width: int, height: int, title: str, script: str, parts: list[str], *, font: str = "system-ui, sans-serif", paper: str = PAPER) -> str:
    """A whole picture."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="{font}" role="img">',
            f"<title>{html.escape(title, quote=False)}</title>",
            f"<!-- docs/pictures/{script} writes this file. -->",
            f'<rect width="{width}" height="{height}" rx="8" fill="{paper}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a picture is not current")


def write_or_check(pictures: dict[str, str], script: str, check: bool) -> int:
    """Writes the pictures, by their file names, or says which are not current. Returns the exit code."""
    if not check:
        for name, picture in pictures.items():
            (FOLDER / name).write_text(picture, encoding="utf-8")
        return 0
    old = [name for name, picture in pictures.items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != picture]
    if old:
        print(f"docs/pictures: not current: {', '.join(old)}; run docs/pictures/{script}")
        return 1
    print(f"docs/pictures: current: {', '.join(pictures)}")
    return 0
