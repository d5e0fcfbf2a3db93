"""Which layers need all earlier tokens: loss and recall when one layer alone has a window and sinks, and when all but some have."""

import dataclasses

import torch

from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.measurements import Measurements
from polysketch_training.linearize.samples import Sample, mean, score
from polysketch_training.progress import Bar

_FULL = "full"  # of a measurement without windows


def curve_points(layers: int) -> list[int]:
    """Numbers of full layers that are measured: each up to 8, then fewer and fewer of them."""
    points, step = [], 1
    while not points or points[-1] < layers:
        last = points[-1] if points else -1
        step = max(1, last // 4)
        points.append(min(last + step, layers))
    return points


@dataclasses.dataclass
class Sensitivity:
    """full and the entries of layers and curve: means of loss, nats, exact, tokens (samples.score)."""

    full: dict
    layers: list[dict]  # by layer: it alone has the window
    ranking: list[int]  # layers, those that recall needs most first
    curve: dict[int, dict]  # by the number of full layers, the first ones of the ranking

    def full_layers(self, count: int) -> list[int]:
        return sorted(self.ranking[:count])

    def fewest(self, most_lost: float) -> int:
        """The fewest full layers with which an answer costs at most `most_lost` nats more than with all of them full."""
        return min(count for count, values in self.curve.items() if values["nats"] - self.full["nats"] <= most_lost)


class SensitivityStage:
    def __init__(self, decoder: Decoder, samples: list[Sample], measurements: Measurements):
        self._decoder, self._samples, self._found = decoder, samples, measurements

    def run(self) -> Sensitivity:
        layers = self._decoder.count
        points = curve_points(layers)[:-1]  # all full: measured without windows
        bar = Bar(len(self._samples) * (layers + 1 + len(points)), unit=" measurements")
        try:
            with torch.no_grad():
                for sample in self._samples:
                    self._one_layer(sample, bar)
                ranking = self._ranking()
                for sample in self._samples:
                    self._some_full(sample, ranking, points, bar)
        finally:
            bar.close()
        curve = {count: self._mean("full layers", count) for count in points}
        full = self._mean(_FULL)
        return Sensitivity(full, [self._mean("layer", i) for i in range(layers)], ranking, curve | {layers: full})

    def _mean(self, *of) -> dict:
        return mean([self._found.get(*of, sample.name) for sample in self._samples])

    def _one_layer(self, sample: Sample, bar: Bar) -> None:
        """Layers before the one with the window compute what they do without it: they run once."""
        decoder, name = self._decoder, sample.name
        missing = [i for i in range(decoder.count) if not self._found.has("layer", i, name)]
        bar.add(decoder.count - len(missing), f"sensitivity, {name}: ")
        if not missing and self._found.has(_FULL, name):
            bar.add(1, f"sensitivity, {name}: ")
            return
        h = decoder.embed(sample.ids)
        for i in range(decoder.count):
            if i in missing:
                decoder.set_windows([i])
                values = score(decoder, decoder.final(decoder.run(h, i)), sample)
                self._found.add("layer", i, name, **values)
                bar.add(1, f"sensitivity, {name}, layer {i}: ")
            decoder.set_windows([])
            h = decoder.run(h, i, i + 1)
        self._found.add(_FULL, name, **score(decoder, decoder.final(h), sample))
        bar.add(1, f"sensitivity, {name}: ")

    def _ranking(self) -> list[int]:
        found = [self._mean("layer", i) for i in range(self._decoder.count)]
        return sorted(range(len(found)), key=lambda i: (-found[i]["nats"], -found[i]["loss"], i))

    def _some_full(self, sample: Sample, ranking: list[int], points: list[int], bar: Bar) -> None:
        decoder = self._decoder
        for count in points:
            if not self._found.has("full layers", count, sample.name):
                decoder.set_windows(set(range(decoder.count)) - set(ranking[:count]))
                values = score(decoder, decoder.hidden(sample.ids), sample)
                self._found.add("full layers", count, sample.name, **values)
            bar.add(1, f"sensitivity, {sample.name}, {count} full layers: ")
