"""Far parts: what a layer with a window keeps of the tokens that have left it, as squares of products of affine maps."""

import dataclasses
import math
import pathlib

import torch

from polysketch_tools.errors import ToolError
from polysketch_training.block_attention import num_features
from polysketch_training.linearize.windows import Far

AFFINE_SQUARE = "affine_square"  # attention_far_kind of config.json
_FIRST_BIAS = 0.3


@dataclasses.dataclass(frozen=True)
class FarShape:
    size: int  # r
    length: int  # T0: the weights of token t are multiplied by min(1, T0 / t)


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
        shrink = (self.shape.length / at.clamp(min=self.shape.length)).sqrt()[:, None]
        scale = (self.log_scale / 2).exp()[:, None, None]
        far_q = (q * self._d**-0.25) @ self.q_map + self.q_bias
        return Far(far_q * (scale * shrink), (k * self._d**-0.25) @ self.k_map + self.k_bias)

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """As the folder has them: scales are merged into the maps."""
        scale, d = (self.log_scale / 2).exp()[:, None, None], self._d**-0.25
        values = (d * scale * self.q_map, scale * self.q_bias, d * self.k_map, self.k_bias)
        flat = [value.detach().mT.flatten(0, 1).float().cpu().contiguous() for value in values]
        names = _names(layer)
        return {names[0]: flat[0], names[1]: flat[1].flatten(), names[2]: flat[2], names[3]: flat[3].flatten()}

    def read(self, layer: int, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of tensors, with a log_scale of 0."""
        r, d = self.shape.size, self._d
        with torch.no_grad():
            for name, parameter in zip(_names(layer), (self.q_map, self.q_bias, self.k_map, self.k_bias)):
                columns = parameter.shape[1]
                if name not in tensors or tensors[name].numel() != parameter.numel():
                    found = list(tensors[name].shape) if name in tensors else "none"
                    raise ToolError(f"tensor {name}: expected {parameter.numel()} numbers, found {found}")
                value = tensors[name].float().reshape(-1, r, columns).mT
                parameter.copy_(value * d**0.25 if columns > 1 else value)
            self.log_scale.zero_()


def _names(layer: int) -> list[str]:
    return [f"model.layers.{layer}.self_attn.far_{row}.{what}" for row in "qk" for what in ("weight", "bias")]


def far_fields(shape: FarShape) -> dict:
    """Of config.json."""
    return {"attention_far_kind": AFFINE_SQUARE, "attention_far_size": shape.size, "attention_far_length": shape.length}


def far_shape(config: dict) -> FarShape:
    """Of a folder that polysketch-linearize wrote."""
    if (kind := config.get("attention_far_kind")) != AFFINE_SQUARE:
        raise ToolError(f'field "attention_far_kind": expected {AFFINE_SQUARE}, found {kind!r:.80}')
    return FarShape(config["attention_far_size"], config["attention_far_length"])


def state_bytes(size: int, kv_heads: int, d: int) -> int:
    """Of a layer and a sequence, in float32."""
    return 4 * kv_heads * num_features(size, True) * (d + 1)


def before_rope(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    """x [B, heads, n, d] without the rotation by cos and sin [1, n, d], which may carry a scale. None: x was not rotated."""
    if rope is None:
        return x
    cos, sin = (each[:, None] for each in rope)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos - turned * sin) / (cos * cos + sin * sin)
