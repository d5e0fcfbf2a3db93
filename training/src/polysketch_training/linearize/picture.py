"""The picture of a sensitivity: a bar for each layer, and loss and recall by the number of full layers."""

import html
import pathlib

from polysketch_training.disk import write_text
from polysketch_training.linearize.sensitivity import Sensitivity

_PANEL, _LEFT, _GAP = (420, 220), 60, 90  # width and height of a panel; the room left of it and between two
_TOP = 40
_RECALL, _TEXT, _FULL = "#1b6ca8", "#c8553d", "#588157"


class _Panel:
    """Axes from the origin; y of the data 0 is at the bottom, or within the panel where values are below it."""

    def __init__(self, shapes: list[str], number: int, title: str, x_title: str, columns: int, values: list[float]):
        self._shapes = shapes
        self._left = _LEFT + number * (_PANEL[0] + _GAP)
        self._columns = columns
        self._low, self._high = min(0.0, *values), max(0.0, *values)
        if self._high == self._low:
            self._high = self._low + 1
        bottom = _TOP + _PANEL[1]
        shapes.append(f'<text x="{self._left}" y="20" font-weight="bold">{html.escape(title)}</text>')
        shapes.append(f'<text x="{self._left + _PANEL[0] / 2:g}" y="{bottom + 34}" text-anchor="middle">{html.escape(x_title)}</text>')
        for tick in range(5):
            value = self._low + (self._high - self._low) * tick / 4
            y = self.y(value)
            shapes.append(f'<line x1="{self._left}" y1="{y:.1f}" x2="{self._left + _PANEL[0]}" y2="{y:.1f}" stroke="#ddd"/>')
            shapes.append(f'<text x="{self._left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2g}</text>')
        every = max(1, columns // 12)
        for column in range(0, columns, every):
            shapes.append(f'<text x="{self.x(column):.1f}" y="{bottom + 16}" text-anchor="middle">{column}</text>')

    def x(self, column: float) -> float:
        return self._left + _PANEL[0] * (column + 0.5) / self._columns

    def y(self, value: float) -> float:
        return _TOP + _PANEL[1] * (self._high - value) / (self._high - self._low)

    def bar(self, column: int, value: float, colour: str, place: float) -> None:
        width = _PANEL[0] / self._columns * 0.4
        x, top, bottom = self.x(column) + width * place, self.y(max(value, 0)), self.y(min(value, 0))
        self._shapes.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" fill="{colour}"/>')

    def line(self, points: dict[int, float], colour: str) -> None:
        places = [(self.x(column), self.y(value)) for column, value in points.items()]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self._shapes.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self._shapes += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]

    def mark(self, column: int, text: str) -> None:
        x = self.x(column)
        self._shapes.append(
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + _PANEL[1]}" stroke="{_FULL}" stroke-dasharray="5 4"/>'
            f'<text x="{x + 5:.1f}" y="{_TOP + 12}" fill="{_FULL}">{html.escape(text)}</text>'
        )


def draw(found: Sensitivity, full: list[int]) -> str:
    """The SVG. full: the layers that were chosen."""
    shapes: list[str] = []
    count = len(found.layers)
    recall = [values["nats"] - found.full["nats"] for values in found.layers]
    text = [values["loss"] - found.full["loss"] for values in found.layers]
    layers = _Panel(shapes, 0, "One layer alone has the window: nats above all full", "layer", count, recall + text)
    for i in range(count):
        layers.bar(i, recall[i], _RECALL, -1)
        layers.bar(i, text[i], _TEXT, 0)
    recall_curve = {k: values["nats"] - found.full["nats"] for k, values in found.curve.items()}
    text_curve = {k: values["loss"] - found.full["loss"] for k, values in found.curve.items()}
    values = [*recall_curve.values(), *text_curve.values()]
    curve = _Panel(shapes, 1, "All but some have the window: nats above all full", "full layers", count + 1, values)
    curve.line(recall_curve, _RECALL)
    curve.line(text_curve, _TEXT)
    if found.full_layers(len(full)) == full:
        curve.mark(len(full), f"{len(full)} full")
    y = _TOP + _PANEL[1] + 60
    for place, (colour, label) in enumerate(((_RECALL, "an answer of a recall prompt"), (_TEXT, "a token of text"))):
        x = _LEFT + place * 220
        shapes.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{colour}"/><text x="{x + 16}" y="{y}">{label}</text>')
    width, height = _LEFT + 2 * _PANEL[0] + _GAP + 20, y + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12" font-family="sans-serif">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def write(path: pathlib.Path, found: Sensitivity, full: list[int]) -> None:
    write_text(path, draw(found, full))
