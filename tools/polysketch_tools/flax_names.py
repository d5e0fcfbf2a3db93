"""Maps the names of our tensors to the paths of the authors' Flax code."""

import re

# Our name -> path in the parameter tree. \1 is the layer; sketch tensors: \2 branch, \3 level.
_RULES = [
    (re.compile(pattern + r"$"), path)
    for pattern, path in (
        (r"embedding\.weight", r"wte/embedding"),
        (r"softmax_bias", r"softmax_bias"),
        (r"final_norm\.(\w+)", r"ln/\1"),
        (r"layers\.(\d+)\.attn_norm\.(\w+)", r"Block_\1/ln_1/\2"),
        (r"layers\.(\d+)\.mlp_norm\.(\w+)", r"Block_\1/ln_2/\2"),
        (r"layers\.(\d+)\.attn\.qkv\.weight", r"Block_\1/attn/Dense_0/kernel"),
        (r"layers\.(\d+)\.attn\.out\.weight", r"Block_\1/attn/Dense_1/kernel"),
        (r"layers\.(\d+)\.mlp\.up\.weight", r"Block_\1/ff/Dense_0/kernel"),
        (r"layers\.(\d+)\.mlp\.down\.weight", r"Block_\1/ff/Dense_1/kernel"),
        (r"layers\.(\d+)\.attn\.omega", r"Block_\1/attn/omega"),
        (r"layers\.(\d+)\.attn\.coefficients", r"Block_\1/attn/coefficients"),
        (r"layers\.(\d+)\.attn\.qk_norm\.(\w+)", r"Block_\1/attn/pre_attn_layer/\2"),
        (r"layers\.(\d+)\.attn\.near_q_norm\.(\w+)", r"Block_\1/attn/LayerNorm_0/\2"),
        (r"layers\.(\d+)\.attn\.near_k_norm\.(\w+)", r"Block_\1/attn/LayerNorm_1/\2"),
        (
            r"layers\.(\d+)\.attn\.sketch\.branch(\d)\.level(\d)\.norm\.(\w+)",
            r"Block_\1/attn/pre_attn_layer/ff\2_\3/LayerNorm_0/\4",
        ),
        (
            r"layers\.(\d+)\.attn\.sketch\.branch(\d)\.level(\d)\.up\.weight",
            r"Block_\1/attn/pre_attn_layer/ff\2_\3/Dense_0/kernel",
        ),
        (
            r"layers\.(\d+)\.attn\.sketch\.branch(\d)\.level(\d)\.down\.weight",
            r"Block_\1/attn/pre_attn_layer/ff\2_\3/Dense_1/kernel",
        ),
    )
]

_DRAWN = re.compile(r"layers\.(\d+)\.attn\.sketch\.level\d+$")


def drawn_layer(name: str) -> int | None:
    """Returns the layer of a tensor that a Flax checkpoint does not hold but samples from its key, or None."""
    match = _DRAWN.match(name)
    return int(match[1]) if match else None


def flax_path(name: str) -> str:
    for pattern, path in _RULES:
        if match := pattern.match(name):
            return match.expand(path)
    raise AssertionError(f"no Flax name for {name}")
