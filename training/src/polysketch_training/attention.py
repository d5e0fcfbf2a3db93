"""The attention of a layer, of every kind: those that the server serves, and linformer and hyperattention."""

import dataclasses

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polysketch_tools import sketches
from polysketch_tools.model_config import KV_KINDS, ModelConfig
from polysketch_training import angles, cuda_attention, cuda_sketch, hyper_rectangle, layers
from polysketch_training.block_attention import Rows, Weights, block_attention, integer_power
from polysketch_training.cache_attention import cache_attention
from polysketch_training.hyper_attention import hyper_attention
from polysketch_training.linformer_attention import linformer_attention
from polysketch_training.state import FoldedState

LIBRARY_KINDS = (
    "polynomial",
    "random_sketch",
    "learned_sketch",
    "learned_sketch_mixed",
    "random_sketch_mixed",
    "symmetric_power",
    "affine_square",
    "linear",
    "performer",
)
_DEFAULT_BLOCK = 256  # of a config without grain_size: only a speed choice there


def block_of(config: ModelConfig) -> int:
    return config.grain_size or _DEFAULT_BLOCK


@dataclasses.dataclass
class Places:
    """What all layers need to know of the positions of a chunk."""

    cos: torch.Tensor  # of RoPE, [B or 1, 1, n, d / 2]
    sin: torch.Tensor
    buffered: int  # the first position modulo the block


