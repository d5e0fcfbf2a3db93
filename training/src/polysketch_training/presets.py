"""Shapes of models with the recipe that trains them."""

import dataclasses

from polysketch_tools.make_random import PRESETS as PAPER_SHAPES
from polysketch_tools.model_config import ModelConfig


@dataclasses.dataclass(kw_only=True)
class Recipe:
    """How a model is trained. Every field has an option of polysketch-train; a run can only be resumed with the same values."""

    steps: int
    warmup_steps: int
    learning_rate: float  # at the end of the warm-up
    final_learning_rate: float = 0.1  # share of learning_rate at the last step
    batch: int  # rows of a pass in one process
    accumulate: int = 1  # passes of a step
    length: int  # tokens of a row in a pass
    sequences: str = "packed"  # each row starts anew; "streamed": rows go on, with carried states
    stream_chunks: int = 96  # streamed: the mean number of passes until a row starts anew
    max_offset: int = 0  # the highest position at which a row may start
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    clip: float = 1.0  # the largest norm of the gradient
    near_scale: float = 1.0  # mixed kinds: where the scales of the near norms start
    balance_parts: bool = False  # mixed kinds: the far part starts with the mean weight of the near part
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Preset:
    config: ModelConfig
    recipe: Recipe


def _paper(name: str, batch: int, accumulate: int) -> Preset:
    """A shape of the paper with a recipe of ours after the paper's: it has no weight decay, and a schedule, a batch and a length
    of its own, which fill one GPU of 80 GB."""
    length = 8192
    config = dataclasses.replace(PAPER_SHAPES[name], context_length=length)
    recipe = Recipe(
        steps=125_000, warmup_steps=10_000, learning_rate=7e-4, batch=batch, accumulate=accumulate, length=length
    )
    return Preset(config, recipe)


# The shape of models/demo; the same recipe scaled to what two cores train in an hour: a smaller model takes a higher rate.
_DEMO = Preset(
    ModelConfig(
        attention="learned_sketch_mixed",
        vocab_size=4096,
        emb_dim=192,
        num_heads=3,
        num_layers=4,
        context_length=512,
        grain_size=128,
        near_power=4,
        sketch_size=32,
    ),
    Recipe(
        steps=2500,
        warmup_steps=200,
        learning_rate=2e-3,
        batch=8,
        length=512,
        sequences="streamed",
        max_offset=1 << 18,
    ),
)

PRESETS = {
    "demo": _DEMO,
    "paper-110m": _paper("paper-110m", 8, 8),
    "paper-730m": _paper("paper-730m", 2, 32),
}
