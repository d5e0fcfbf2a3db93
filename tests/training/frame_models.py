"""Small random models of the frames that the server reads from Hugging Face folders, written by transformers.

    .venv-training/bin/python tests/training/frame_models.py OUT [CASE...]

writes those of tests/data/frames, which tests/engine/model/frames_test.cc reads: for each case (all of them) a model folder with weights of
BF16, and golden.safetensors with tokens and the logits of transformers in float32.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import far_windows
import power_retention

SIZES = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,  # not hidden_size / num_attention_heads
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Four pairs of a head turn 10, 3, 1 and 0.3 times within the trained length.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}

# Windows with sinks: fields of config.json that transformers does not have. Layers of this type get a mask.
WITH_SINKS = "window_with_sinks"
SINK_FIELDS = ("layer_types", "attention_window", "attention_window_kind", "attention_sinks")
FAR_FIELDS = ("attention_far_kind", "attention_far_size", "attention_far_length", "attention_far_decay_gate")
# Two blocks of the window leave it within WINDOW_TOKENS tokens.
FAR = {
    "attention_window": 64,
    "attention_window_kind": "blocks",
    "attention_sinks": 5,
    "attention_far_kind": "affine_square",
    "attention_far_size": 16,
    "attention_far_length": 150,
}

SCALES = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 8.0}

# Name -> class of config, and what differs from SIZES.
CASES = {
    "llama": ("LlamaConfig", {}),
    "llama_tied_biases": ("LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama_own_kv_heads": ("LlamaConfig", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama_one_kv_head": ("LlamaConfig", {"num_key_value_heads": 1, "num_attention_heads": 6, "head_dim": 4}),
    "llama_linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama_llama3": ("LlamaConfig", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_yarn": ("LlamaConfig", {"rope_parameters": YARN, "attention_bias": True}),
    "qwen3_yarn": ("Qwen3Config", {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}}),
    "smollm3_yarn": (
        "SmolLM3Config",
        {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1], "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 2.0}},
    ),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral_window": ("MistralConfig", {"sliding_window": 9}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"rms_norm_eps": 1e-5}),
    "qwen3_biases": ("Qwen3Config", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen2_window": ("Qwen2Config", {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 2}),
    "qwen3_window": (
        "Qwen3Config",
        {
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "llama_window_sinks": (
        "LlamaConfig",
        {
            "num_hidden_layers": 4,
            "layer_types": [WITH_SINKS, "full_attention", WITH_SINKS, WITH_SINKS],
            "attention_window": 24,
            "attention_window_kind": "blocks",
            "attention_sinks": 5,
        },
    ),
    "qwen3_window_sinks": (
        "Qwen3Config",
        {
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", WITH_SINKS, "full_attention", WITH_SINKS],
            "attention_window": 70,
            "attention_window_kind": "sliding",
            "attention_sinks": 1,
        },
    ),
    "llama_window_far": (
        "LlamaConfig",
        {"num_hidden_layers": 4, "layer_types": [far_windows.FAR_PART, "full_attention", WITH_SINKS, far_windows.FAR_PART]} | FAR,
    ),
    "llama_window_far_linear": (
        "LlamaConfig",
        {"num_hidden_layers": 4, "layer_types": ["full_attention", far_windows.FAR_PART] * 2} | FAR | {"attention_far_kind": "linear"},
    ),
    "llama_window_far_sketch": (
        "LlamaConfig",
        {"num_hidden_layers": 4, "layer_types": ["full_attention", far_windows.FAR_PART] * 2}
        | FAR
        | {"attention_far_kind": "learned_sketch"},
    ),
    "llama_window_far_gate": (
        "LlamaConfig",
        {"num_hidden_layers": 4, "layer_types": [far_windows.FAR_PART, "full_attention"] * 2}
        | FAR
        | {"attention_far_decay_gate": True, "tie_word_embeddings": True},
    ),
    "qwen3_window_far": (
        "Qwen3Config",
        {"num_hidden_layers": 4, "layer_types": ["full_attention", far_windows.FAR_PART] * 2} | FAR | {"attention_sinks": 70},
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1]}),
    "smollm3_interval": ("SmolLM3Config", {"num_hidden_layers": 4, "no_rope_layer_interval": 3, "attention_bias": True}),
    "smollm3_window": (
        "SmolLM3Config",
        {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "sliding_window": 12},
    ),
    # Granite's factors; those of the published models are of this size.
    "granite": ("GraniteConfig", SCALES | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "granite_biases": ("GraniteConfig", SCALES | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    # Of the published models: the size of a head. Small heads: the tests that run many requests.
    "brumby": ("Qwen3Config", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 128, "rms_norm_eps": 1e-6}),
    "brumby_small": ("Qwen3Config", {"num_attention_heads": 10, "head_dim": 16, "rms_norm_eps": 1e-6}),
    "powercoder": (
        "Starcoder2Config",
        {"head_dim": 128, "norm_epsilon": 1e-5, "sliding_window": None, "tie_word_embeddings": True},
    ),
}
# Tokens of a recording: with a window, more than a layer keeps; with retention, more than two blocks.
TOKENS, WINDOW_TOKENS, RETENTION_TOKENS = 40, 200, 270


def random_model(name: str, **changes):
    """A model whose parameters all differ from their defaults: activations and logits of order one."""
    class_name, fields = CASES[name]
    if name in power_retention.ARCHITECTURES:
        changes = {key: value for key, value in changes.items() if key != "head_dim"}
    sizes = SIZES | changes
    for key, value in changes.items():
        if key in fields and isinstance(fields[key], int) and not isinstance(fields[key], bool):
            sizes[key] = value
    fields = {key: value for key, value in fields.items() if key not in changes}
    windows = {key: fields.pop(key) for key in SINK_FIELDS + FAR_FIELDS if key in fields} if "attention_sinks" in fields else {}
    config = getattr(transformers, class_name)(**(sizes | fields), attn_implementation="eager")
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    if name in power_retention.ARCHITECTURES:
        power_retention.with_retention(model)
    if "attention_far_size" in windows:
        far_windows.with_far_parts(model, windows)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(".bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif key.endswith(".scale"):
                parameter.copy_(0.5 + torch.rand_like(parameter))
            elif "norm" in key:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in key:
                parameter.copy_(torch.randn_like(parameter) * (0.5 if config.tie_word_embeddings else 1))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
        far_windows.open_gates(model)
    if name in power_retention.ARCHITECTURES:
        power_retention.open_gates(model)
    return with_sinks(model, windows, power_retention.ARCHITECTURES.get(name, {}))


def visible(t: torch.Tensor, s: torch.Tensor, kind: str, window: int, sinks: int) -> torch.Tensor:
    """Whether token t attends to token s (docs/attention.md)."""
    first = t - window + 1 if kind == "sliding" else (t // window - 1) * window
    return (s <= t) & ((s >= first) | (s < sinks))


def with_sinks(model, windows: dict, names: dict):
    """Masks the layers of the model that the fields of config.json `windows` say have windows with sinks. names: other fields of
    config.json that transformers does not write."""
    model.own_fields = windows | names

    def masked(module, args, kwargs):
        at = torch.arange(kwargs["hidden_states"].shape[1])
        seen = visible(at[:, None], at, *(windows[f"attention_{name}"] for name in ("window_kind", "window", "sinks")))
        kwargs["attention_mask"] = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        return args, kwargs

    for layer, kind in zip(model.model.layers, windows.get("layer_types", [])):
        if kind == WITH_SINKS:
            layer.self_attn.register_forward_pre_hook(masked, with_kwargs=True)
    return model


def save(model, folder: pathlib.Path) -> None:
    """Writes the folder that the server reads."""
    model.save_pretrained(folder)
    path = pathlib.Path(folder) / "config.json"
    if model.own_fields:
        path.write_text(json.dumps(json.loads(path.read_text()) | model.own_fields, indent=2) + "\n")


def random_tokens(model, count: int) -> np.ndarray:
    return np.random.default_rng(11).integers(model.config.vocab_size, size=count).astype(np.int32)


def logits_of(model, tokens: np.ndarray) -> torch.Tensor:
    """[tokens, vocabulary]"""
    with torch.no_grad():
        return model(torch.tensor(tokens.tolist())[None]).logits[0]


def main(out: pathlib.Path, names: list[str]):
    for name in names or CASES:
        folder = out / name
        drawn = random_model(name).to(torch.bfloat16)
        drawn.save_pretrained(folder)
        # Loaded anew: the conversion has rounded the frequencies of RoPE too.
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        if name in power_retention.ARCHITECTURES:
            power_retention.with_retention(model).load_state_dict(drawn.state_dict())
        if "attention_far_size" in drawn.own_fields:
            far_windows.with_far_parts(model, drawn.own_fields).load_state_dict(drawn.state_dict())
        with_sinks(model, drawn.own_fields, {})
        save(drawn, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        count = RETENTION_TOKENS if name in power_retention.ARCHITECTURES else WINDOW_TOKENS if "_window" in name else TOKENS
        tokens = random_tokens(model, count)
        save_file({"tokens": torch.tensor(tokens), "logits": logits_of(model, tokens)}, folder / "golden.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
