"""What the figures of this folder share: a canvas that is written as SVG and as PNG, and panels over the logarithm of tokens."""

import abc
import dataclasses
import html
import math
import pathlib

WIDTH, HEIGHT, GAP = 460, 320, 40  # of a panel, and the room between panels
COLOURS = (
    "#1b6ca8", "#c8553d", "#588157", "#8e6c8a", "#b08900", "#2a9d8f", "#6d4c41", "#d81b60", "#5c6bc0", "#7a7a7a",
    "#9e9d24", "#00838f", "#f06292", "#37474f", "#a1887f", "#4caf50", "#7b1fa2", "#ff7043", "#455a64", "#afb42b",
)  # fmt: skip
LEGEND_COLUMN, LEGEND_ROW = 240, 18
GRID, FRAME, TEXT = "#dddddd", "#999999", "#444444"
PNG_SCALE = 2  # pixels of a unit of the SVG
_STEPS = (1, 2, 5, 10)  # of the ticks of a linear axis, times a power of ten
_DASH = (5, 4)


def tokens(count: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if count >= unit:
            return f"{count // unit}{name}"
    return str(count)


class Canvas:
    """Lines, marks and text in the order in which they are drawn. Places are units from the top left corner."""

    def __init__(self, width: float, height: float):
        self.width, self.height, self._shapes = width, height, []

    def path(self, points, colour: str, *, width: float = 1, dashed: bool = False) -> None:
        points = list(points)
        if len(points) > 1:
            self._shapes.append(("path", points, colour, width, dashed))

    def box(self, left: float, top: float, width: float, height: float, colour: str, *, fill: bool = False) -> None:
        self._shapes.append(("box", (left, top, left + width, top + height), colour, fill))

    def dot(self, x: float, y: float, colour: str) -> None:
        self._shapes.append(("dot", x, y, colour))

    def text(self, x: float, y: float, text: str, colour: str = "#000000", *, anchor: str = "start", bold: bool = False) -> None:
        """`anchor`: which point of the baseline is at x: start, middle or end."""
        self._shapes.append(("text", x, y, text, colour, anchor, bold))

    def svg(self) -> str:
        body = "\n".join(getattr(self, f"_svg_{kind}")(*rest) for kind, *rest in self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" font-size="12"'
            f' font-family="sans-serif"><rect width="{self.width:g}" height="{self.height:g}" fill="#fff"/>\n{body}\n</svg>\n'
        )

    def write(self, path: pathlib.Path) -> None:
        """Writes SVG, or PNG (needs Pillow), by the ending of the path."""
        if path.suffix == ".png":
            self._image().save(path)
        else:
            path.write_text(self.svg())

    def _svg_path(self, points, colour, width, dashed) -> str:
        dash = ' stroke-dasharray="{} {}"'.format(*_DASH) if dashed else ""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'

    def _svg_box(self, corners, colour, fill) -> str:
        left, top, right, bottom = corners
        paint = f'fill="{colour}"' if fill else f'fill="none" stroke="{colour}"'
        return f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" {paint}/>'

    def _svg_dot(self, x, y, colour) -> str:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'

    def _svg_text(self, x, y, text, colour, anchor, bold) -> str:
        weight = ' font-weight="bold"' if bold else ""
        return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>{html.escape(text)}</text>'

    def _image(self):
        from PIL import Image, ImageDraw, ImageFont

        image = Image.new("RGB", (round(self.width * PNG_SCALE), round(self.height * PNG_SCALE)), "white")
        painter = _Painter(ImageDraw.Draw(image), ImageFont.load_default(12 * PNG_SCALE))
        for kind, *rest in self._shapes:
            getattr(painter, kind)(*rest)
        return image


class _Painter:
    """The shapes of a canvas by Pillow."""

    def __init__(self, draw, font):
        self._draw, self._font = draw, font

    def path(self, points, colour, width, dashed) -> None:
        pieces = _dashes(points) if dashed else [points]
        for piece in pieces:
            self._draw.line([_pixels(*point) for point in piece], fill=colour, width=round(width * PNG_SCALE), joint="curve")

    def box(self, corners, colour, fill) -> None:
        pixels = [*_pixels(*corners[:2]), *_pixels(*corners[2:])]
        self._draw.rectangle(pixels, fill=colour if fill else None, outline=colour, width=PNG_SCALE)

    def dot(self, x, y, colour) -> None:
        self._draw.ellipse([*_pixels(x - 3, y - 3), *_pixels(x + 3, y + 3)], fill=colour)

    def text(self, x, y, text, colour, anchor, bold) -> None:
        place = {"start": "l", "middle": "m", "end": "r"}[anchor] + "s"
        self._draw.text(_pixels(x, y), text, fill=colour, font=self._font, anchor=place, stroke_width=int(bold))


def _pixels(x: float, y: float) -> tuple[int, int]:
    return round(x * PNG_SCALE), round(y * PNG_SCALE)


def _dashes(points):
    """Yields the pieces of a dashed path."""
    on, left = True, float(_DASH[0])
    for (x, y), end in zip(points, points[1:]):
        length = math.dist((x, y), end)
        if length == 0:
            continue
        dx, dy = (end[0] - x) / length, (end[1] - y) / length
        while length > 0:
            step = min(left, length)
            if on:
                yield [(x, y), (x + dx * step, y + dy * step)]
            x, y, length, left = x + dx * step, y + dy * step, length - step, left - step
            if left == 0:
                on, left = not on, float(_DASH[1 if on else 0])


@dataclasses.dataclass
class Line:
    """points: {tokens: value}. crosses and arrows: tokens whose value is unknown, marked at the top edge. errors: {tokens: half of a
    bar}."""

    label: str
    colour: str
    points: dict[float, float]
    dashed: bool = False
    crosses: tuple[int, ...] = ()
    arrows: tuple[int, ...] = ()
    errors: dict[float, float] = dataclasses.field(default_factory=dict)


class Panel(abc.ABC):
    """Lines over the logarithm of tokens. `labels`: at the first point of each line ("first"), in a list ("list"), or none."""

    def __init__(self, left: float, top: float, title: str, lines: list[Line], *, labels: str | None = "first"):
        self._left, self._top, self._title, self._lines, self._labels = left, top, title, lines, labels
        self._x = _range([x for line in lines for x in (*line.points, *line.crosses, *line.arrows)], 2)

    @abc.abstractmethod
    def _up(self, y: float) -> float:
        """The place of a value: 0 at the bottom, 1 at the top."""

    @abc.abstractmethod
    def _ticks(self) -> list[tuple[float, str]]:
        """Values on the axis, and what stands beside them."""

    def draw(self, canvas: Canvas) -> None:
        canvas.text(self._left, self._top - 14, self._title, bold=True)
        canvas.box(self._left, self._top, WIDTH, HEIGHT, FRAME)
        self._draw_axes(canvas)
        for number, line in enumerate(self._lines):
            self._draw_line(canvas, line)
            self._draw_marks(canvas, line, 5 * (number - (len(self._lines) - 1) / 2))
            if self._labels == "list":
                above = 16 * (len(self._lines) - number)
                canvas.text(self._left + 10, self._top + HEIGHT - above, line.label, line.colour)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - self._x[0]) / (self._x[1] - self._x[0])
        return self._left + across * WIDTH, self._top + (1 - self._up(y)) * HEIGHT

    def _draw_axes(self, canvas: Canvas) -> None:
        for value, text in self._ticks():
            x, y = self._at(2 ** self._x[0], value)
            canvas.path([(x, y), (x + WIDTH, y)], GRID)
            canvas.text(x - 6, y + 4, text, anchor="end")
        for power in range(self._x[0], self._x[1] + 1, 2 if self._x[1] - self._x[0] > 4 else 1):
            x, _ = self._at(2.0**power, self._ticks()[0][0])
            canvas.text(x, self._top + HEIGHT + 18, tokens(2**power), anchor="middle")

    def _draw_line(self, canvas: Canvas, line: Line) -> None:
        places = [self._at(x, y) for x, y in sorted(line.points.items())]
        canvas.path(places, line.colour, width=2, dashed=line.dashed)
        for x, error in line.errors.items():
            canvas.path([self._at(x, line.points[x] + d) for d in (error, -error)], line.colour)
        for place in places:
            canvas.dot(*place, line.colour)
        if places and self._labels == "first":
            canvas.text(places[0][0] + 4, places[0][1] - 7, line.label, line.colour)

    def _draw_marks(self, canvas: Canvas, line: Line, shift: float) -> None:
        """Marks of several lines at one context lie beside each other."""
        for context in (*line.crosses, *line.arrows):
            x, _ = self._at(context, self._ticks()[0][0])
            (draw_cross if context in line.crosses else draw_arrow)(canvas, x + shift, self._top, line.colour)


