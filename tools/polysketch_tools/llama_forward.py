"""The forward pass of the frames of Llama in float32 on numpy, layer by layer: what calibration sees of a folder of Hugging Face.

Attention is one quadratic sum over the tokens of a sequence, so sequences are short (some thousand tokens).
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable

import numpy as np

from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import read_json_object

# The product of inputs [rows, in] and the matrices of these names, [out, in] each, joined: [rows, out of all].
Product = Callable[[list[str], np.ndarray], np.ndarray]
# A tensor by its name, as float32, or None if the model has none of that name.
Tensor = Callable[[str], np.ndarray | None]

# What transformers takes for fields that a config does not have, by architecture.
_DEFAULTS: dict[str, dict] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"num_key_value_heads": 32, "head_dim": 128},
    "SmolLM3ForCausalLM": {
        "num_key_value_heads": 4,
        "rope_theta": 2e6,
        "no_rope_layer_interval": 4,
    },
}
_TRAINED = "original_max_position_embeddings"


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """What the pass needs of a config.json."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    longest: int  # tokens up to which a sequence is computed without windows
    frequencies: np.ndarray  # of RoPE, float64 [head_dim / 2]
    rope_scale: float  # of rotated queries and rotated keys
    rope: tuple[bool, ...]  # whether a layer has RoPE

    @staticmethod
    def read(path: pathlib.Path) -> "LlamaConfig":
        fields = read_json_object(path)
        try:
            return _config(fields)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ToolError(f"{path}: expected the fields of transformers, found damage: {error}") from error
        except (KeyError, ToolError) as error:
            raise ToolError(f"{path}: {error if isinstance(error, ToolError) else f'field {error}: missing'}") from error


