"""The figure of bench/plot for polysketch score --by-depth --json: loss by depth.

One panel for nats a token, deep (solid) and from fresh starts (dashed), one for their difference; a colour for each file, whose
name is its label. Bars are standard errors. A point lies at the middle of its bucket on the logarithmic axis of depth."""

import json
import math
import pathlib

from chart import COLOURS, GAP, HEIGHT, TEXT, WIDTH, Canvas, Line, LinearPanel, draw_legend

MARGIN = 64


def line(result: dict, column: str, label: str, colour: str, *, dashed: bool = False) -> Line:
    """The mean and the standard error of each bucket."""
    of_depth = {math.sqrt(max(bucket["begin"], 1) * bucket["end"]): bucket[column] for bucket in result["buckets"]}
    points = {depth: value["mean"] for depth, value in of_depth.items()}
    errors = {depth: value["standard_error"] or 0.0 for depth, value in of_depth.items()}
    return Line(label, colour, points, dashed, errors=errors)


def svg(files: list[pathlib.Path]) -> str:
    """The figure. ValueError: a file has no bucket."""
    losses, differences, starts = [], [], set()
    for i, file in enumerate(files):
        result, colour = json.loads(file.read_text()), COLOURS[i % len(COLOURS)]
        if not result.get("buckets"):
            raise ValueError(f"{file}: expected buckets of polysketch score --by-depth --json, found none")
        starts.add(f"{result['warm_up'] + 1} to {result['window']}")
        losses.append(line(result, "deep", file.stem, colour))
        losses.append(line(result, "fresh", file.stem, colour, dashed=True))
        differences.append(line(result, "difference", file.stem, colour))
    canvas = Canvas(2 * WIDTH + 3 * MARGIN + GAP, HEIGHT + 2 * MARGIN + 40)
    LinearPanel(MARGIN, MARGIN, "nats a token by depth", losses, labels=None).draw(canvas)
    LinearPanel(2 * MARGIN + WIDTH + GAP, MARGIN, "deep minus fresh start", differences, labels=None).draw(canvas)
    draw_legend(canvas, MARGIN, MARGIN + HEIGHT + 46, [(line.label, line.colour) for line in differences], len(files))
    about = f"Dashed: fresh start, {', '.join(sorted(starts))} tokens before the token. Bars: standard errors of block means."
    canvas.text(MARGIN, canvas.height - 14, about, TEXT)
    return canvas.svg()
