"""Far parts: what a layer with a window keeps of the tokens that have left it, by affine maps of queries and keys or of sketches of them: as
squares of products of the maps, or as products of positive features, elu + 1. A decay gate makes them forget."""

import dataclasses
import math
import pathlib

import torch
import torch.nn.functional as F

from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import SKETCH_EXPANSION, SKETCH_LEVELS
from polysketch_training.block_attention import num_features
from polysketch_training.layers import LearnedSketch
from polysketch_training.linearize.windows import Far

AFFINE_SQUARE, LINEAR, LEARNED_SKETCH = KINDS = "affine_square", "linear", "learned_sketch"  # attention_far_kind of config.json
_FIRST_BIAS = 0.3
_FIRST_GATE_BIAS = 8.0  # a state keeps 1 - 1 / 3,000 of itself at a token


@dataclasses.dataclass(frozen=True)
class FarShape:
    kind: str  # of KINDS
    size: int  # r
    length: int  # T0: the weights of token t are multiplied by min(1, T0 / t)
    decay_gate: bool = False

    @property
    def squared(self) -> bool:
        return self.kind != LINEAR

    @property
    def features(self) -> int:
        """Of a token while the tool computes."""
        return self.size**2 if self.squared else self.size

    def network_weights(self, d: int) -> int:
        """Elements of the network's matrices, for heads of d."""
        inputs = d + (SKETCH_LEVELS - 1) * self.size
        outputs = SKETCH_LEVELS * self.size
        return 2 * SKETCH_EXPANSION * self.size * (inputs + outputs) if self.kind == LEARNED_SKETCH else 0


