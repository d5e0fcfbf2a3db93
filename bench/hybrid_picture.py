"""bench/hybrid_picture.py RESULTS.json --out FILE.svg: the results of bench/hybrid as a picture: loss above the teacher's by depth, answers
recalled by the distance between fact and question, tokens/s of decoding by depth. A PNG needs Pillow."""

import argparse
import collections
import json
import math
import pathlib

import numpy as np
from chart import COLOURS, GAP, HEIGHT, TEXT, WIDTH, Canvas, Line, LinearPanel, LogPanel, draw_legend

from polysketch_training.linearize.tasks import FORMS

BLOCK = 512  # tokens of a mean of bench/hybrid, which count as independent
TEACHER = "teacher"
_MARGIN, _TOP = 64, 48


def octave(tokens):
    """Returns the geometric mean of the bounds of the bucket [2^i, 2^(i + 1)) of `tokens`. The lowest bucket begins at BLOCK / 2 and holds
    all smaller numbers too."""
    low = 2 ** math.floor(math.log2(max(tokens, BLOCK / 2)))
    return low * math.sqrt(2)


def line(model, colour, samples):
    """samples: values by place. Means, with standard errors where there are several."""
    points = {at: float(np.mean(values)) for at, values in samples.items()}
    errors = {at: float(np.std(values, ddof=1) / math.sqrt(len(values))) for at, values in samples.items() if len(values) > 1}
    return Line(model, colour, points, errors=errors)


def lost(found, model):
    """Differences from the teacher of blocks of all texts, by depth."""
    samples = collections.defaultdict(list)
    for name, value in found[model].items():
        own, teacher = (values["first"] + values["rest"] for values in (value, found[TEACHER][name]))
        for i, (a, b) in enumerate(zip(own, teacher)):
            samples[octave(i * BLOCK)].append(a - b)
    return samples


def recalled(found, model):
    """1 for an answer whose tokens are all the likeliest ones, 0 for another, by distance."""
    samples = collections.defaultdict(list)
    for name, value in found[model].items():
        if name.split()[1] in FORMS:
            for _, tokens, right, distance in value["answers"]:
                samples[octave(distance)].append(float(right == tokens))
    return samples


def decoded(found, model):
    return {int(context): [values["decode 1"]] for context, values in found[model].items() if "decode 1" in values}


def draw(results, models):
    """A Canvas with the panels whose stages have results of at least one of the models."""
    colours = dict(zip([*models, TEACHER], COLOURS))
    panels = []
    for stage, title, kind, of_model, shown in (
        ("loss", "loss above the teacher's, nats a token by depth", LinearPanel, lost, models),
        ("recall", "answers recalled, by tokens from fact to question", LinearPanel, recalled, [*models, TEACHER]),
        ("speed", "decoding one sequence, tokens/s by depth", LogPanel, decoded, [*models, TEACHER]),
    ):
        found = results.get(stage, {})
        lines = [line(model, colours[model], of_model(found, model)) for model in shown if model in found and TEACHER in found]
        if lines:
            panels.append((kind, title, lines))
    canvas = Canvas(_MARGIN + len(panels) * (WIDTH + _MARGIN + GAP) - GAP, _TOP + HEIGHT + 84)
    for number, (kind, title, lines) in enumerate(panels):
        kind(_MARGIN + number * (WIDTH + _MARGIN + GAP), _TOP, title, lines, labels=None).draw(canvas)
    draw_legend(canvas, _MARGIN, _TOP + HEIGHT + 46, [(model, colours[model]) for model in (*models, TEACHER)], 4)
    canvas.text(_MARGIN, canvas.height - 12, "Bars: standard errors, of blocks of 512 tokens and of answers.", TEXT)
    return canvas


def main():
    parser = argparse.ArgumentParser(prog="bench/hybrid_picture.py", description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--models", default="hybrid,polysketch", metavar="NAME,...", help="beside the teacher (default hybrid,polysketch)")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    results, models = json.loads(options.results.read_text()), options.models.split(",")
    known = {model for stage in ("loss", "recall", "speed") for model in results.get(stage, {})}
    if unknown := set(models) - known:
        parser.error(f"--models: expected some of {', '.join(sorted(known))}, found {', '.join(sorted(unknown))}")
    draw(results, models).write(options.out)


if __name__ == "__main__":
    main()
