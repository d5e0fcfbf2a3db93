"""What bench/figures measures: shapes of models, attention kinds, contexts, and the jobs in their order."""

import dataclasses
from collections.abc import Iterator

from polysketch_tools.make_random import PRESETS
from polysketch_tools.model_config import ATTENTION_KINDS, UNSERVED_KINDS, ModelConfig, used_fields

KINDS = ATTENTION_KINDS + UNSERVED_KINDS
SERVED, TRAINED = ("prefill", "decode"), ("forward", "forward_backward")
MEASURES = {
    "prefill": "prefill",
    "decode": "decode",
    "forward": "training, forward",
    "forward_backward": "training, forward and backward",
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """config: without the fields of some kinds, which are in of_kinds. constant_contexts: of the recurrent kinds, served."""

    name: str
    title: str
    config: ModelConfig
    of_kinds: dict
    contexts: tuple[int, ...]
    constant_contexts: tuple[int, ...] = ()

    def config_of(self, kind: str) -> ModelConfig:
        used = {name: self.of_kinds[name] for name in used_fields(kind)}
        config = dataclasses.replace(self.config, attention=kind, **used)
        config.check()
        return config


@dataclasses.dataclass(frozen=True)
class Job:
    """What one child process measures."""

    shape: Shape
    kind: str
    context: int
    measures: tuple[str, ...]

    def point(self, measure: str) -> dict:
        """Returns what names a point of this job in figures.json."""
        return {"shape": self.shape.name, "attention": self.kind, "measure": measure, "context": self.context}


_PAPER = PRESETS["paper-110m"]
_PAPER_KINDS = {
    "grain_size": _PAPER.grain_size,
    "near_power": 4,
    "power": 4,
    "sketch_size": _PAPER.sketch_size,
    "sketch_kind": "gaussian",
    "num_features": 256,
    "projected_rows": 32,
}


def _paper(name: str, title: str, layers: int, contexts, constant_contexts) -> Shape:
    config = dataclasses.replace(_PAPER, attention="softmax", num_layers=layers, near_power=None, sketch_size=None)
    return Shape(name, title, config, _PAPER_KINDS, contexts, constant_contexts)


def _quick(name: str, title: str, layers: int, contexts, constant_contexts) -> Shape:
    config = ModelConfig(
        attention="softmax", vocab_size=256, emb_dim=64, num_heads=2, num_layers=layers, context_length=512, grain_size=32
    )
    small = {"grain_size": 32, "sketch_size": 16, "num_features": 32, "projected_rows": 8}
    return Shape(name, title, config, _PAPER_KINDS | small, contexts, constant_contexts)


SHAPES = (
    _paper("110m", "12 layers, width 768", 12, tuple(512 << i for i in range(8)), (1 << 20,)),
    _paper("4-layers", "4 layers, width 768, 32k tokens", 4, (32768,), ()),
)


def _blocks(block: int) -> Shape:
    shape = _paper(f"blocks-{block}", f"4 layers, width 768, 8,192 tokens, blocks of {block}", 4, (8192,), ())
    config = dataclasses.replace(shape.config, grain_size=block)
    return dataclasses.replace(shape, config=config, of_kinds=_PAPER_KINDS | {"grain_size": block})


# Blocks of one token are a running sum.
BLOCK_SHAPES = tuple(_blocks(block) for block in (1, 4, 16, 64, 256, 1024))
QUICK_SHAPES = (
    _quick("quick", "2 layers, width 64", 2, (64, 256), (1024,)),
    _quick("quick-4-layers", "4 layers, width 64, 256 tokens", 4, (256,), ()),
)


def jobs(shapes, kinds, measures=tuple(MEASURES)) -> Iterator[Job]:
    """Short contexts first: a kind that reaches a limit is not measured at longer ones."""
    served, trained = (tuple(measure for measure in group if measure in measures) for group in (SERVED, TRAINED))
    for shape in shapes:
        for context in (*shape.contexts, *shape.constant_contexts):
            for kind in kinds:
                config, longest = shape.config_of(kind), context in shape.constant_contexts
                if served and config.is_served and (config.is_recurrent or not longest):
                    yield Job(shape, kind, context, served)
                if trained and not longest:
                    yield Job(shape, kind, context, trained)
