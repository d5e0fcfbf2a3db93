"""Draws figures.json of bench/figures: for a shape with several contexts a panel of lines for each measure, for a shape with one
context bars."""

import math
import pathlib

import limited
from chart import COLOURS, FRAME, GAP, HEIGHT, TEXT, WIDTH, Canvas, Line, LogPanel, draw_arrow, draw_cross, draw_legend, legend_height
from figures_plan import KINDS, MEASURES, Shape

MARGIN, ROW, LABELS = 64, 22, 150  # of bars: the height of a row, the width of its label
LEGEND_COLUMNS = 4
COLOUR_OF = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(KINDS)}

# Training steps a second that the PolySketchFormer paper prints, by context: 110M parameters, 32 A100 GPUs, JAX. At 32k the
# model has 4 layers. None: out of memory.
PAPER_HARDWARE = "32 A100"
PAPER_STEPS = {
    "softmax": {512: 6.25, 1024: 4.5, 2048: 4.3, 4096: 3, 8192: None, 16384: None},
    "polynomial": {512: 6.2, 1024: 4.5, 2048: 4.1, 4096: 3.2, 8192: None, 16384: None},
    "polysketch": {512: 3.7, 1024: 3.4, 2048: 3.3, 4096: 3.1, 8192: 2, 16384: 1.1},
    "performer": {512: 2.3, 1024: 2.4, 2048: 1.8, 4096: 1.2, 8192: 0.7, 16384: 0.35},
    "FlashAttention": {512: 5.8, 1024: 5.3, 2048: 4.7, 4096: 3.5, 8192: 1.4, 16384: 0.44},
}
PAPER_STEPS_32K = {"polysketch": 1.54, "FlashAttention": 0.34}
# Names of the paper that are not kinds: its sketch is the learned one with exact blocks, FlashAttention computes softmax.
_PAPER_COLOURS = COLOUR_OF | {"polysketch": COLOUR_OF["learned_sketch_mixed"], "FlashAttention": "#000000"}


def draw(shape: Shape, points: list[dict], about: str) -> Canvas | None:
    """Returns the figure of a shape, or None if no point of it is there. about: machine, commit and date."""
    own = [point for point in points if point["shape"] == shape.name]
    if not own:
        return None
    several = len(shape.contexts) + len(shape.constant_contexts) > 1
    return (_lines if several else _bars)(shape, own, about)


def write(canvas: Canvas, stem: pathlib.Path) -> None:
    for ending in (".svg", ".png"):
        canvas.write(stem.with_name(stem.name + ending))


def _lines(shape: Shape, points: list[dict], about: str) -> Canvas:
    panels = [(f"{title}, us a token by context", _measure_lines(points, measure)) for measure, title in MEASURES.items()]
    panels.insert(2, ("state or cache of a sequence, bytes by context", _measure_lines(points, "decode", "state_bytes")))
    paper = f"the paper's: training steps a second, 110M, {PAPER_HARDWARE}"
    panels.append((paper, _paper_lines()))
    columns = 3
    rows = math.ceil(len(panels) / columns)
    legend = legend_height(len(KINDS), LEGEND_COLUMNS) + 60
    canvas = Canvas(columns * (WIDTH + MARGIN + GAP) + MARGIN, rows * (HEIGHT + 2 * MARGIN) + legend + MARGIN)
    canvas.text(MARGIN, 24, shape.title, bold=True)
    for number, (title, lines) in enumerate(panels):
        left = MARGIN + number % columns * (WIDTH + MARGIN + GAP)
        top = MARGIN + 20 + number // columns * (HEIGHT + 2 * MARGIN)
        LogPanel(left, top, title, lines, labels="list" if title == paper else None).draw(canvas)
    _legend(canvas, canvas.height - legend, about)
    return canvas


