"""Where the two parts of a mixed kind begin: the scale of the near part's weights, and of the far part's.

With scales of 1 the weights of normal rows of d elements are 3 d^2 near (12,288 for 64) and of the order of 1 far, if sketches are
learned: the state then has hardly any weight, and hardly any gradient.
"""

import torch

from polysketch_tools.errors import ToolError
from polysketch_training.attention import Attention
from polysketch_training.model import PolysketchModel

_ROWS = 1024  # of queries and of keys
_ROUNDS = 30
_TOLERANCE = 0.01


@torch.no_grad()
def set_initial_scales(model: PolysketchModel, near_scale: float, balance_parts: bool) -> None:
    """Sets the scales of the near norms, and if `balance_parts` that of the far part, so that both parts have the same mean weight
    for normal rows: at the end of a block, a query meets as many tokens of the block before it with the same weight."""
    for layer in model.layers:
        attention = layer.attn
        for norm in (attention.near_q_norm, attention.near_k_norm):
            norm.scale.fill_(near_scale)
        if balance_parts:
            _balance(attention)


@torch.no_grad()
def mean_weights(attention: Attention, seed: int = 0) -> tuple[float, float]:
    """The mean weights of the near and of the far part for normal rows."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, _ROWS, attention.config.head_dim, generator=generator)
    near = attention.near_q_norm(q) @ attention.near_k_norm(k).T
    if attention.config.has_qk_norm:
        q, k = attention.qk_norm(q), attention.qk_norm(k)
    far = attention.sketch(q) @ attention.sketch(k).T
    return float(near.pow(attention.config.near_power).mean()), float(far.square().mean())


def _balance(attention: Attention) -> None:
    # A learned sketch is a product of two branches within tanh, so the scale of one branch is its own until tanh bends: hence rounds.
    # The weight has degree 4 in a learned sketch, and `power` in each row of a random one.
    learned = attention.config.is_learned
    scaled = attention.sketch.branch1["level1"].down.weight if learned else attention.qk_norm.scale
    degree = 4 if learned else 2 * attention.config.power
    for _ in range(_ROUNDS):
        near, far = mean_weights(attention)
        if abs(far / near - 1) < _TOLERANCE:
            return
        scaled.mul_((near / far) ** (1 / degree))
    raise ToolError(f"--balance-parts: expected a mean near weight that a sketch of {attention.config.sketch_size} columns reaches,"
                    f" found {near:.3g}, of which it reaches {far:.3g}; use a --near-scale below 1")  # fmt: skip
