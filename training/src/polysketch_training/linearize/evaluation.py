"""The teacher, with scaled RoPE too, the teacher with windows in the layers that are not full, and the models as they were written, on text
and prompts that training and the choice of layers did not see."""

import pathlib

import numpy as np
import torch

from polysketch_training.disk import writing
from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.measurements import Measurements
from polysketch_training.linearize.samples import Sample, mean, score
from polysketch_training.linearize.scores import divergence
from polysketch_training.progress import Bar

TEACHER, SCALED, WINDOWS = "teacher", "teacher, scaled RoPE", "windows, not trained"
CONTROL, LINEARIZED = "control: windows, trained", "linearized"
MODELS = (TEACHER, SCALED, WINDOWS, CONTROL, LINEARIZED)


class Evaluation:
    """trained: the tokens up to which the divergence is one to the teacher. That of longer samples is one to the teacher with scaled
    RoPE."""

    def __init__(self, folder: pathlib.Path, samples: list[Sample], trained: int):
        self._states, self._samples, self._trained = folder / "states", samples, trained
        with writing(self._states):
            self._states.mkdir(parents=True, exist_ok=True)
        self._found = Measurements(folder / "measurements.jsonl")

    def of_teacher(self, decoder: Decoder, windows: list[int], *, scaled: bool) -> None:
        """decoder: the teacher's weights. Its states of text stay on disk for the others. scaled: the student has scaled RoPE."""
        bar = Bar(len(self._samples), unit=" samples")
        for sample in self._samples:
            decoder.set_windows([])
            self._measure(TEACHER, decoder, sample)
            decoder.set_scaled(scaled)
            if scaled:
                self._measure(SCALED, decoder, sample)
            decoder.set_windows(windows, far=False)
            self._measure(WINDOWS, decoder, sample)
            decoder.set_scaled(False)
            bar.add(1, f"evaluation of the teacher, {sample.name}: ")
        bar.close()

    def of_written(self, name: str, decoder: Decoder) -> None:
        bar = Bar(len(self._samples), unit=" measurements")
        for sample in self._samples:
            self._measure(name, decoder, sample)
            bar.add(1, f"evaluation, {name}, {sample.name}: ")
        bar.close()

    def _measure(self, model: str, decoder: Decoder, sample: Sample) -> None:
        file = self._states / f"{sample.name.replace(' ', '-')}.npy"
        if self._found.has(model, sample.name):
            return
        with torch.no_grad():
            hidden = decoder.hidden(sample.ids)
            values = score(decoder, hidden, sample)
            longer = len(sample.ids) > self._trained
            if sample.prompt is None and model == (SCALED if longer else TEACHER):
                temporary = file.with_suffix(".tmp")
                with writing(file), open(temporary, "wb") as out:
                    np.save(out, hidden.cpu().numpy())
                temporary.replace(file)
            elif sample.prompt is None and not (longer and model == TEACHER):
                teacher = torch.from_numpy(np.load(file)).to(hidden.device)
                values["divergence"] = divergence(decoder, hidden, teacher)[0]
        self._found.add(model, sample.name, **values)

    def results(self) -> list[dict]:
        """Rows: model, tokens_of_sample, what ("text" or a kind of prompts), and means of the values."""
        groups = {}
        for sample in self._samples:
            what = "text" if sample.prompt is None else sample.prompt.kind
            groups.setdefault((len(sample.ids), what), []).append(sample)
        return [
            {"model": model, "tokens_of_sample": length, "what": what, "samples": len(samples)}
            | mean([self._found.get(model, sample.name) for sample in samples])
            for (length, what), samples in groups.items()
            for model in MODELS
            if all(self._found.has(model, sample.name) for sample in samples)
        ]