def _measure_lines(points: list[dict], measure: str, field: str = "us_per_token") -> list[Line]:
    lines = []
    for kind in KINDS:
        own = [point for point in points if point["attention"] == kind and point["measure"] == measure]
        if own:
            values = {p["context"]: p[field] for p in own if p["status"] == limited.MEASURED}
            crosses, arrows = (
                tuple(p["context"] for p in own if p["status"] == status) for status in (limited.OUT_OF_MEMORY, limited.TOO_SLOW)
            )
            lines.append(Line(kind, COLOUR_OF[kind], values, crosses=crosses, arrows=arrows))
    return lines


def _paper_lines() -> list[Line]:
    return [
        Line(
            name,
            _PAPER_COLOURS[name],
            {context: rate for context, rate in steps.items() if rate is not None},
            dashed=True,
            crosses=tuple(context for context, rate in steps.items() if rate is None),
        )
        for name, steps in PAPER_STEPS.items()
    ]


def _legend(canvas: Canvas, top: float, about: str) -> None:
    draw_legend(canvas, MARGIN, top, [(kind, COLOUR_OF[kind]) for kind in KINDS], LEGEND_COLUMNS)
    y = top + legend_height(len(KINDS), LEGEND_COLUMNS) + 6
    draw_cross(canvas, MARGIN + 4, y - 4, TEXT)
    canvas.text(MARGIN + 14, y, "at the top edge: out of memory", TEXT)
    draw_arrow(canvas, MARGIN + 244, y - 4, TEXT)
    canvas.text(MARGIN + 254, y, "at the top edge: too slow", TEXT)
    canvas.text(MARGIN, y + 22, about, TEXT)


def _bars(shape: Shape, points: list[dict], about: str) -> Canvas:
    panels = [(f"{title}, us a token", _bar_rows(points, measure)) for measure, title in MEASURES.items()]
    height = ROW * len(KINDS) + 60
    canvas = Canvas(2 * (LABELS + WIDTH + MARGIN) + MARGIN, 60 + 2 * height + ROW * len(PAPER_STEPS_32K) + 80)
    canvas.text(MARGIN, 24, shape.title, bold=True)
    paper = [(name, rate, "") for name, rate in PAPER_STEPS_32K.items()]
    title = f"the paper's: training steps a second, 4 layers, 32k tokens, {PAPER_HARDWARE}"
    for number, (name, rows) in enumerate([*panels, (title, paper)]):
        left = MARGIN + number % 2 * (LABELS + WIDTH + MARGIN)
        _draw_bars(canvas, left, 60 + number // 2 * height, name, rows, dashed=name == title)
    canvas.text(MARGIN, canvas.height - 14, about, TEXT)
    return canvas


def _bar_rows(points: list[dict], measure: str) -> list[tuple]:
    """Returns label, value or None, and the status to print in its place."""
    own = {point["attention"]: point for point in points if point["measure"] == measure}
    return [(kind, own[kind].get("us_per_token"), own[kind]["status"]) for kind in KINDS if kind in own]


def _draw_bars(canvas: Canvas, left: float, top: float, title: str, rows: list[tuple], *, dashed: bool) -> None:
    """Bars from zero."""
    canvas.text(left, top, title, bold=True)
    most = max((value for _, value, _ in rows if value is not None), default=1)
    for number, (label, value, status) in enumerate(rows):
        x, y = left + LABELS, top + 12 + number * ROW
        canvas.text(x - 8, y + 13, label, anchor="end")
        if value is None:
            canvas.text(x + 4, y + 13, status, TEXT)
            continue
        colour, end = _PAPER_COLOURS[label], x + value / most * (WIDTH - 80)
        if dashed:
            canvas.path([(x, y + 2), (end, y + 2), (end, y + 16), (x, y + 16), (x, y + 2)], colour, width=2, dashed=True)
        else:
            canvas.box(x, y + 2, end - x, 14, colour, fill=True)
        canvas.text(end + 6, y + 13, f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
    canvas.path([(left + LABELS, top + 8), (left + LABELS, top + 12 + len(rows) * ROW)], FRAME)
