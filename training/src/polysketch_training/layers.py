"""The parts of a layer. Parameters have the names of the server's tensors (docs/model-format.md).

Matrices are torch.nn.Linear, whose weight is [out, in]: LoRA, quantisation and sharding know it. The server's are
[in, out]; server_tensors.py transposes.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polysketch_tools import sketches
from polysketch_tools.model_config import SKETCH_EXPANSION, SKETCH_LEVELS, ModelConfig

EPSILON = 1e-5


class Norm(nn.Module):
    """LayerNorm whose parameters are called scale and bias, as in the checkpoints."""

    def __init__(self, size: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return functional.layer_norm(x, self.scale.shape, self.scale.to(x.dtype), self.bias.to(x.dtype), EPSILON)


def matrix(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias, its entries normal with variance 1 / inputs as Flax's Dense draws them."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=inputs**-0.5)
    return linear


class SketchLevel(nn.Module):
    def __init__(self, inputs: int, sketch_size: int):
        super().__init__()
        self.norm = Norm(inputs)
        self.up = matrix(inputs, SKETCH_EXPANSION * sketch_size)
        self.down = matrix(SKETCH_EXPANSION * sketch_size, sketch_size)

    def forward(self, x):
        return self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))


class LearnedSketch(nn.Module):
    """g: [..., d] to [..., r], shared by heads and by queries and keys."""

    def __init__(self, head_dim: int, sketch_size: int):
        super().__init__()
        self.sketch_size = sketch_size
        sizes = [head_dim] + [sketch_size] * (SKETCH_LEVELS - 1)

        def branch():
            return nn.ModuleDict({f"level{i}": SketchLevel(size, sketch_size) for i, size in enumerate(sizes)})

        self.branch1, self.branch2 = branch(), branch()

    def forward(self, x):
        first = second = x
        for i in range(SKETCH_LEVELS):
            first, second = self.branch1[f"level{i}"](first), self.branch2[f"level{i}"](second)
        root = math.sqrt(self.sketch_size)
        return root * torch.tanh(first * second / root)


class RandomSketch(nn.Module):
    """f: [..., d] to [..., r] of degree power / 2. Its matrices are buffers: drawn once, never trained."""

    def __init__(self, config: ModelConfig, generator: np.random.Generator):
        super().__init__()
        count, size, level = config.power // 2, config.head_dim, 0
        while count > 1:
            shape = (count, size, config.sketch_size)
            drawn = sketches.draw_level(generator, config.sketch_kind, config.power // 2, shape)
            self.register_buffer(f"level{level}", torch.from_numpy(np.ascontiguousarray(drawn)))
            count, size, level = count // 2, config.sketch_size, level + 1

    def forward(self, x):
        parts = None
        for matrices in self.buffers():
            matrices = matrices.to(x.dtype)
            parts = [x @ m for m in matrices] if parts is None else [part @ m for part, m in zip(parts, matrices)]
            parts = [left * right for left, right in zip(parts[0::2], parts[1::2])]
        return parts[0]


def linear_features(x):
    """phi of `linear`: elu(x) + 1."""
    return functional.elu(x) + 1


def performer_features(x, omega):
    """phi of `performer`: exp(x' Omega^T - |x'|^2 / 2) / sqrt(m), x' = x / d^(1/4)."""
    scaled = x * x.shape[-1] ** -0.25
    exponents = scaled @ omega.T.to(x.dtype) - scaled.square().sum(-1, keepdim=True) / 2
    return exponents.exp() * len(omega) ** -0.5


def polynomial(x, coefficients):
    """P(x) = sum_i a_i x^i of x [B, H, n, m] by Horner's rule. coefficients: a_0 to a_p [p + 1], or of each head [H, .]."""
    value = torch.zeros_like(x)
    for a in coefficients.to(x.dtype).unbind(-1)[::-1]:
        value = value * x + a.reshape(-1, 1, 1)
    return value


def affine_rows(q, k, coefficients, alpha: float, beta: float):
    """Returns [c, f q] and [1, k] of q, k [B, H, n, d], whose dot products are a_0 + a_1 (q.k + alpha) / beta."""
    constant, slope = (a.reshape(-1, 1, 1) for a in coefficients.to(q.dtype).unbind(-1))
    factor = slope / beta
    ones = q.new_ones(*q.shape[:-1], 1)
    return torch.cat([(constant + factor * alpha) * ones, factor * q], dim=-1), torch.cat([ones, k], dim=-1)


class GatedMlp(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = matrix(config.emb_dim, 2 * config.mlp_hidden)
        self.down = matrix(config.mlp_hidden, config.emb_dim)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * functional.gelu(gate, approximate="tanh"))
