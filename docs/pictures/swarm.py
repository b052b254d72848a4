#!/usr/bin/env python3
"""Draws swarm.svg: how a swarm brings one model to many nodes.

Usage: docs/pictures/swarm.py            writes swarm.svg beside this script
       docs/pictures/swarm.py --check    exits 1 where swarm.svg is not what this script writes

The picture comes from a small model of a swarm, and not from a measurement. Eight nodes want one model of eight chunks,
and node-a has it. In one step a node sends one chunk at the maximum and receives one. It serves what it received
from the next step on. The real rules are those of global_store/scheduler and of the engine's chunk picker.
"""

import argparse
import dataclasses
import math
import sys

from drawing import DIM, FAINT, INK, PAPER, add_check, svg, text, write_or_check

NODES = 8
CHUNKS = 8
SOURCE = 0

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#d6a800")
EMPTY = "#eef1f4"

LEGEND = "a small square is a chunk of the model, an arrow is a chunk on its way"
STORE = "the global store says which node may pull from which; no byte of a model passes through it"

WIDTH, HEIGHT = 960, 444
PANEL = WIDTH // 3
RING_X, RING_Y = 112, 112
CENTRE_Y = 212
CELL = 11
NODE_WIDTH, NODE_HEIGHT = 4 * CELL + 14, 2 * CELL + 30


@dataclasses.dataclass(frozen=True)
class Send:
    sender: int
    receiver: int
    chunk: int


@dataclasses.dataclass
class Step:
    """What each node had before the step, and what was sent in it."""

    had: list[set[int]]
    sends: list[Send]


def swarm() -> list[Step]:
    """The steps until every node has every chunk. The last one sends nothing."""
    has = [set(range(CHUNKS)) if node == SOURCE else set() for node in range(NODES)]
    steps = []
    while True:
        step = Step(had=[set(chunks) for chunks in has], sends=sends_of(has))
        steps.append(step)
        if not step.sends:
            return steps
        for send in step.sends:
            has[send.receiver].add(send.chunk)


def sends_of(has: list[set[int]]) -> list[Send]:
    """Of one step: first a chunk that only the source has, then what the receivers give each other, rarest first."""
    copies = [sum(chunk in chunks for chunks in has) for chunk in range(CHUNKS)]
    receivers = sorted((node for node in range(NODES) if node != SOURCE), key=lambda node: (len(has[node]), node))
    sends: list[Send] = []
    new = [chunk for chunk in range(CHUNKS) if copies[chunk] == 1]
    if new:
        sends.append(Send(SOURCE, receivers[0], new[0]))
    for receiver in receivers:
        busy = {send.sender for send in sends}
        if any(send.receiver == receiver for send in sends):
            continue
        choices = [
            (copies[chunk], len(has[sender]), sender, chunk)
            for sender in range(NODES)
            if sender != SOURCE and sender not in busy
            for chunk in has[sender] - has[receiver]
        ]
        if choices:
            _, _, sender, chunk = min(choices)
            sends.append(Send(sender, receiver, chunk))
    return sends


def place(node: int) -> tuple[float, float]:
    """The centre of a node in its panel: a ring with node-a at the top."""
    angle = 2 * math.pi * node / NODES - math.pi / 2
    return PANEL / 2 + RING_X * math.cos(angle), CENTRE_Y + RING_Y * math.sin(angle) * 1.12


def draw_node(node: int, has: set[int]) -> list[str]:
    x, y = place(node)
    left, top = x - NODE_WIDTH / 2, y - NODE_HEIGHT / 2
    border = INK if len(has) == CHUNKS else FAINT
    drawn = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="6" fill="{PAPER}" '
        f'stroke="{border}" stroke-width="1.5"/>',
        text(x, top + 16, f"node-{chr(ord('a') + node)}", size=12, weight="bold" if node == SOURCE else "normal"),
    ]
    for chunk in range(CHUNKS):
        cell_x = x - 2 * CELL + chunk % 4 * CELL
        cell_y = top + 22 + chunk // 4 * CELL
        colour = COLOURS[chunk] if chunk in has else EMPTY
        drawn.append(f'<rect x="{cell_x:.1f}" y="{cell_y:.1f}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>')
    return drawn


def draw_send(send: Send) -> str:
    """An arrow between the borders of two nodes, in the colour of its chunk."""
    (x1, y1), (x2, y2) = place(send.sender), place(send.receiver)
    start, end = border_point(x1, y1, x2, y2), border_point(x2, y2, x1, y1)
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{COLOURS[send.chunk]}" stroke-width="2.5" marker-end="url(#arrow-{send.chunk})"/>'
    )


def border_point(x: float, y: float, towards_x: float, towards_y: float) -> tuple[float, float]:
    """Where the line from the centre of a node leaves the node, with a gap of 4."""
    across, down = towards_x - x, towards_y - y
    room_x, room_y = NODE_WIDTH / 2 + 4, NODE_HEIGHT / 2 + 4
    share = min(room_x / abs(across) if abs(across) > 0.01 else 9.0, room_y / abs(down) if abs(down) > 0.01 else 9.0)
    return x + across * share, y + down * share


def draw_panel(number: int, title: str, words: str, step: Step) -> list[str]:
    drawn = [f'<g transform="translate({number * PANEL},0)">']
    drawn.append(text(PANEL / 2, 28, title, size=15, weight="bold"))
    drawn += [draw_send(send) for send in step.sends]
    for node in range(NODES):
        drawn += draw_node(node, step.had[node])
    drawn.append(text(PANEL / 2, HEIGHT - 60, words, size=13))
    drawn.append("</g>")
    return drawn


def picture() -> str:
    steps = swarm()
    last = len(steps) - 1
    from_source = sum(send.sender == SOURCE for step in steps for send in step.sends)
    all_sends = sum(len(step.sends) for step in steps)
    assert from_source == CHUNKS and all_sends == CHUNKS * (NODES - 1)
    middle = last // 2
    markers = [
        f'<marker id="arrow-{chunk}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="4" markerHeight="4" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
        for chunk, colour in enumerate(COLOURS)
    ]
    return svg(
        WIDTH,
        HEIGHT,
        "A swarm brings one model to eight nodes",
        "swarm.py",
        [
            "<defs>",
            *markers,
            "</defs>",
            *draw_panel(0, "One node has the model", "seven other nodes ask for it", steps[0]),
            *draw_panel(1, "What fills serves", "nodes pass on what they have verified", steps[middle]),
            *draw_panel(2, "Every node has it", f"node-a sent {from_source} of {all_sends} chunks: one image", steps[last]),
            text(WIDTH / 2, HEIGHT - 32, LEGEND, colour=DIM),
            text(WIDTH / 2, HEIGHT - 14, STORE, colour=DIM),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_check(parser)
    return write_or_check({"swarm.svg": picture()}, "swarm.py", parser.parse_args().check)


if __name__ == "__main__":
    sys.exit(main())
