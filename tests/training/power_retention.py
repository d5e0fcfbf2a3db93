"""Models of Brumby and PowerCoder for tests: the frames of transformers, with power retention in the place of their attention.

The equations are those of the published packages (PyPI's `retention`, the model folders of manifestai), as a sum over all pairs of
tokens. Names of tensors and of fields are theirs: a projection g_proj beside q_proj, with a gate for each kv head.
"""

import torch
import transformers
from transformers.modeling_utils import AttentionInterface

# Case -> what config.json calls the model.
_BRUMBY = {"architectures": ["BrumbyForCausalLM"], "model_type": "brumby"}
_POWERCODER = {"architectures": ["PowerCoderForCausalLM"], "model_type": "powercoder"}
ARCHITECTURES = {"brumby": _BRUMBY, "brumby_small": _BRUMBY, "powercoder": _POWERCODER}


def retention(module, query, key, value, attention_mask, scaling, **_):
    """Queries [B, H, n, d], keys and values [B, Hkv, n, d], module.log_gates [B, n, Hkv]; returns [B, n, H, d]. In float64."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    kept = module.log_gates.double().cumsum(1).transpose(1, 2).repeat_interleave(group, 1)
    scores = 2 * torch.log((query @ key.transpose(2, 3) * scaling).abs() + 1e-7) + kept[..., :, None] - kept[..., None, :]
    earlier = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    scores = scores.masked_fill(~earlier, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = weights @ value / (weights.sum(-1, keepdim=True) + 1e-6)
    return out.transpose(1, 2).float(), None


AttentionInterface.register("retention", retention)


def with_retention(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Gives each layer its gates, and makes its attention `retention`."""
    model.config._attn_implementation = "retention"
    config = model.config

    def gate(module, args, kwargs):
        module.log_gates = torch.nn.functional.logsigmoid(module.g_proj(kwargs["hidden_states"]))

    for layer in model.model.layers:
        bias = layer.self_attn.q_proj.bias is not None
        layer.self_attn.g_proj = torch.nn.Linear(config.hidden_size, config.num_key_value_heads, bias=bias)
        layer.self_attn.register_forward_pre_hook(gate, with_kwargs=True)
    return model


def open_gates(model: transformers.PreTrainedModel) -> None:
    """Changes random weights so that gates keep some 98% of the past: by their biases, or by a channel that all tokens share."""
    with torch.no_grad():
        for layer in model.model.layers:
            projection = layer.self_attn.g_proj
            if projection.bias is not None:
                projection.bias += 4
                continue
            projection.weight[:, 0] = 0.6
        if projection.bias is None:
            model.model.embed_tokens.weight[:, 0] = 8
