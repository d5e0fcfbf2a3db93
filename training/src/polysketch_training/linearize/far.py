"""Far parts: what a layer with a window keeps of the tokens that have left it, by affine maps of queries and keys: as squares of products
of the maps, or as products of positive features, elu + 1."""

import dataclasses
import math
import pathlib

import torch
import torch.nn.functional as F

from polysketch_tools.errors import ToolError
from polysketch_training.block_attention import num_features
from polysketch_training.linearize.windows import Far

AFFINE_SQUARE, LINEAR = KINDS = "affine_square", "linear"  # attention_far_kind of config.json
_FIRST_BIAS = 0.3


@dataclasses.dataclass(frozen=True)
class FarShape:
    kind: str  # of KINDS
    size: int  # r
    length: int  # T0: the weights of token t are multiplied by min(1, T0 / t)

    @property
    def squared(self) -> bool:
        return self.kind == AFFINE_SQUARE

    @property
    def features(self) -> int:
        """Of a token while the tool computes."""
        return self.size**2 if self.squared else self.size


class FarPart(torch.nn.Module):
    """That of a layer. The maps are of q and k before RoPE, for each query head and each kv head."""

    def __init__(self, shape: FarShape, heads: int, kv_heads: int, d: int, device: torch.device):
        super().__init__()
        self.shape, self._d = shape, d

        def parameter(*sizes: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(*sizes, device=device))

        self.q_map, self.q_bias, self.log_scale = parameter(heads, d, shape.size), parameter(heads, 1, shape.size), parameter(heads)
        self.k_map, self.k_bias = parameter(kv_heads, d, shape.size), parameter(kv_heads, 1, shape.size)

    def begin(self, generator: torch.Generator) -> None:
        """The maps that attention transfer begins with: the heads of a group draw as their kv head does."""
        kv_heads, d, r = self.k_map.shape
        drawn = torch.randn(kv_heads, d, r, generator=generator) / math.sqrt(d)
        with torch.no_grad():
            self.k_map.copy_(drawn)
            self.q_map.copy_(drawn.repeat_interleave(len(self.q_map) // kv_heads, 0))
            self.q_bias.fill_(_FIRST_BIAS)
            self.k_bias.fill_(_FIRST_BIAS)

    def rows(self, q: torch.Tensor, k: torch.Tensor) -> Far:
        """q [B, H, n, d] and k [B, Hkv, n, d], before RoPE."""
        at = torch.arange(q.shape[2], dtype=torch.float32, device=q.device)
        factor = self.log_scale.exp()[:, None, None] * (self.shape.length / at.clamp(min=self.shape.length))[:, None]
        far_q = (q * self._d**-0.25) @ self.q_map + self.q_bias
        far_k = (k * self._d**-0.25) @ self.k_map + self.k_bias
        if self.shape.squared:
            return Far(far_q * factor.sqrt(), far_k)
        return Far((F.elu(far_q) + 1) * factor, F.elu(far_k) + 1, squared=False)

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """As the folder has them: of squares, scales are merged into the maps."""
        scale, d = (self.log_scale / 2).exp()[:, None, None] if self.shape.squared else 1, self._d**-0.25
        values = (d * scale * self.q_map, scale * self.q_bias, d * self.k_map, self.k_bias)
        flat = [value.detach().mT.flatten(0, 1).float().cpu().contiguous() for value in values]
        names = _names(layer)
        tensors = {names[0]: flat[0], names[1]: flat[1].flatten(), names[2]: flat[2], names[3]: flat[3].flatten()}
        return tensors if self.shape.squared else tensors | {_scale_name(layer): self.log_scale.detach().exp().float().cpu()}

    def read(self, layer: int, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of tensors; of squares with a log_scale of 0."""
        r, d = self.shape.size, self._d

        def numbers(name: str, like: torch.Tensor) -> torch.Tensor:
            if name not in tensors or tensors[name].numel() != like.numel():
                found = list(tensors[name].shape) if name in tensors else "none"
                raise ToolError(f"tensor {name}: expected {like.numel()} numbers, found {found}")
            return tensors[name].float()

        with torch.no_grad():
            for name, parameter in zip(_names(layer), (self.q_map, self.q_bias, self.k_map, self.k_bias)):
                columns = parameter.shape[1]
                value = numbers(name, parameter).reshape(-1, r, columns).mT
                parameter.copy_(value * d**0.25 if columns > 1 else value)
            if self.shape.squared:
                self.log_scale.zero_()
            else:
                self.log_scale.copy_(numbers(_scale_name(layer), self.log_scale).log())


def _names(layer: int) -> list[str]:
    return [f"model.layers.{layer}.self_attn.far_{row}.{what}" for row in "qk" for what in ("weight", "bias")]


def _scale_name(layer: int) -> str:
    return f"model.layers.{layer}.self_attn.far_q.scale"


def far_fields(shape: FarShape) -> dict:
    """Of config.json."""
    return {"attention_far_kind": shape.kind, "attention_far_size": shape.size, "attention_far_length": shape.length}


def far_shape(config: dict) -> FarShape:
    """Of a folder that polysketch-linearize wrote."""
    if (kind := config.get("attention_far_kind")) not in KINDS:
        raise ToolError(f'field "attention_far_kind": expected {" or ".join(KINDS)}, found {kind!r:.80}')
    return FarShape(kind, config["attention_far_size"], config["attention_far_length"])


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