def _config(fields: dict) -> LlamaConfig:
    architectures = fields.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
    if name not in _DEFAULTS:
        raise ToolError(f"architectures: expected one of {', '.join(_DEFAULTS)}; found {architectures!r}")
    if fields.get("quantization_config") is not None:
        raise ToolError("quantization_config: expected a model of F32, F16 or BF16")
    # Null is another value than the class's own: as many kv heads as heads, no window.
    null = {key for key in ("num_key_value_heads", "sliding_window") if fields.get(key, 0) is None}
    defaults = {key: value for key, value in _DEFAULTS[name].items() if key not in null}
    fields = defaults | {key: value for key, value in fields.items() if value is not None}
    layers, heads = (int(fields[key]) for key in ("num_hidden_layers", "num_attention_heads"))
    width = int(fields["hidden_size"])
    head_dim = int(fields.get("head_dim", width // heads))
    kv_heads = int(fields.get("num_key_value_heads", heads))
    if min(layers, heads, width, head_dim, kv_heads) < 1 or heads % kv_heads or head_dim % 2:
        raise ToolError("expected positive sizes, kv heads that divide the heads, and heads of an even size")
    longest = int(fields["max_position_embeddings"])
    if fields.get("use_sliding_window", True):
        longest = min(longest, int(fields.get("sliding_window", longest)))
    if longest < 1:
        raise ToolError(f"max_position_embeddings, sliding_window: expected at least one token, found {longest}")
    interval = fields.get("no_rope_layer_interval")
    flags = fields.get("no_rope_layers") or [
        not interval or (i + 1) % interval != 0 for i in range(layers)
    ]
    if len(flags) < layers:
        raise ToolError(f"no_rope_layers: expected a number for each of {layers} layers, found {len(flags)}")
    frequencies, rope_scale = _rope(fields, head_dim)
    return LlamaConfig(
        layers=layers,
        width=width,
        hidden=int(fields["intermediate_size"]),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=float(fields.get("rms_norm_eps", 1e-6)),
        longest=longest,
        frequencies=frequencies,
        rope_scale=rope_scale,
        rope=tuple(bool(flag) for flag in flags[:layers]) if name == "SmolLM3ForCausalLM" else (True,) * layers,
    )


def _rope(fields: dict, head_dim: int) -> tuple[np.ndarray, float]:
    """The frequencies, and the factor of rotated queries and keys."""
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta", fields.get("rope_theta", 10000.0)))
    frequencies = theta ** (-2 * np.arange(head_dim // 2) / head_dim)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return frequencies, 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise ToolError(f"rope_scaling: expected default, linear, llama3 or yarn; found {kind!r}")
    factor = float(parameters["factor"])
    if kind == "linear":
        return frequencies / factor, 1.0
    in_turn = (fields, parameters, {_TRAINED: fields["max_position_embeddings"]})
    trained = next(float(each[_TRAINED]) for each in in_turn if each.get(_TRAINED))
    if kind == "yarn":
        return _yarn(parameters, frequencies, theta, factor, trained)
    low, high = (float(parameters[f"{name}_freq_factor"]) for name in ("low", "high"))
    turns = trained * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / factor), 1.0


def _yarn(parameters: dict, frequencies: np.ndarray, theta: float, factor: float, trained: float) -> tuple[np.ndarray, float]:
    """As transformers has YaRN (arXiv 2309.00071); attn_factor as vLLM has it."""
    d = 2 * len(frequencies)
    turns = (float(parameters.get("beta_fast") or 32), float(parameters.get("beta_slow") or 1))
    low, high = (d * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(theta)) for times in turns)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    slowed = np.clip((np.arange(d // 2) - low) / ((high - low) or 0.001), 0, 1)
    scale, of_all = (float(parameters.get(name) or 0) for name in ("mscale", "mscale_all_dim"))
    inferred = _yarn_scale(factor, scale) / _yarn_scale(factor, of_all) if scale and of_all else _yarn_scale(factor, 1)
    given = parameters.get("attention_factor")
    scale = inferred * float(parameters.get("attn_factor") or 1) if given is None else float(given)
    return frequencies * (slowed / factor + 1 - slowed), scale


def _yarn_scale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1


def forward(config: LlamaConfig, tokens: np.ndarray, tensor: Tensor, product: Product) -> np.ndarray:
    """Returns the inputs [rows, D] of the output matrix for sequences `tokens` [sequences, n], row by row.

    The products of the layers are those of `product`, each matrix once, in the order of the pass.
    """
    count, n = tokens.shape
    x = _required(tensor, "model.embed_tokens.weight")[tokens].reshape(count * n, config.width)
    for i in range(config.layers):
        layer = f"model.layers.{i}."
        attention = layer + "self_attn."
        normed = _norm(x, config, tensor, layer + "input_layernorm.weight")
        qkv = _linear([attention + part for part in ("q_proj", "k_proj", "v_proj")], normed, tensor, product)
        rows = _attention(config, i, qkv.reshape(count, n, -1), attention, tensor)
        x = x + _linear([attention + "o_proj"], rows, tensor, product)
        normed = _norm(x, config, tensor, layer + "post_attention_layernorm.weight")
        hidden = _linear([layer + "mlp.up_proj", layer + "mlp.gate_proj"], normed, tensor, product)
        up, gate = np.split(hidden, 2, axis=1)
        with np.errstate(over="ignore"):  # of e^-gate, whose reciprocal is 0 then
            up *= gate / (1 + np.exp(-gate))
        x = x + _linear([layer + "mlp.down_proj"], up, tensor, product)
    return _norm(x, config, tensor, "model.norm.weight")


def _required(tensor: Tensor, name: str) -> np.ndarray:
    values = tensor(name)
    if values is None:
        raise ToolError(f"tensor {name}: missing")
    return values


def _linear(names: list[str], x: np.ndarray, tensor: Tensor, product: Product) -> np.ndarray:
    out = product([name + ".weight" for name in names], x)
    biases = [tensor(name + ".bias") for name in names]
    if any(bias is not None for bias in biases):
        out += np.concatenate([bias for bias in biases if bias is not None])
    return out


def _norm(x: np.ndarray, config: LlamaConfig, tensor: Tensor, name: str) -> np.ndarray:
    mean = np.square(x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean + np.float32(config.epsilon)) * _required(tensor, name)


def _attention(config: LlamaConfig, i: int, qkv: np.ndarray, prefix: str, tensor: Tensor) -> np.ndarray:
    """qkv [sequences, n, .]. Returns the rows of all heads' outputs."""
    count, n = qkv.shape[:2]
    heads, kv_heads, d = config.heads, config.kv_heads, config.head_dim
    by_head = qkv.reshape(count, n, heads + 2 * kv_heads, d)
    q, k, v = np.split(by_head, [heads, heads + kv_heads], axis=2)
    if tensor(prefix + "q_norm.weight") is not None:
        q = _norm(q, config, tensor, prefix + "q_norm.weight")
        k = _norm(k, config, tensor, prefix + "k_norm.weight")
    if config.rope[i]:
        q, k = (_rotate(x, config.frequencies) * np.float32(config.rope_scale) for x in (q, k))
    out = np.empty((count, n, heads, d), np.float32)
    later = np.triu(np.ones((n, n), bool), 1)
    for sequence in range(count):
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = q[sequence, :, head] @ k[sequence, :, kv].T / np.float32(math.sqrt(d))
            scores[later] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[sequence, :, head] = weights @ v[sequence, :, kv]
    return out.reshape(count * n, heads * d)


def _rotate(x: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Rotates rows [sequences, n, heads, d]: element i with i + d / 2."""
    angles = np.arange(x.shape[1])[:, None] * frequencies
    cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
