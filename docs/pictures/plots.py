#!/usr/bin/env python3
"""Draws the plots of figures.toml: figures.svg, fan-out.svg and latency.svg.

Usage: docs/pictures/plots.py            writes the plots beside this script
       docs/pictures/plots.py --check    exits 1 where a plot is not current

Both also check that each value stands in the line of the results that figures.toml names.
"""

import argparse
import math
import re
import sys
import tomllib

from drawing import DIM, FAINT, FOLDER, INK, add_check, svg, text, write_or_check

ROOT = FOLDER.parents[1]

OURS = "#4c78a8"
PEER = "#b8c0c8"
WIDTH = 960
LEFT, RIGHT = 30, 330  # the bars lie between; their names are on the right
TOP = 78
LABEL, BAR, GAP = 20, 18, 14


def lines_of(page: str, section: str) -> list[tuple[int, str]]:
    """The lines of a section, with their numbers, up to the next heading."""
    found, inside = [], False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        if heading := re.fullmatch(r"#+ (.*)", line):
            inside = heading[1] == section
        elif inside:
            found.append((number, line))
    return found


def problems_of(group: dict) -> list[str]:
    """The values of a group that do not stand where figures.toml says."""
    found = []
    for bar in group["bars"]:
        rows = [number for number, line in lines_of(group["page"], group["section"]) if group["row"] in line and bar["says"] in line]
        where = f"{group['page']}, \"{group['section']}\": {group['row']}"
        if len(rows) != 1:
            found.append(f"{where}: {len(rows)} lines have \"{bar['says']}\", and not one; correct figures.toml")
        if f"{bar['value']:g}" not in re.findall(r"\d+(?:\.\d+)?", bar["says"]):
            found.append(f"{where}: \"{bar['says']}\" does not have the value {bar['value']:g}; correct figures.toml")
    return found


def shares_of(plot: dict) -> dict[float, float]:
    """The length of the bar of each value, as a share of the longest."""
    values = [bar["value"] for group in plot["group"] for bar in group["bars"]]
    if plot["scale"] == "linear":
        return {value: value / max(values) for value in [*values, plot.get("mark", 0)]}
    low = math.floor(math.log10(min(values)))
    return {value: (math.log10(value) - low) / (math.log10(max(values)) - low) for value in values}


def draw_group(group: dict, top: float, unit: str, shares: dict[float, float]) -> list[str]:
    drawn = [text(LEFT, top + 14, group["label"], size=13, anchor="start", weight="bold")]
    for number, bar in enumerate(group["bars"]):
        y = top + LABEL + number * BAR
        length = shares[bar["value"]] * (WIDTH - LEFT - RIGHT)
        colour = PEER if number > 0 else OURS
        drawn.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 3}" fill="{colour}"/>')
        figure = f"{bar['value']:g} {unit}".strip()
        drawn.append(text(LEFT + length + 8, y + 12, f"{figure}, {bar['name']}", colour=INK if colour == OURS else DIM, anchor="start"))
    return drawn


def draw(plot: dict) -> str:
    shares = shares_of(plot)
    drawn = [
        text(LEFT, 30, plot["title"], size=17, weight="bold", anchor="start"),
        text(LEFT, 52, plot["note"], colour=DIM, anchor="start"),
    ]
    bottom = TOP + sum(LABEL + BAR * len(group["bars"]) + GAP for group in plot["group"])
    if "mark" in plot:
        x = LEFT + shares[plot["mark"]] * (WIDTH - LEFT - RIGHT)
        drawn.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom - GAP}" stroke="{FAINT}" stroke-dasharray="4 3"/>')
    top = TOP
    for group in plot["group"]:
        drawn += draw_group(group, top, plot["unit"], shares)
        top += LABEL + BAR * len(group["bars"]) + GAP
    return svg(WIDTH, bottom + 6, plot["title"], "plots.py", drawn)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_check(parser)
    check = parser.parse_args().check
    plots = tomllib.loads((FOLDER / "figures.toml").read_text(encoding="utf-8"))["plot"]
    problems = [problem for plot in plots for group in plot["group"] for problem in problems_of(group)]
    print("".join(f"docs/pictures/figures.toml: {problem}\n" for problem in problems), end="")
    return write_or_check({plot["file"]: draw(plot) for plot in plots}, "plots.py", check) or int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
