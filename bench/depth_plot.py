"""The figure of bench/plot for polysketch score --by-depth --json: loss by depth.

One panel for nats a token, deep (solid) and from fresh starts (dashed), one for their difference; a colour for each file, whose
name is its label. Bars are standard errors. A point lies at the middle of its bucket on the logarithmic axis of depth."""

import html
import json
import math
import pathlib

from chart import COLOURS, GAP, HEIGHT, WIDTH, tokens

MARGIN = 64
STEPS = (1, 2, 5, 10)  # of the ticks, times a power of ten


def points(result: dict, column: str) -> list[tuple[float, float, float]]:
    """The depth, the mean and the standard error (0: unknown) of each bucket."""
    return [
        (
            math.sqrt(max(bucket["begin"], 1) * bucket["end"]),
            bucket[column]["mean"],
            bucket[column]["standard_error"] or 0.0,
        )
        for bucket in result["buckets"]
    ]


class Panel:
    """lines: (label, colour, dashed, points)."""

    def __init__(self, left: float, title: str, lines: list[tuple]):
        self._left, self._title, self._lines = left, title, lines
        everything = [point for *_, line in lines for point in line]
        depths = [math.log2(x) for x, _, _ in everything]
        self._x = math.floor(min(depths)), max(math.ceil(max(depths)), math.floor(min(depths)) + 1)
        low = min(y - error for _, y, error in everything)
        high = max(y + error for _, y, error in everything)
        room = (high - low) / 20 or 0.01
        self._y = low - room, high + room

    def svg(self) -> list[str]:
        out = [
            f'<text x="{self._left}" y="{MARGIN - 14}" font-weight="bold">{self._title}</text>',
            f'<rect x="{self._left}" y="{MARGIN}" width="{WIDTH}" height="{HEIGHT}" class="frame"/>',
            *self._ticks(),
        ]
        for line in self._lines:
            out += self._line(*line)
        return out

    def _at(self, depth: float, nats: float) -> tuple[float, float]:
        across = (math.log2(depth) - self._x[0]) / (self._x[1] - self._x[0])
        up = (nats - self._y[0]) / (self._y[1] - self._y[0])
        return self._left + across * WIDTH, MARGIN + (1 - up) * HEIGHT

    def _ticks(self) -> list[str]:
        out = []
        step = tick_step(self._y[1] - self._y[0])
        digits = max(0, -math.floor(math.log10(step)))
        for i in range(math.ceil(self._y[0] / step), math.floor(self._y[1] / step) + 1):
            x, y = self._at(2 ** self._x[0], i * step)
            out.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            out.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:.{digits}f}</text>')
        for power in range(self._x[0], self._x[1] + 1, 2):
            x, y = self._at(2**power, self._y[0])
            out.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{tokens(2**power)}</text>')
        return out

    def _line(self, label: str, colour: str, dashed: bool, line: list[tuple]) -> list[str]:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join("{:.1f},{:.1f}".format(*self._at(x, y)) for x, y, _ in line)
        out = [f'<polyline points="{path}" fill="none" stroke-width="2" stroke="{colour}"{dash}/>']
        for x, y, error in line:
            (px, top), (_, bottom), (_, middle) = (self._at(x, y + d) for d in (error, -error, 0))
            out.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}"/>')
            out.append(f'<circle cx="{px:.1f}" cy="{middle:.1f}" r="3" fill="{colour}"/>')
        x, y = self._at(*line[-1][:2])
        out.append(f'<text x="{x - 6:.1f}" y="{y - 8:.1f}" text-anchor="end" fill="{colour}">{html.escape(label)}</text>')
        return out


def tick_step(span: float) -> float:
    """The smallest round step that gives at most eight ticks."""
    power = 10 ** math.floor(math.log10(span / 8))
    return next(step * power for step in STEPS if span / (step * power) <= 8)


def svg(files: list[pathlib.Path]) -> str:
    """The figure. ValueError: a file has no bucket."""
    losses, differences, starts = [], [], set()
    for i, file in enumerate(files):
        result, colour = json.loads(file.read_text()), COLOURS[i % len(COLOURS)]
        if not result.get("buckets"):
            raise ValueError(f"{file}: expected buckets of polysketch score --by-depth --json, found none")
        starts.add(f"{result['warm_up'] + 1} to {result['window']}")
        losses.append((file.stem, colour, False, points(result, "deep")))
        losses.append((f"{file.stem}, fresh start", colour, True, points(result, "fresh")))
        differences.append((file.stem, colour, False, points(result, "difference")))
    body = Panel(MARGIN, "nats a token by depth", losses).svg()
    body += Panel(2 * MARGIN + WIDTH + GAP, "deep minus fresh start", differences).svg()
    width, height = 2 * WIDTH + 3 * MARGIN + GAP, HEIGHT + 2 * MARGIN + 20
    about = f"Fresh start: {', '.join(sorted(starts))} tokens before the token. Bars: standard errors of block means."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12"'
        ' font-family="sans-serif"><style>.frame{fill:none;stroke:#999}.grid{stroke:#ddd}</style>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        + "\n".join(body)
        + f'<text x="{MARGIN}" y="{height - 14}" fill="#444">{about}</text></svg>\n'
    )
