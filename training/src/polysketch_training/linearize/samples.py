"""What losses and recall are measured on: stretches of held-out text, and prompts of each held-out form."""

import dataclasses

import numpy as np

from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.scores import recall, text_loss
from polysketch_training.linearize.tasks import FORMS, Prompt, prompt


@dataclasses.dataclass
class Sample:
    name: str
    ids: np.ndarray  # int32
    prompt: Prompt | None  # None: text


def make_samples(tokenizer, text: np.ndarray, length: int, *, texts: int, prompts: int, seed: int, prefix: list[int]) -> list[Sample]:
    """`texts` stretches at even distances, and `prompts` prompts whose forms take turns, all of `length` tokens."""
    room, result = length - len(prefix), []
    for i in range(texts):
        start = (len(text) - room) * i // max(texts - 1, 1)
        ids = np.concatenate([np.array(prefix, np.int32), text[start : start + room]])
        result.append(Sample(f"text {length} {i}", ids, None))
    kinds = list(FORMS)
    for i in range(prompts):
        made = prompt(tokenizer, text, kinds[i % len(kinds)], length, seed + i, prefix)
        result.append(Sample(f"{made.kind} {length} {i}", made.ids, made))
    return result


def score(decoder: Decoder, hidden, sample: Sample) -> dict:
    """The values of a measurement."""
    if sample.prompt is None:
        return {"loss": text_loss(decoder, hidden, sample.ids)}
    return dataclasses.asdict(recall(decoder, hidden, sample.prompt))


def mean(values: list[dict]) -> dict:
    """The mean of each value over the measurements that have it."""
    names = sorted({name for one in values for name in one})
    result = {}
    for name in names:
        having = [one[name] for one in values if name in one]
        result[name] = sum(having) / len(having)
    return result
