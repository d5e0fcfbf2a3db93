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
        if hasattr(module, "far_gate"):
            factor = factor * decays(module, first).repeat_interleave(group, 0)
        weights = weights + ((products if linear(module) else products.square()) * factor).masked_fill(~left, 0)
    out = weights @ value / weights.sum(-1, keepdim=True)
    return out.transpose(0, 1)[None].float(), None


def mapped(module, name: str) -> torch.Tensor:
    """f(x) of each head, [heads, n, r]."""
    x, maps = module.before_rope[name].double(), getattr(module, f"far_{name}")
    if hasattr(module, "far_sketch"):
        x = sketch(module.far_sketch, x)
    weight = maps.weight.double().view(x.shape[1], -1, x.shape[2])
    rows = torch.einsum("nhd,hrd->hnr", x, weight) + maps.bias.double().view(x.shape[1], 1, -1)
    if not linear(module):
        return rows
    features = torch.where(rows > 0, rows + 1, rows.exp())
    return features * maps.scale.double()[:, None, None] if name == "q" else features


def decays(module, first: torch.Tensor) -> torch.Tensor:
    """What the decay gate of each kv head keeps of token s at the tokens after it up to first[t] [n, 1], without it: [Hkv, n, n]."""
    gate = module.far_gate
    logs = torch.nn.functional.logsigmoid(module.x.double() @ gate.weight.double().T + gate.bias.double()).T
    sums = torch.nn.functional.pad(logs.cumsum(1), (1, 0))
    return torch.exp(sums[:, first.clamp(min=0)] - sums[:, None, 1:])


def open_gates(model) -> None:
    """Half of a weight is left after about 40 tokens."""
    for layer in model.model.layers:
        if hasattr(layer.self_attn, "far_gate"):
            layer.self_attn.far_gate.bias += 4


def sketch(network, x: torch.Tensor) -> torch.Tensor:
    """The learned sketch of docs/attention.md, [n, heads, d] to [n, heads, r]."""
    branches = []
    for levels in (network.branch1, network.branch2):
        y = x
        for level in levels.values():
            y = y - y.mean(-1, keepdim=True)
            y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * level.norm.scale.double() + level.norm.bias.double()
            hidden = torch.nn.functional.gelu(y @ level.up.weight.double().T, approximate="tanh")
            y = hidden @ level.down.weight.double().T
        branches.append(y)
    root = y.shape[-1] ** 0.5
    return root * torch.tanh(branches[0] * branches[1] / root)


def sketch_network(d: int, r: int) -> torch.nn.Module:
    """Of its tensors' names."""
    def level(inputs: int) -> torch.nn.Module:
        norm = torch.nn.Module()
        norm.scale, norm.bias = torch.nn.Parameter(torch.ones(inputs)), torch.nn.Parameter(torch.zeros(inputs))
        of_level = torch.nn.Module()
        of_level.norm, of_level.up, of_level.down = norm, torch.nn.Linear(inputs, 8 * r, False), torch.nn.Linear(8 * r, r, False)
        return of_level

    network = torch.nn.Module()
    for branch in ("branch1", "branch2"):
        setattr(network, branch, torch.nn.ModuleDict({"level0": level(d), "level1": level(r)}))
    return network


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
        heads, columns = {"q": config.num_attention_heads, "k": config.num_key_value_heads}, config.head_dim
        if windows["attention_far_kind"] == "learned_sketch":
            module.far_sketch, columns = sketch_network(config.head_dim, size), size
        if windows.get("attention_far_decay_gate"):
            module.far_gate = torch.nn.Linear(config.hidden_size, config.num_key_value_heads)
            module.q_proj.register_forward_hook(lambda _, args, output, module=module: setattr(module, "x", args[0][0].detach()))
        for name, count in heads.items():
            maps = torch.nn.Linear(columns, count * size)
            if linear(module) and name == "q":
                maps.scale = torch.nn.Parameter(torch.ones(count))
            setattr(module, f"far_{name}", maps)

            def keep(_, args, output, module=module, name=name, count=count):
                module.before_rope[name] = output.detach().reshape(-1, count, config.head_dim)

            getattr(module, f"{name}_norm", getattr(module, f"{name}_proj")).register_forward_hook(keep)
    return model
