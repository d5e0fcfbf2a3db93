"""Models for tests whose windows have a far part (docs/model-format.md): layers of transformers, with sums over all pairs of tokens
in the place of their attention, in float64."""

import torch
import transformers
from transformers.modeling_utils import AttentionInterface

FAR_PART, SINKS = "window_with_far_part", "window_with_sinks"


def attention(module, query, key, value, attention_mask, scaling, **_):
    """Queries [B, H, n, d], keys and values [B, Hkv, n, d], rotated; module.before_rope has them [n, heads, d] as they were; returns
    [B, n, H, d]."""
    group = query.shape[1] // key.shape[1]
    query, key, value = (x[0].double().repeat_interleave(query.shape[1] // x.shape[1], 0) for x in (query, key, value))
    t = torch.arange(query.shape[1])[:, None]
    s = t.T
    seen, left = s <= t, torch.zeros(len(t), len(t), dtype=torch.bool)
    if module.windows is not None:
        first = (t // module.windows["attention_window"] - 1) * module.windows["attention_window"]
        left = (s < first) & (s >= module.windows["attention_sinks"])
        seen &= ~left
    weights = torch.exp((query @ key.transpose(1, 2) * scaling)).masked_fill(~seen, 0)
    if module.far:
        q, k = (mapped(module, name).repeat_interleave(repeat, 0) for name, repeat in (("q", 1), ("k", group)))
        factor = (module.windows["attention_far_length"] / t.clamp(min=1)).clamp(max=1)
        products = q @ k.transpose(1, 2)
        weights = weights + ((products if linear(module) else products.square()) * factor).masked_fill(~left, 0)
    out = weights @ value / weights.sum(-1, keepdim=True)
    return out.transpose(0, 1)[None].float(), None


def mapped(module, name: str) -> torch.Tensor:
    """f(x) of each head, [heads, n, r]."""
    x, maps = module.before_rope[name].double(), getattr(module, f"far_{name}")
    weight = maps.weight.double().view(x.shape[1], -1, x.shape[2])
    rows = torch.einsum("nhd,hrd->hnr", x, weight) + maps.bias.double().view(x.shape[1], 1, -1)
    if not linear(module):
        return rows
    features = torch.where(rows > 0, rows + 1, rows.exp())
    return features * maps.scale.double()[:, None, None] if name == "q" else features


def linear(module) -> bool:
    return module.windows["attention_far_kind"] == "linear"


AttentionInterface.register("far_window", attention)


def with_far_parts(model: transformers.PreTrainedModel, windows: dict) -> transformers.PreTrainedModel:
    """Gives the layers that the fields of config.json `windows` say maps of a far part, and all layers `attention`."""
    model.config._attn_implementation = "far_window"
    config = model.config
    for layer, kind in zip(model.model.layers, windows["layer_types"], strict=True):
        module = layer.self_attn
        module.windows, module.far, module.before_rope = windows if kind in (FAR_PART, SINKS) else None, kind == FAR_PART, {}
        if not module.far:
            continue
        size = windows["attention_far_size"]
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        for name, count in heads.items():
            maps = torch.nn.Linear(config.head_dim, count * size)
            if linear(module) and name == "q":
                maps.scale = torch.nn.Parameter(torch.ones(count))
            setattr(module, f"far_{name}", maps)

            def keep(_, args, output, module=module, name=name, count=count):
                module.before_rope[name] = output.detach().reshape(-1, count, config.head_dim)

            getattr(module, f"{name}_norm", getattr(module, f"{name}_proj")).register_forward_hook(keep)
    return model