class LogPanel(Panel):
    """With a logarithmic axis of values."""

    def __init__(self, left: float, top: float, title: str, lines: list[Line], *, labels: str | None = "first"):
        super().__init__(left, top, title, lines, labels=labels)
        self._y = _range([y for line in lines for y in line.points.values()], 10)

    def _up(self, y: float) -> float:
        return (math.log10(y) - self._y[0]) / (self._y[1] - self._y[0])

    def _ticks(self) -> list[tuple[float, str]]:
        return [(10.0**power, f"{10.0**power:g}") for power in range(self._y[0], self._y[1] + 1)]


class LinearPanel(Panel):
    """With a linear axis of values, and room for the bars of errors."""

    def __init__(self, left: float, top: float, title: str, lines: list[Line], *, labels: str | None = "first"):
        super().__init__(left, top, title, lines, labels=labels)
        ends = [y + d * line.errors.get(x, 0.0) for line in lines for x, y in line.points.items() for d in (-1, 1)]
        room = (max(ends) - min(ends)) / 20 or 0.01
        self._y = min(ends) - room, max(ends) + room

    def _up(self, y: float) -> float:
        return (y - self._y[0]) / (self._y[1] - self._y[0])

    def _ticks(self) -> list[tuple[float, str]]:
        step = tick_step(self._y[1] - self._y[0])
        digits = max(0, -math.floor(math.log10(step)))
        return [(i * step, f"{i * step:.{digits}f}") for i in range(math.ceil(self._y[0] / step), math.floor(self._y[1] / step) + 1)]