class FarPart(torch.nn.Module):
    """That of a layer of `width` channels. The maps are of q and k before RoPE, or of their sketches, for each query head and each kv
    head; the network of sketches is one for all of them. The gate is of the layer's input, for each kv head."""

    def __init__(self, shape: FarShape, heads: int, kv_heads: int, d: int, width: int, device: torch.device):
        super().__init__()
        self.shape = shape
        self.network = LearnedSketch(d, shape.size).to(device) if shape.kind == LEARNED_SKETCH else None
        columns = d if self.network is None else shape.size
        self._factor = d**-0.25 if self.network is None else 1.0

        def parameter(*sizes: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(*sizes, device=device))

        self.q_map, self.q_bias, self.log_scale = (
            parameter(heads, columns, shape.size),
            parameter(heads, 1, shape.size),
            parameter(heads),
        )
        self.k_map, self.k_bias = parameter(kv_heads, columns, shape.size), parameter(kv_heads, 1, shape.size)
        if shape.decay_gate:
            self.gate_map, self.gate_bias = parameter(kv_heads, width), parameter(kv_heads)

    def begin(self, generator: torch.Generator) -> None:
        """The maps that attention transfer begins with: the heads of a group draw as their kv head does."""
        kv_heads, columns, r = self.k_map.shape
        drawn = torch.randn(kv_heads, columns, r, generator=generator) / math.sqrt(columns)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.startswith("network.") and weight.ndim == 2:
                    weight.copy_(torch.randn(weight.shape, generator=generator) / math.sqrt(weight.shape[1]))
            if self.shape.decay_gate:
                self.gate_bias.fill_(_FIRST_GATE_BIAS)
            self.k_map.copy_(drawn)
            self.q_map.copy_(drawn.repeat_interleave(len(self.q_map) // kv_heads, 0))
            self.q_bias.fill_(_FIRST_BIAS)
            self.k_bias.fill_(_FIRST_BIAS)

    def rows(self, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Far:
        """q [B, H, n, d] and k [B, Hkv, n, d], before RoPE; x [B, n, D], the layer's input."""
        at = torch.arange(q.shape[2], dtype=torch.float32, device=q.device)
        factor = self.log_scale.exp()[:, None, None] * (self.shape.length / at.clamp(min=self.shape.length))[:, None]
        if self.network is not None:
            q, k = self.network(q), self.network(k)
        far_q = (q * self._factor) @ self.q_map + self.q_bias
        far_k = (k * self._factor) @ self.k_map + self.k_bias
        log_decay = F.logsigmoid(F.linear(x, self.gate_map, self.gate_bias)).mT if self.shape.decay_gate else None
        if self.shape.squared:
            return Far(far_q * factor.sqrt(), far_k, log_decay=log_decay)
        return Far((F.elu(far_q) + 1) * factor, F.elu(far_k) + 1, squared=False, log_decay=log_decay)

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """As the folder has them: of squares, scales are merged into the maps."""
        scale = (self.log_scale / 2).exp()[:, None, None] if self.shape.squared else 1
        maps = {"far_q.weight": self._factor * scale * self.q_map, "far_q.bias": scale * self.q_bias}
        maps |= {"far_k.weight": self._factor * self.k_map, "far_k.bias": self.k_bias}
        tensors = {name: value.mT.flatten(0, 1) if name.endswith("weight") else value.flatten() for name, value in maps.items()}
        if not self.shape.squared:
            tensors["far_q.scale"] = self.log_scale.exp()
        tensors |= self._others()
        return {_name(layer, name): value.detach().float().cpu().contiguous() for name, value in tensors.items()}

    def read(self, layer: int, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of tensors; of squares with a log_scale of 0."""

        def numbers(what: str, like: torch.Tensor) -> torch.Tensor:
            name = _name(layer, what)
            if name not in tensors or tensors[name].numel() != like.numel():
                found = list(tensors[name].shape) if name in tensors else "none"
                raise ToolError(f"tensor {name}: expected {like.numel()} numbers, found {found}")
            return tensors[name].float()

        with torch.no_grad():
            for row, maps, bias in (("far_q", self.q_map, self.q_bias), ("far_k", self.k_map, self.k_bias)):
                maps.copy_(numbers(f"{row}.weight", maps).reshape(maps.mT.shape).mT / self._factor)
                bias.copy_(numbers(f"{row}.bias", bias).reshape(bias.shape))
            if self.shape.squared:
                self.log_scale.zero_()
            else:
                self.log_scale.copy_(numbers("far_q.scale", self.log_scale).log())
            for name, parameter in self._others().items():
                parameter.copy_(numbers(name, parameter).reshape(parameter.shape))

    def _others(self) -> dict[str, torch.nn.Parameter]:
        """Parameters beside the maps, as they are, by the names of their tensors."""
        others = {f"far_sketch.{name}": p for name, p in self.network.named_parameters()} if self.network is not None else {}
        return others | ({"far_gate.weight": self.gate_map, "far_gate.bias": self.gate_bias} if self.shape.decay_gate else {})


def _name(layer: int, what: str) -> str:
    return f"model.layers.{layer}.self_attn.{what}"


def far_fields(shape: FarShape) -> dict:
    """Of config.json."""
    fields = {"attention_far_kind": shape.kind, "attention_far_size": shape.size, "attention_far_length": shape.length}
    return fields | ({"attention_far_decay_gate": True} if shape.decay_gate else {})


def far_shape(config: dict) -> FarShape:
    """Of a folder that polysketch-linearize wrote."""
    if (kind := config.get("attention_far_kind")) not in KINDS:
        raise ToolError(f'field "attention_far_kind": expected {" or ".join(KINDS)}, found {kind!r:.80}')
    return FarShape(kind, config["attention_far_size"], config["attention_far_length"], config.get("attention_far_decay_gate", False))


def state_bytes(shape: FarShape, kv_heads: int, d: int) -> int:
    """Of a layer and a sequence, in float32."""
    return 4 * kv_heads * num_features(shape.size, shape.squared) * (d + 1)


def before_rope(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    """x [B, heads, n, d] without the rotation by cos and sin [1, n, d], which may carry a scale. None: x was not rotated."""
    if rope is None:
        return x
    cos, sin = (each[:, None] for each in rope)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos - turned * sin) / (cos * cos + sin * sin)
