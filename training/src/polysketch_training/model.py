"""PolySketchFormer as a torch module, for every attention kind that the server serves (docs/attention.md), and for two that it
does not (docs/training.md)."""

import dataclasses

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from polysketch_tools.model_config import ModelConfig
from polysketch_training import angles, layers
from polysketch_training.attention import Attention, Places, block_of
from polysketch_training.state import ModelState

_LOSS_ROWS = 4096  # rows whose logits are in memory at once while the loss is computed


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, generator: np.random.Generator):
        super().__init__()
        self.attn_norm = layers.Norm(config.emb_dim)
        self.attn = Attention(config, generator)
        self.mlp_norm = layers.Norm(config.emb_dim)
        self.mlp = layers.GatedMlp(config)

    def forward(self, x, places: Places, state, want_state: bool):
        out, state = self.attn(self.attn_norm(x), places, state, want_state)
        x = x + out
        return x + self.mlp(self.mlp_norm(x)), state


@dataclasses.dataclass
class Output:
    """logits [B, n, V], or without logits the normed rows [B, n, D] of next_token_loss; the state if it was wanted."""

    rows: torch.Tensor
    logits: torch.Tensor | None
    loss: torch.Tensor | None
    state: ModelState | None


class PolysketchModel(nn.Module):
    """The whole model. Parameters and buffers have the names of the server's tensors.

    With config.decay_gate each layer and head has a gate (`attn.gate`) that lets earlier tokens fade.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0):
        """Draws new weights. The random matrices of the random kinds and of performer depend on `seed` alone; the others
        come from torch's generator."""
        super().__init__()
        config.check()
        self.config = config
        generator = np.random.default_rng(seed)
        self.embedding = nn.Embedding(config.vocab_size, config.emb_dim)
        nn.init.normal_(self.embedding.weight, std=config.emb_dim**-0.5)
        self.layers = nn.ModuleList(Layer(config, generator) for _ in range(config.num_layers))
        self.final_norm = layers.Norm(config.emb_dim)
        self.softmax_bias = nn.Parameter(torch.zeros(config.vocab_size))
        if config.decay_gate:
            self._spread_gates()

    def _spread_gates(self) -> None:
        """Biases from 6 to 12 over all heads: e^6 to e^12 tokens until a weight has faded to 1 / e."""
        spread = torch.linspace(6, 12, self.config.num_layers * self.config.num_heads)
        for layer, biases in zip(self.layers, spread.reshape(self.config.num_layers, -1)):
            layer.attn.gate.bias.data.copy_(biases)

    def use_attention(self, backend: str) -> None:
        """Selects "torch", or "library": the CUDA library in every layer."""
        if backend not in ("torch", "library"):
            raise ValueError(f"attention: expected torch or library, found {backend}")
        for layer in self.layers:
            layer.attn.backend = backend

    def compile_layers(self) -> None:
        """Has TorchInductor compile the layers from their next call on: all but the library's kernels. Sums are rounded at other
        places."""
        for layer in self.layers:
            layer.compile(dynamic=False)

    def forward(
        self,
        tokens: torch.Tensor,
        *,
        state: ModelState | None = None,
        positions: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        want_state: bool = False,
    ) -> Output:
        """Runs tokens [B, n], the continuation of `state` or the start of sequences at `positions` [B] (None: 0).

        All rows start at the same position modulo the block. With targets [B, n] (-100: none) the result has their mean
        loss in nats and no logits. The state that is returned has a history; detach() cuts the gradient.
        """
        starts = self._starts(tokens, state, positions)
        x, places = self._embed(tokens, starts)
        states = []
        for i, layer in enumerate(self.layers):
            x, after = layer(x, places, state.layers[i] if state is not None else None, want_state)
            states.append(after)
        rows = self.final_norm(x)
        following = None
        if want_state:
            start = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device) if starts is None else starts
            following = ModelState(states, start + tokens.shape[1])
        if targets is not None:
            return Output(rows, None, self.next_token_loss(rows, targets), following)
        return Output(rows, self.logits(rows), None, following)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.embedding.weight, self.softmax_bias)

    def next_token_loss(self, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of targets, in float32 at least. The logits of many rows are computed in parts, again in the
        backward pass."""
        rows, targets = rows.flatten(0, 1), targets.flatten()
        count = (targets != -100).sum().clamp(min=1)
        if len(rows) <= _LOSS_ROWS:
            return self._summed_loss(rows, targets) / count
        parts = zip(rows.split(_LOSS_ROWS), targets.split(_LOSS_ROWS))
        return sum(checkpoint(self._summed_loss, *part, use_reentrant=False) for part in parts) / count

    def _summed_loss(self, rows, targets):
        logits = self.logits(rows)
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        return functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")

    def _starts(self, tokens, state, positions):
        """Returns the first position of each row [B], or None if all are 0."""
        if state is not None:
            if positions is not None:
                raise ValueError("expected a state or positions: a state has positions of its own")
            if len(state.positions) != len(tokens):
                raise ValueError(f"state: expected {len(tokens)} rows, found {len(state.positions)}")
            return state.positions
        if positions is not None and positions.shape != (len(tokens),):
            raise ValueError(f"positions: expected shape [{len(tokens)}], found {list(positions.shape)}")
        return positions

    def _embed(self, tokens, starts):
        buffered, count = 0, torch.arange(tokens.shape[1], device=tokens.device)[None]
        if starts is not None:
            count = count + starts[:, None]
            within = starts % block_of(self.config)
            if self.config.is_recurrent:
                buffered = int(within[0])
                if not bool((within == buffered).all()):
                    raise ValueError("positions: expected the same position within the block in all rows")
        dtype = self.embedding.weight.dtype
        x = self.embedding(tokens)
        if self.config.sinusoidal_positions:
            x = x + angles.sinusoids(count, self.config.emb_dim, dtype)
        cos, sin = (part[:, None] for part in angles.cos_sin(count, self.config.head_dim // 2, dtype))
        return x, Places(cos, sin, buffered)
