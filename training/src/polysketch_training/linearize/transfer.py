"""Attention transfer: the far part of each layer learns, beside window and sinks, what the layer's full attention puts out."""

import dataclasses
import pathlib
from collections.abc import Callable

import safetensors.torch
import torch

from polysketch_training.disk import writing
from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.distillation import Plan, Recipe
from polysketch_training.linearize.far import FarPart, FarShape
from polysketch_training.linearize.measurements import Measurements
from polysketch_training.linearize.samples import Sample, mean
from polysketch_training.linearize.training import Group, Training


@dataclasses.dataclass(frozen=True)
class FarRecipe:
    kind: str
    size: int
    length: int
    steps: int
    learning_rate: float
    decay_gate: bool = False

    @property
    def shape(self) -> FarShape:
        return FarShape(self.kind, self.size, self.length, self.decay_gate)


Attend = Callable[[FarPart | None], torch.Tensor]

_RESULT = "far.safetensors"
_FIRST_LOG_SCALES = (-12.0, -10.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0)
_SCALE_RATE, _NETWORK_RATE = 3, 0.2  # of the logarithms of scales, and of networks of sketches, times that of the maps


class Transfer(Training):
    """decoder: the teacher, of whose layers those of decoder.far learn, each from the teacher's own input of it."""

    unit = "of the squared output"
    rate_option = "--far-learning-rate"

    def __init__(self, decoder: Decoder, plan: Plan, far: FarRecipe, recipe: Recipe, folder: pathlib.Path):
        self._decoder, self._plan, self._folder_of_result = decoder, plan, folder
        groups = []
        for i, part in decoder.far.items():
            part.begin(torch.Generator().manual_seed(1000 * recipe.seed + i))
            part.requires_grad_()
            weights = {f"{i}.{name}": weight for name, weight in part.named_parameters()}
            scale = {name: weights.pop(name) for name in list(weights) if name.endswith("log_scale")}
            network = {name: weights.pop(name) for name in list(weights) if ".network." in name}
            groups += [Group(weights, far.learning_rate), Group(scale, _SCALE_RATE * far.learning_rate)]
            if network:
                groups.append(Group(network, _NETWORK_RATE * far.learning_rate))
        super().__init__(groups, folder, decoder.device, recipe.steps, recipe.tokens, recipe.precision)
        if self.done == 0:
            self._choose_scales()

    def _choose_scales(self) -> None:
        """Each query head begins with the scale that brings its output nearest to the teacher's on the first sequence: where a far part
        adds little, training would not shrink a common one in time."""
        first = self._decoder.window.most

        def see(i: int, attend: Attend, teacher: torch.Tensor) -> None:
            part, errors = self._decoder.far[i], []
            for scale in _FIRST_LOG_SCALES:
                part.log_scale.fill_(scale)
                errors.append((attend(part) - teacher)[:, :, first:].square().sum((0, 2, 3)))
            part.log_scale.copy_(part.log_scale.new_tensor(_FIRST_LOG_SCALES)[torch.stack(errors).argmin(0)])

        _, ids = self._plan.sequences(0)[0]
        visit(self._decoder, ids, see)

    def gradients(self, step: int) -> float:
        """Returns the mean of the layers' errors."""
        sequences, total = self._plan.sequences(step), 0.0

        def learn(i: int, error: torch.Tensor) -> None:
            nonlocal total
            (error / len(sequences)).backward()
            total += error.item() / len(sequences)

        for _, ids in sequences:
            observed(self._decoder, ids, learn)
        return total / len(self._decoder.far)

    def finish(self, samples: list[Sample]) -> None:
        """Measures the layers on the samples of text, and writes the far parts."""
        decoder, found = self._decoder, Measurements(self._folder_of_result / "measurements.jsonl")
        texts = [sample for sample in samples if sample.prompt is None]
        for part in decoder.far.values():
            part.requires_grad_(False)
        for sample in texts:
            if found.has(sample.name):
                continue
            values = {}
            for name, far in (("window", False), ("far", True)):
                of_layers = values[name] = {}
                observed(decoder, sample.ids, lambda i, error, of_layers=of_layers: of_layers.update({i: error.item()}), far=far)
            found.add(sample.name, **values)
        found.close()
        weights = {f"{i}.{name}": weight for i, part in decoder.far.items() for name, weight in part.named_parameters()}
        write_tensors(self._folder_of_result / _RESULT, weights)


def write_tensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    temporary = path.with_suffix(".tmp")
    with writing(path):
        safetensors.torch.save_file({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}, temporary)
        temporary.replace(path)


def load_far(decoder: Decoder, recipe: FarRecipe, layers: list[int], folder: pathlib.Path) -> None:
    """Gives the layers the far parts that attention transfer ended with."""
    decoder.add_far(recipe.shape, layers)
    tensors = safetensors.torch.load_file(folder / _RESULT)
    for i, part in decoder.far.items():
        part.load_state_dict({name: tensors[f"{i}.{name}"] for name, _ in part.named_parameters()})


def errors_of(folder: pathlib.Path, samples: list[Sample]) -> dict[int, dict]:
    """Means over the samples of text, by layer: the error without (window) and with the far part (far)."""
    found = Measurements(folder / "measurements.jsonl")
    rows = [found.get(sample.name) for sample in samples if sample.prompt is None]
    found.close()
    layers = [int(i) for i in rows[0]["far"]]
    return {i: mean([{name: values[str(i)] for name, values in row.items()} for row in rows]) for i in layers}


def helped(errors: dict[int, dict]) -> list[int]:
    """The layers whose far part lowers the error. The others do without: what it adds there is noise."""
    return [i for i, error in errors.items() if error["far"] < error["window"]]


def observed(decoder: Decoder, ids, use, *, far: bool = True) -> None:
    """Calls use(layer, error) in each layer with a far part: the squared error of the output, after Wo, of window and sinks, and with `far`
    the far part, as a share of the squares of what full attention puts out there. Of the tokens that have a far part."""
    first = decoder.window.most

    def see(i: int, attend: Attend, teacher: torch.Tensor) -> None:
        part, project = decoder.far[i], decoder.inner.layers[i].self_attn.o_proj.weight
        with torch.set_grad_enabled(any(p.requires_grad for p in part.parameters())):
            lost = attend(part if far else None) - teacher
            target, lost = (torch.nn.functional.linear(x.transpose(1, 2).flatten(2)[:, first:], project).float() for x in (teacher, lost))
            use(i, lost.square().sum() / target.square().sum())

    visit(decoder, ids, see)


def visit(decoder: Decoder, ids, see: Callable[[int, Attend, torch.Tensor], None]) -> None:
    """Runs the teacher, and calls see(layer, attend, teacher) in each layer with a far part: attend(far) is what window, sinks and this far
    part put out where full attention puts out `teacher` [1, H, n, d]."""
    decoder.set_windows([])

    def observer(i: int):
        def observe(module, q, k, v, scale: float, teacher: torch.Tensor) -> None:
            see(i, lambda far: decoder.seen[i].attend(q, k, v, scale, decoder.window, far), teacher)

        return observe

    try:
        for i in decoder.far:
            decoder.seen[i].observer = observer(i)
        with torch.no_grad():
            decoder.run(decoder.embed(ids))
    finally:
        for seen in decoder.seen:
            seen.observer = None