class Attention(nn.Module):
    """Attention with its projections. `backend`: "torch", or "library" (libpolysketch-attention.so)."""

    def __init__(self, config: ModelConfig, generator: np.random.Generator):
        super().__init__()
        self.config, self.backend = config, "torch"
        d = config.head_dim
        self.qkv = layers.matrix(config.emb_dim, 3 * config.emb_dim)
        if config.has_qk_norm:
            self.qk_norm = layers.Norm(d)
        if config.is_mixed:
            self.near_q_norm, self.near_k_norm = layers.Norm(d), layers.Norm(d)
        if config.is_learned:
            self.sketch = layers.LearnedSketch(d, config.sketch_size)
        if config.is_random:
            self.sketch = layers.RandomSketch(config, generator)
        if config.has_coefficients:
            ones = torch.ones(config.coefficients_shape)  # 1 + x + ... + x^p
            if config.learned_coefficients is False:
                self.register_buffer("coefficients", ones)
            else:
                self.coefficients = nn.Parameter(ones)
        if config.attention == "performer":
            omega = sketches.draw_performer_features(generator, (config.num_features, d))
            self.register_buffer("omega", torch.from_numpy(omega))
        if config.attention == "linformer":
            self.project_k = layers.matrix(config.grain_size, config.projected_rows)
            self.project_v = layers.matrix(config.grain_size, config.projected_rows)
        if config.attention == "hyperattention":
            directions = generator.standard_normal((d, hyper_rectangle.HASH_BITS), np.float32)
            self.register_buffer("directions", torch.from_numpy(directions))
        if config.decay_gate:
            self.gate = nn.Linear(config.emb_dim, config.num_heads)
            nn.init.zeros_(self.gate.weight)
        self.out = layers.matrix(config.emb_dim, config.emb_dim)

    def forward(self, x, places: Places, state=None, want_state: bool = False):
        """Returns the output [B, n, D] for the normed input x [B, n, D], and the state after it or None."""
        batch, tokens, width = x.shape
        heads = self.config.num_heads
        qkv = self.qkv(x).reshape(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        qk, v = angles.rotate(qkv[:2], places.cos, places.sin), qkv[2]
        log_decay = self._log_decay(x) if self.config.decay_gate else None
        out, state = self._attend(qk, v, log_decay, places, state, want_state)
        return self.out(out.transpose(1, 2).reshape(batch, tokens, width)), state

    def _log_decay(self, x):
        """Returns the log decays [B, H, n]. Not in 16 bits: bfloat16 has steps of 1/16 at 12, where slow gates are."""
        with torch.autocast(x.device.type, enabled=False):
            gate = self.gate(x.to(self.gate.weight.dtype))
            return functional.logsigmoid(gate).transpose(1, 2)

    def _attend(self, qk, v, log_decay, places, state, want_state):
        """qk: rotated queries and keys, [2, B, H, n, d]."""
        if self.backend == "library":
            if state is not None or want_state or places.buffered:
                return self._library_chunk(qk, v, log_decay, places.buffered, state, want_state)
            return self._library(qk, v, log_decay), None
        if not self.config.is_served:
            return self._unserved(*qk, v, state is not None or want_state), None
        if self.config.attention in KV_KINDS:
            q, k = self.qk_norm(qk) if self.config.has_qk_norm else qk
            return cache_attention(q, k, v, weigh=self._weigh_products(), state=state, want_state=want_state)
        rows = self._rows(qk, v, log_decay)
        return block_attention(rows, self.weights(), state, buffered=places.buffered, want_state=want_state)

    def _weigh_products(self):
        """Returns how this KV kind makes weights of dot products; None: softmax."""
        if self.config.attention == "polynomial":
            return lambda products: integer_power(products, self.config.power)
        if self.config.attention == "polynomial_square":
            alpha, beta = self.config.polynomial_alpha, self.config.polynomial_beta
            return lambda products: layers.polynomial((products + alpha) / beta, self.coefficients).square()
        assert self.config.attention == "softmax", self.config.attention
        return None

    def _unserved(self, q, k, v, stateful: bool):
        if stateful:
            raise ValueError(f"{self.config.attention}: expected whole sequences, found a chunk with a state")
        if self.config.attention == "linformer":
            return linformer_attention(q, k, v, self.project_k.weight, self.project_v.weight)
        return hyper_attention(q, k, v, self.directions)

    def weights(self) -> Weights:
        """Returns how this recurrent kind makes weights of rows."""
        features = self.config.attention in ("linear", "performer")
        return Weights(block=block_of(self.config), stabilizer=1e-6 if features else 1.0, squared=not features)

    def _rows(self, qk, v, log_decay) -> Rows:
        near = {}
        if self.config.is_mixed:
            q, k = qk
            near = {"near_q": self.near_q_norm(q).to(v.dtype), "near_k": self.near_k_norm(k).to(v.dtype)}
        far_q, far_k = (x.to(v.dtype) for x in self._far(qk))
        return Rows(far_q=far_q, far_k=far_k, v=v, log_decay=log_decay, **near)

    def _far(self, qk):
        """Returns the far rows of queries and of keys."""
        kind = self.config.attention
        if kind == "linear":
            return layers.linear_features(qk)
        if kind == "performer":
            return layers.performer_features(qk, self.omega)
        if self.config.has_qk_norm:
            qk = self.qk_norm(qk)
        if kind == "symmetric_power":
            return qk
        if kind == "affine_square":
            alpha, beta = self.config.polynomial_alpha, self.config.polynomial_beta
            return layers.affine_rows(*qk, self.coefficients, alpha, beta)
        if self.backend == "library" and self.config.is_learned and cuda_sketch.supports(self.sketch):
            return cuda_sketch.learned_sketch(qk, self.sketch)
        return self.sketch(qk)

    def _library(self, qk, v, log_decay):
        self._check_library_kind(LIBRARY_KINDS)
        if self.config.attention == "polynomial":
            near_q, near_k = self.qk_norm(qk)
            return cuda_attention.polysketch_attention(v, near_q=near_q, near_k=near_k, near_power=self.config.power)
        return cuda_attention.polysketch_attention(v, log_decay=log_decay, **self._library_rows(qk, v))

    def _library_chunk(self, qk, v, log_decay, buffered: int, state: FoldedState | None, want_state: bool):
        """The library's states are those of full blocks: the block buffers of `state` and of the state that follows are empty."""
        self._check_library_kind([kind for kind in LIBRARY_KINDS if kind not in KV_KINDS])
        if buffered:
            raise ValueError(f"the library's attention: expected a chunk that starts with a block, found {buffered} tokens before it")
        sums = None if state is None else (state.sums, state.normalizer)
        rows = self._library_rows(qk, v)
        out, sums = cuda_attention.chunk_attention(v, log_decay=log_decay, sums=sums, want_sums=want_state, **rows)
        if not want_state:
            return out, None
        empty = {name: None if rows[name] is None else rows[name][:, :, :0] for name in ("near_k", "far_k")}
        no_decay = None if log_decay is None else log_decay[:, :, :0]
        return out, FoldedState(*sums, v=v[:, :, :0], log_decay=no_decay, **empty)

    def _check_library_kind(self, kinds) -> None:
        if self.config.attention not in kinds:
            raise ValueError(f"the library's attention: expected one of {', '.join(kinds)}; found {self.config.attention}")

    def _library_rows(self, qk, v) -> dict:
        rows = self._rows(qk, v, None)
        return {
            "near_q": rows.near_q,
            "near_k": rows.near_k,
            "far_q": rows.far_q,
            "far_k": rows.far_k,
            "block": block_of(self.config),
            "near_power": 4 if self.config.is_mixed else 2,
            "far_power": 2 if self.weights().squared else 1,
            "stabilizer": self.weights().stabilizer,
        }