def tick_step(span: float) -> float:
    """The smallest round step that gives at most eight ticks."""
    power = 10 ** math.floor(math.log10(span / 8))
    return next(step * power for step in _STEPS if span / (step * power) <= 8)


def legend_height(count: int, columns: int) -> float:
    """Of draw_legend with `count` entries."""
    return math.ceil(count / columns) * LEGEND_ROW


def draw_legend(canvas: Canvas, left: float, top: float, entries: list[tuple[str, str]], columns: int) -> None:
    """entries: label and colour of each line."""
    for number, (label, colour) in enumerate(entries):
        x, y = left + number % columns * LEGEND_COLUMN, top + number // columns * LEGEND_ROW
        canvas.path([(x, y - 4), (x + 24, y - 4)], colour, width=2)
        canvas.text(x + 30, y, label)


def draw_cross(canvas: Canvas, x: float, y: float, colour: str) -> None:
    canvas.path([(x - 3, y - 3), (x + 3, y + 3)], colour, width=2)
    canvas.path([(x - 3, y + 3), (x + 3, y - 3)], colour, width=2)


def draw_arrow(canvas: Canvas, x: float, y: float, colour: str) -> None:
    canvas.path([(x - 3, y + 3), (x, y - 4), (x + 3, y + 3), (x - 3, y + 3)], colour, width=1)


def _range(values: list[float], base: int) -> tuple[int, int]:
    """Returns the whole powers of `base` around the values."""
    if not values:
        return 0, 1
    logs = [math.log(value, base) for value in values]
    low = math.floor(min(logs) + 1e-9)
    return low, max(math.ceil(max(logs) - 1e-9), low + 1)
